"""Log-probs of tokens by the target's own distribution, packed into VerifyReply and back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from canopy.protocol.messages import VerifyReply
from canopy.tree.forest import split_ragged


@dataclass(frozen=True)
class TokenLogprobs:
    """Of n tokens in a row, each with the `top` likeliest tokens in its place.

    By the target's logits before any option or filter changes them, at temperature 1.
    """

    token_ids: np.ndarray  # int32 [n, 1 + top] the token itself, then the likeliest, best first
    logprobs: np.ndarray  # float32 [n, 1 + top]
    ranks: np.ndarray  # int32 [n] of the token itself; 1 is the likeliest

    @staticmethod
    def none() -> "TokenLogprobs":
        """Of no token."""
        ids = np.zeros((0, 1), np.int32)
        return TokenLogprobs(ids, ids.astype(np.float32), ids[:, 0])

    def __len__(self) -> int:
        return len(self.ranks)


def pack_logprobs(found: Sequence[TokenLogprobs], prefix: str = "") -> dict[str, Any]:
    """The fields of a reply, one entry of `found` a sequence; none where all are empty."""
    if not any(map(len, found)):
        return {}
    return {
        f"{prefix}logprob_lengths": np.array([len(f) for f in found], np.int32),
        f"{prefix}logprob_widths": np.array([f.token_ids.shape[1] for f in found], np.int32),
        f"{prefix}logprob_token_ids": np.concatenate([f.token_ids.ravel() for f in found]),
        f"{prefix}logprobs": np.concatenate([f.logprobs.ravel() for f in found]),
        f"{prefix}logprob_ranks": np.concatenate([f.ranks for f in found]),
    }


def unpack_logprobs(reply: VerifyReply, prefix: str = "") -> list[TokenLogprobs]:
    """The inverse of `pack_logprobs`. Raises ValueError for ragged fields that do not fit."""
    lengths = getattr(reply, f"{prefix}logprob_lengths")
    if not len(lengths):
        return [TokenLogprobs.none()] * len(reply.status)
    widths = getattr(reply, f"{prefix}logprob_widths")
    token_ids = split_ragged(getattr(reply, f"{prefix}logprob_token_ids"), lengths * widths)
    logprobs = split_ragged(getattr(reply, f"{prefix}logprobs"), lengths * widths)
    ranks = split_ragged(getattr(reply, f"{prefix}logprob_ranks"), lengths)
    return [
        TokenLogprobs(i.reshape(-1, width), p.reshape(-1, width), r)
        for i, p, r, width in zip(token_ids, logprobs, ranks, widths.tolist(), strict=True)
    ]
