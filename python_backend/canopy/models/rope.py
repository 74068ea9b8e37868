"""How a long-context model stretches its rotary frequencies, as its configuration says.

The draft and entry processes read configurations without torch: it is imported for types alone.

Sources: Llama 3.1's published rule; YaRN, Peng et al. 2023, with the defaults of `transformers`.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_YARN_BETA_FAST, _YARN_BETA_SLOW = 32.0, 1.0


@dataclass(frozen=True)
class LinearScaling:
    """Position interpolation: every frequency divided by `factor`."""

    factor: float
    attention_factor: float = 1.0

    def stretch(self, frequencies: "torch.Tensor", theta: float) -> "torch.Tensor":
        """float32 [D / 2] to the same."""
        return frequencies / self.factor


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3's stretching of the low rope frequencies."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int
    attention_factor: float = 1.0

    def stretch(self, frequencies: "torch.Tensor", theta: float) -> "torch.Tensor":
        """Divide low frequencies by `factor`, keep high ones, and blend linearly in between.

        "Low" and "high" count turns within the original context. float32 [D / 2] to the same.
        """
        turns = self.original_max_position_embeddings * frequencies / (2 * math.pi)
        band = self.high_freq_factor - self.low_freq_factor
        kept = ((turns - self.low_freq_factor) / band).clamp(0.0, 1.0)
        return frequencies * (kept + (1.0 - kept) / self.factor)


@dataclass(frozen=True)
class YarnScaling:
    """YaRN: a ramp over the dimensions, and attention sharpened by `attention_factor`."""

    factor: float
    original_max_position_embeddings: int
    attention_factor: float  # of cosines and sines alike
    beta_fast: float  # turns within the original context above which a frequency is kept
    beta_slow: float  # and below which it is divided by `factor`
    truncate: bool  # the ends of the ramp are whole dimensions

    def stretch(self, frequencies: "torch.Tensor", theta: float) -> "torch.Tensor":
        """float32 [D / 2] to the same."""
        size = 2 * len(frequencies)
        first, last = (self._dimension(b, size, theta) for b in (self.beta_fast, self.beta_slow))
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, size - 1)
        width = last - first or 0.001
        dimensions = frequencies.new_tensor(range(len(frequencies)))
        divided = ((dimensions - first) / width).clamp(0.0, 1.0)
        return frequencies * (1.0 - divided + divided / self.factor)

    def _dimension(self, turns: float, size: int, theta: float) -> float:
        """Where a frequency makes that many turns within the original context."""
        wavelength = self.original_max_position_embeddings / (turns * 2 * math.pi)
        return size * math.log(wavelength) / (2 * math.log(theta))


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling


def linear_scaling(rope: dict[str, Any]) -> LinearScaling | None:
    """None where it changes nothing. Raises KeyError for a missing entry."""
    factor = float(rope["factor"])
    return None if factor == 1 else LinearScaling(factor)


def llama3_scaling(rope: dict[str, Any]) -> Llama3Scaling:
    """Raises KeyError for a missing entry."""
    return Llama3Scaling(
        factor=float(rope["factor"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
        original_max_position_embeddings=int(rope["original_max_position_embeddings"]),
    )


def yarn_scaling(rope: dict[str, Any], original: int, longest: int) -> YarnScaling:
    """original, longest: positions in pretraining, and at most."""
    factor = float(rope.get("factor") or longest / original)
    sharpened = rope.get("attention_factor")
    if sharpened is None:
        mscale, all_dims = rope.get("mscale"), rope.get("mscale_all_dim")
        sharpened = _sharpness(factor, 1.0)
        if mscale and all_dims:
            sharpened = _sharpness(factor, mscale) / _sharpness(factor, all_dims)
    return YarnScaling(
        factor=factor,
        original_max_position_embeddings=original,
        attention_factor=float(sharpened),
        beta_fast=float(rope.get("beta_fast") or _YARN_BETA_FAST),
        beta_slow=float(rope.get("beta_slow") or _YARN_BETA_SLOW),
        truncate=bool(rope.get("truncate", True)),
    )


def _sharpness(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
