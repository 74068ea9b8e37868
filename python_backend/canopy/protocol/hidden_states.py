"""HiddenStates: hidden states of the target at computed positions, on their way to the drafter.

The verifier takes them from the step that computes a position and sends those that were kept;
the engine holds them until the next draft; the drafter's context follows. All of it is
best effort: a position whose features were lost is missing in the drafter's context.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from canopy.protocol.messages import DraftRequest, VerifyReply
from canopy.tree.forest import split_ragged

WHOLE_CONTEXT = 1 << 30  # a window that no sequence fills


@dataclass(frozen=True)
class HiddenStateLayers:
    """Which states a drafter reads, and how many positions of them at most."""

    layers: tuple[int, ...]  # models.step.AuxHiddenStates
    window: int
    # Cached blocks at the end of a reused prefix that the target computes again, so that their
    # states come: for a drafter whose own prefix ends earlier.
    num_spared_blocks: int = 0


@dataclass(frozen=True)
class HiddenStates:
    """States of consecutive positions of one sequence."""

    start: int  # position of the first
    states: np.ndarray  # float16 [n, taps * E]

    @property
    def end(self) -> int:
        return self.start + len(self.states)

    def last(self, window: int) -> "HiddenStates":
        """The last positions alone."""
        return HiddenStates(max(self.start, self.end - window), self.states[-window:])

    def joined(self, later: "HiddenStates") -> "HiddenStates":
        """Followed by later ones; where these do not follow, they stand alone."""
        if not self.start <= later.start <= self.end:
            return later
        kept = self.states[: later.start - self.start]
        return HiddenStates(self.start, np.concatenate([kept, later.states]))


def reply_fields(
    hidden_states: Sequence[HiddenStates | None], window: int = WHOLE_CONTEXT
) -> dict[str, Any]:
    """The feature fields of VerifyReply, one entry a sequence; none at all without any.

    window: positions that the drafter looks back.
    """
    fields = _packed(hidden_states)
    return fields and {**fields, "feature_window": np.array([window], np.int32)}


def _packed(hidden_states: Sequence[HiddenStates | None]) -> dict[str, Any]:
    if not any(hidden_states):
        return {}
    parts = [part or HiddenStates(0, np.zeros((0, 1), np.float16)) for part in hidden_states]
    return {
        "hidden_state_starts": np.array([part.start for part in parts], np.int32),
        "hidden_state_lengths": np.array([len(part.states) for part in parts], np.int32),
        "hidden_states": np.concatenate([part.states.ravel() for part in parts]),
    }


def _unpacked(starts: np.ndarray, lengths: np.ndarray, states: np.ndarray) -> list[HiddenStates]:
    total = int(lengths.sum())
    rows = states.reshape(total, len(states) // max(total, 1))
    parts = split_ragged(rows, lengths)
    return [HiddenStates(int(start), part) for start, part in zip(starts, parts, strict=True)]


def request_hidden_states(request: DraftRequest) -> dict[int, HiddenStates]:
    """What a DraftRequest brings, by sequence. Raises ValueError for fields that do not fit."""
    parts = _unpacked(
        request.hidden_state_starts, request.hidden_state_lengths, request.hidden_states
    )
    return dict(zip(request.hidden_state_ids.tolist(), parts, strict=True))


class HiddenStateBuffer:
    """The engine's part: what came with verify replies and no draft request has carried yet."""

    def __init__(self) -> None:
        self._pending: dict[int, HiddenStates] = {}

    def note(self, sequence_ids: Sequence[int], reply: VerifyReply) -> None:
        """Keep what a reply brings for its sequences."""
        if not len(reply.hidden_state_lengths):
            return
        parts = _unpacked(
            reply.hidden_state_starts, reply.hidden_state_lengths, reply.hidden_states
        )
        window = int(reply.feature_window[0])
        for sequence_id, part in zip(sequence_ids, parts, strict=True):
            if len(part.states):
                known = self._pending.get(sequence_id)
                whole = known.joined(part) if known else part
                self._pending[sequence_id] = whole.last(window)

    def take(self, sequence_ids: Iterable[int]) -> dict[str, Any]:
        """The feature fields of DraftRequest; they are not kept any longer."""
        found = {i: self._pending.pop(i) for i in sequence_ids if i in self._pending}
        fields = _packed(list(found.values()))
        return fields and {"hidden_state_ids": np.array(list(found), np.int64), **fields}

    def drop(self, sequence_id: int) -> None:
        """The sequence has ended."""
        self._pending.pop(sequence_id, None)
