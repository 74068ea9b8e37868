"""Ops of the round by family: kernels in Triton's language for GPUs, compiled ones for CPUs."""

from canopy_kernels.cpu.numba_cache import configure_cache

configure_cache()
