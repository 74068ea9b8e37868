"""Networks on int8 weights for the CPU, exact in their integer products."""
