"""Ops of the round: per op one file with its reference, its kernel, its launcher and CPU path."""

from canopy_kernels.cpu.numba_cache import configure_cache

configure_cache()
