"""What one stage knows of the sequences, so that each step sends only changes."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from canopy.engine.request import EngineSequence
from canopy.protocol.sequence_updates import StartedSequence, pack_started


class StageSyncState:
    """Known sequences of one stage, and those it still has to drop."""

    def __init__(self) -> None:
        self._num_told: dict[int, int] = {}  # sequence id -> tokens the stage knows
        self._finished_ids: list[int] = []

    @property
    def has_pending_finishes(self) -> bool:
        """Sequences finished that the stage still holds."""
        return bool(self._finished_ids)

    def finish(self, sequence_id: int) -> None:
        """The stage is to drop a sequence; nothing happens when it never heard of it."""
        if self._num_told.pop(sequence_id, None) is not None:
            self._finished_ids.append(sequence_id)

    def forget(self, sequence_id: int) -> None:
        """The stage has dropped the sequence by itself."""
        self._num_told.pop(sequence_id, None)

    def forget_all(self) -> None:
        """The stage failed: whatever it may still hold is dropped, the rest started again."""
        self._finished_ids += self._num_told
        self._num_told.clear()

    def starts(self, sequences: Iterable[EngineSequence]) -> dict[str, Any]:
        """Fields of SequenceChanges: finished ids, and every sequence not known yet."""
        started = [s for s in sequences if s.id not in self._num_told]
        finished, self._finished_ids = self._finished_ids, []
        self._num_told.update((s.id, len(s.token_ids)) for s in started)
        return {"finished_ids": np.array(finished, np.int64)} | pack_started(
            [_started(s) for s in started]
        )

    def updates(self, sequences: Iterable[EngineSequence]) -> dict[str, Any]:
        """Fields of DraftRequest: the tokens that known sequences gained since they were told."""
        grown = [(s, s.token_ids[self._num_told[s.id] :]) for s in sequences]
        grown = [(s, tokens) for s, tokens in grown if tokens]
        self._num_told.update((s.id, len(s.token_ids)) for s, _ in grown)
        return {
            "updated_ids": np.array([s.id for s, _ in grown], np.int64),
            "updated_lengths": np.array([len(tokens) for _, tokens in grown], np.int32),
            "updated_token_ids": np.array([t for _, tokens in grown for t in tokens], np.int32),
        }


def _started(sequence: EngineSequence) -> StartedSequence:
    return StartedSequence(
        sequence_id=sequence.id,
        token_ids=np.array(sequence.token_ids, np.int32),
        num_emitted=sequence.num_emitted,
        params=sequence.request.params,
    )
