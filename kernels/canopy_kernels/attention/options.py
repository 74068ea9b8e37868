"""What some models do to attention beside the plain softmax."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class AttentionOptions:
    """The defaults are plain attention.

    window: a row sees keys less than so many positions before its own, itself included; 0: all.
    soft_cap: scores become soft_cap * tanh(score / soft_cap); 0: they stay.
    sinks: float32 [H], for each query head a score without a value, which takes its share of the
    softmax; None: there are none.
    """

    window: int = 0
    soft_cap: float = 0.0
    sinks: torch.Tensor | None = None


PLAIN = AttentionOptions()
