"""Decoders of the Llama family on int8 weights, for the CPU."""
