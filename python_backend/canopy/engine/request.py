"""One request and the sequence that answers it."""

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from canopy.engine.output import Delta, Sink, TokenLogprob
from canopy.engine.trace import RoundTrace
from canopy.protocol.messages import Finish
from canopy.sampling import PolicyName, SamplingParams
from canopy.text.detokenizer import Detokenizer
from canopy.text.stop_strings import StopStrings

# Enough prompt text for a tokenizer to decode the first emitted token as in the middle of a text.
_DETOKENIZER_CONTEXT = 6

_FINISH_REASONS = {Finish.STOP: "stop", Finish.LENGTH: "length"}


@dataclass(frozen=True)
class GenerationRequest:
    """A checked request: it fits the model and the cache."""

    prompt_text: str
    prompt_token_ids: np.ndarray  # int32 [num_input_tokens], at least one
    params: SamplingParams
    stop_strings: tuple[str, ...] = ()
    stream: bool = False
    prepend_prompt: bool = False
    timeout_s: float = 600.0
    trace: bool = False  # tell every round's tree
    origins: Mapping[str, str] = field(default_factory=dict)  # of option values, see the report


@dataclass
class SpeculationCounts:
    """What speculation did for one sequence."""

    num_rounds: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_preemptions: int = 0
    num_cached_tokens: int = 0

    def add_round(self, num_drafted: int, num_accepted: int) -> None:
        self.num_rounds += 1
        self.num_drafted += num_drafted
        self.num_accepted += num_accepted

    def report(self, params: SamplingParams, origins: Mapping[str, str]) -> dict[str, Any]:
        """The short report of the last response; acceptance length counts the bonus token.

        origins: by option, where its value comes from unless it is Canopy's own default.
        """
        rounds = max(self.num_rounds, 1)
        return {
            "policy": params.policy.name.lower(),
            "acceptance": params.acceptance.name.lower(),
            "seed": params.seed,
            "temperature": params.temperature,
            "top_k": params.top_k,
            "top_p": params.top_p,
            "min_p": params.min_p,
            "typical_p": params.typical_p,
            "repetition_penalty": params.repetition_penalty,
            "presence_penalty": params.presence_penalty,
            "frequency_penalty": params.frequency_penalty,
            "max_tokens": params.max_tokens,
            "min_tokens": params.min_tokens,
            "node_budget": params.node_budget,
            "origins": dict(origins),
            "rounds": self.num_rounds,
            "drafted_nodes": self.num_drafted,
            "accepted_tokens": self.num_accepted,
            "acceptance_length": round(1 + self.num_accepted / rounds, 4),
            "nodes_per_round": round(self.num_drafted / rounds, 4),
            "preemptions": self.num_preemptions,
            "cached_prompt_tokens": self.num_cached_tokens,
        }


_sequence_ids = itertools.count(1)


@dataclass(eq=False)
class EngineSequence:
    """The tokens of one request, from admission to its last response.

    `token_ids` are prompt and emitted tokens; the last of them is the anchor of the next round.
    """

    request: GenerationRequest
    sink: Sink
    decode: Callable[[list[int]], str]
    id: int = field(default_factory=lambda: next(_sequence_ids))
    arrived_s: float = field(default_factory=time.monotonic)
    emitted_s: float | None = None  # when its last round emitted
    counts: SpeculationCounts = field(default_factory=SpeculationCounts)
    num_losses: int = 0  # times since its last round that the verifier did not know it
    is_prefilled: bool = False  # the verifier holds the KV of all tokens but the anchor

    def __post_init__(self) -> None:
        self.token_ids = [int(token_id) for token_id in self.request.prompt_token_ids]
        node_budget = self.request.params.node_budget
        self.trace = RoundTrace(self.decode, node_budget) if self.request.trace else None
        self._detokenizer = Detokenizer(self.decode, self.token_ids[-_DETOKENIZER_CONTEXT:])
        self._stop_strings = StopStrings(self.request.stop_strings)
        self._pending_text = self.request.prompt_text if self.request.prepend_prompt else ""
        self._num_shown = len(self.token_ids)  # tokens behind the pieces that were made
        self._pending_logprobs: list[TokenLogprob] = []
        self._prompt_logprobs: list[TokenLogprob] = []
        if self.request.params.prompt_logprobs >= 0:
            self._prompt_logprobs.append(TokenLogprob(self.token_ids[0], None, 0, ()))

    @property
    def num_emitted(self) -> int:
        return len(self.token_ids) - self._num_input_tokens

    @property
    def _num_input_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def max_depth(self) -> int:
        """Deepest drafted node that can still be emitted before the bonus token."""
        return self.request.params.max_tokens - self.num_emitted - 1

    @property
    def speculates(self) -> bool:
        """Whether its request asks for trees at all."""
        params = self.request.params
        return params.policy is not PolicyName.OFF and params.node_budget > 0

    @property
    def wants_draft(self) -> bool:
        return self.is_prefilled and self.speculates and self.max_depth > 0

    @property
    def is_overdue(self) -> bool:
        return time.monotonic() - self.arrived_s > self.request.timeout_s

    def record_prompt_logprobs(self, first: int, found: Iterable[TokenLogprob]) -> None:
        """Those of the prompt tokens from position `first` on; told again, they replace."""
        self._prompt_logprobs[first:] = found

    def emit(
        self, token_ids: list[int], finish: Finish, logprobs: Sequence[TokenLogprob] = ()
    ) -> Delta | None:
        """Append a round's tokens; returns what to send now, if anything.

        A stop string that is complete within the round ends the sequence there: later tokens of
        the round were never emitted.
        """
        for index, token_id in enumerate(token_ids):
            self.token_ids.append(token_id)
            self._pending_logprobs += logprobs[index : index + 1]
            is_end = finish is Finish.STOP and index == len(token_ids) - 1
            text = "" if is_end else self._detokenizer.push(token_id)
            if self._show(text):
                return self._delta("stop")
        if finish is not Finish.NONE:
            if self._show(self._detokenizer.flush()):
                return self._delta("stop")
            self._pending_text += self._stop_strings.flush()
            return self._delta(_FINISH_REASONS[finish])
        return self._delta() if self.request.stream and self._pending_text else None

    def _show(self, text: str) -> bool:
        may_stop = self.num_emitted > self.request.params.min_tokens
        shown, stopped = self._stop_strings.push(text, may_stop)
        self._pending_text += shown
        return stopped

    def _delta(self, finish_reason: str | None = None) -> Delta:
        """What came since the last piece; with the report where it ends here."""
        shown = tuple(self.token_ids[self._num_shown :])
        request = self.request
        delta = Delta(
            self._pending_text,
            len(shown),
            self._num_input_tokens,
            finish_reason,
            self.counts.report(request.params, request.origins) if finish_reason else None,
            token_ids=shown,
            logprobs=tuple(self._pending_logprobs),
            prompt_logprobs=tuple(self._prompt_logprobs),
        )
        self._num_shown = len(self.token_ids)
        self._pending_text, self._pending_logprobs, self._prompt_logprobs = "", [], []
        return delta
