"""Rotary frequencies of a model."""

import torch

from canopy.models.rope import RopeScaling


def rope_frequencies(theta: float, size: int, scaling: RopeScaling | None) -> torch.Tensor:
    """float32 [size / 2], radians per position."""
    exponents = torch.arange(0, size, 2, dtype=torch.float32) / size
    frequencies = 1.0 / theta**exponents
    return frequencies if scaling is None else scaling.stretch(frequencies, theta)
