"""Ahead-of-time compilation of every Triton kernel, on a machine without a GPU."""
