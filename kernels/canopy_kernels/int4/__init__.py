"""Linears on four-bit weights for the CPU."""
