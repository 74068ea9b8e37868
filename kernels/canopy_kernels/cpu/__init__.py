"""Threads, LLVM code and float sums that the CPU kernels are made of."""
