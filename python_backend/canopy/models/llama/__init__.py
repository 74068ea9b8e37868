"""Decoders of the Llama family in floating point."""
