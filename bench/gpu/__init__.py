"""Kernels and decoders on a GPU."""
