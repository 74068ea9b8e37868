"""Decoders of the Llama family on quantized weights, for the CPU."""
