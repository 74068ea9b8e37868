"""Noise, filters and the acceptance rules, each with its reference and its Triton kernel."""
