"""Why sequences failed in a verify step: texts to the fields of VerifyReply and back."""

from collections.abc import Sequence

import numpy as np

from canopy.protocol.messages import VerifyReply
from canopy.tree.forest import split_ragged


def failure_fields(reasons: Sequence[str]) -> dict[str, np.ndarray]:
    """One reason a sequence, "" where it did not fail; no fields where none did."""
    texts = [reason.encode() for reason in reasons]
    if not any(texts):
        return {}
    return {
        "failure_lengths": np.array([len(text) for text in texts], np.int32),
        "failures": np.frombuffer(b"".join(texts), np.uint8),
    }


def failure_of(reply: VerifyReply, index: int) -> str:
    """Why a sequence failed; "" where the reply does not tell."""
    texts = split_ragged(reply.failures, reply.failure_lengths)
    return texts[index].tobytes().decode("utf-8", "replace") if texts else ""
