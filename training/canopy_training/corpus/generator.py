"""The target answers prompts, many at once, in this process.

Each answer has a slot with KV blocks of its own. A slot that becomes free takes the next prompt,
whose rows share a step with the other answers' next tokens. Tokens are chosen as the server
chooses them: greedily, or by noise that is a function of the answer's seed and the position; an
answer of the int8 decoder therefore does not depend on what ran beside it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch

from canopy.acceptance import accept
from canopy.models.decoder import Decoder
from canopy.models.step_batch import AuxHiddenStates, Segment, assemble_step, to_float16
from canopy.sampling import SamplingParams
from canopy.tree import DraftTree, ProposalRow
from canopy_training.corpus.corpus import Answer

BLOCK_SIZE = 16


@dataclass(frozen=True)
class Question:
    """A prompt to answer."""

    number: int
    token_ids: np.ndarray  # int32 [P]
    params: SamplingParams


@dataclass(frozen=True)
class Keeping:
    """What is kept of every position."""

    aux_hidden_state_layers: tuple[int, ...]
    num_top: int


@dataclass
class _Slot:
    block_table: list[int]
    question: Question
    answer_ids: list[int] = field(default_factory=list)
    hidden_states: list[np.ndarray] = field(default_factory=list)
    top_ids: list[np.ndarray] = field(default_factory=list)
    top_log_probs: list[np.ndarray] = field(default_factory=list)

    def segment(self) -> Segment:
        """The rows to compute next: the prompt at first, then the last token."""
        prompt = self.question.token_ids
        rows = np.array(self.answer_ids[-1:]) if self.answer_ids else prompt
        context_length = len(prompt) + len(self.answer_ids) - 1 if self.answer_ids else 0
        chain = np.arange(len(rows)) - 1
        return Segment(context_length, self.block_table, rows, chain, np.array([len(rows) - 1]))

    def take(self, states: np.ndarray, top: tuple[np.ndarray, np.ndarray], token: int) -> None:
        self.hidden_states.append(states)
        self.top_ids.append(top[0])
        self.top_log_probs.append(top[1])
        self.answer_ids.append(token)

    @property
    def is_done(self) -> bool:
        params = self.question.params
        ended = self.answer_ids[-1] in params.stop_token_ids
        return ended or len(self.answer_ids) >= params.max_tokens

    def answer(self) -> Answer:
        return Answer(
            number=self.question.number,
            is_sampled=self.question.params.temperature > 0.0,
            prompt_ids=self.question.token_ids.astype(np.int32),
            answer_ids=np.array(self.answer_ids, np.int32),
            hidden_states=np.concatenate(self.hidden_states),
            top_ids=np.stack(self.top_ids),
            top_log_probs=np.stack(self.top_log_probs),
        )


class Answering:
    """Answers questions with one decoder."""

    def __init__(
        self, decoder: Decoder, num_places: int, max_length: int, keeping: Keeping
    ) -> None:
        """max_length: most tokens of a prompt and its answer."""
        blocks = -(-max_length // BLOCK_SIZE)
        self._decoder = decoder
        self._cache = decoder.new_cache(num_places * blocks, BLOCK_SIZE)
        self._free = [list(range(i * blocks, (i + 1) * blocks)) for i in range(num_places)]
        self._keeping = keeping

    def answer(self, questions: Iterable[Question]) -> Iterator[Answer]:
        """The answers, each when it is complete."""
        waiting, running = iter(questions), list[_Slot]()
        while True:
            while self._free and (question := next(waiting, None)):
                running.append(_Slot(self._free.pop(), question))
            if not running:
                return
            self._step(running)
            for slot in [slot for slot in running if slot.is_done]:
                running.remove(slot)
                self._free.append(slot.block_table)
                yield slot.answer()

    def _step(self, slots: Sequence[_Slot]) -> None:
        segments = [slot.segment() for slot in slots]
        batch = assemble_step(segments, BLOCK_SIZE, str(self._cache.device))
        hidden_size = self._decoder.config.hidden_size
        aux_hidden_states = AuxHiddenStates.of(
            self._keeping.aux_hidden_state_layers, batch, hidden_size
        )
        logits = self._decoder.forward(batch, self._cache, aux_hidden_states)
        log_probs, ids = torch.topk(torch.log_softmax(logits, dim=-1), self._keeping.num_top)
        top = ids.int().cpu().numpy(), log_probs.half().cpu().numpy()
        states = to_float16(aux_hidden_states.states)
        rows, starts = logits.cpu().numpy(), pairwise(batch.row_starts.tolist())
        for index, (slot, (first, end)) in enumerate(zip(slots, starts, strict=True)):
            token = _next_token(rows[index], slot)
            slot.take(states[first:end], (top[0][index], top[1][index]), token)


def _next_token(logits: np.ndarray, slot: _Slot) -> int:
    """The token after the slot's last one, sampled as the server does. logits: float32 [V]."""
    question = slot.question
    num_tokens = len(question.token_ids) + len(slot.answer_ids)
    anchor = DraftTree(np.zeros(1, np.int32), np.full(1, -1, np.int32))
    rows = [ProposalRow.empty()]
    return accept(anchor, rows, logits[None], question.params, num_tokens).bonus
