"""What a proposal source sees and answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from canopy.logits_processors.processor import LogitsProcessor
from canopy.protocol.hidden_states import HiddenStates
from canopy.sampling import SamplingParams
from canopy.tree import Proposal
from canopy.tree.policies import PolicySettings
from canopy.tree.survival import Calibration


@dataclass(eq=False)
class DraftSequence:
    """What the draft stage knows of one sequence; sources read it and never write it.

    `token_ids` are all committed tokens and only ever grow; the last of them is the anchor.
    """

    sequence_id: int
    token_ids: list[int]
    params: SamplingParams
    processor: LogitsProcessor | None = None  # where its options change logits


@dataclass(frozen=True)
class DraftTask:
    """One proposal to make, and the limits of its shape."""

    sequence: DraftSequence
    settings: PolicySettings
    calibration: Calibration = Calibration()  # of the source's scores, where the policy wants it


class ProposalSource(Protocol):
    """Keeps what it needs per sequence, and catches up with committed tokens by itself."""

    def propose(self, tasks: Sequence[DraftTask]) -> list[Proposal]:
        """One proposal per task, in order; the anchor alone where there is nothing to offer.

        A task that cannot be served raises; the state of every sequence stays usable.
        """
        ...

    def finish(self, sequence_id: int) -> None:
        """Drop a sequence; unknown ids do nothing."""
        ...


@runtime_checkable
class HiddenStateReader(Protocol):
    """What a source that reads the target's features offers besides."""

    num_failures: int  # passes that gave nothing, since the start

    def take_hidden_states(self, hidden_states: dict[int, HiddenStates]) -> None:
        """Positions that the target has computed, by sequence."""
        ...


class NoSource:
    """Never offers anything: decoding is plain whatever a request asks for."""

    def propose(self, tasks: Sequence[DraftTask]) -> list[Proposal]:
        """The anchors."""
        return [Proposal.of_anchor(task.sequence.token_ids[-1]) for task in tasks]

    def finish(self, sequence_id: int) -> None:
        """Nothing is kept."""
