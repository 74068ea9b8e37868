"""What the options of requests change in the logits of a step, as arrays.

    bias -> penalties -> bans -> masks

A row of logits belongs to one node. The arrays are made where the tokens are known; the change
itself happens where the logits are, see `application`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

BITS = 32  # tokens per word of a mask


def _empty(*dtypes: type) -> list[np.ndarray]:
    return [np.zeros(0, dtype) for dtype in dtypes]


@dataclass(frozen=True)
class LogitEdits:
    """Each pair of a row and a token id stands once in a group at most."""

    bias_rows: np.ndarray  # int64 [B]
    bias_token_ids: np.ndarray  # int64 [B]
    biases: np.ndarray  # float32 [B] added
    penalty_rows: np.ndarray  # int64 [P]
    penalty_token_ids: np.ndarray  # int64 [P]
    repetitions: np.ndarray  # float32 [P] divides what is positive, multiplies what is not
    deductions: np.ndarray  # float32 [P] subtracted after that
    ban_rows: np.ndarray  # int64 [M]
    ban_token_ids: np.ndarray  # int64 [M]
    mask_rows: np.ndarray  # int64 [K]
    masks: np.ndarray  # uint32 [K * W], bit t % 32 of word t // 32 of a row allows token t

    @staticmethod
    def none() -> "LogitEdits":
        """Changes nothing."""
        bias = _empty(np.int64, np.int64, np.float32)
        penalty = _empty(np.int64, np.int64, np.float32, np.float32)
        return LogitEdits(*bias, *penalty, *_empty(np.int64, np.int64, np.int64, np.uint32))

    @property
    def is_empty(self) -> bool:
        rows = (self.bias_rows, self.penalty_rows, self.ban_rows, self.mask_rows)
        return not any(len(part) for part in rows)

    def moved(self, first_row: int) -> "LogitEdits":
        """The same edits where row 0 is `first_row`."""
        return replace(
            self,
            bias_rows=self.bias_rows + first_row,
            penalty_rows=self.penalty_rows + first_row,
            ban_rows=self.ban_rows + first_row,
            mask_rows=self.mask_rows + first_row,
        )


def concatenated(parts: Sequence[LogitEdits]) -> LogitEdits:
    """The edits of several trees, whose rows are apart and whose masks are equally wide."""
    if not parts:
        return LogitEdits.none()
    names = [field.name for field in fields(LogitEdits)]
    return LogitEdits(*(np.concatenate([getattr(p, name) for p in parts]) for name in names))
