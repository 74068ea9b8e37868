"""Batches for the block drafter, out of a corpus.

An example is an anchor at index a of a prompt with its answer: the drafter sees the features of
the positions before a and the anchor's token, and row k is asked for the distribution of token a +
k + 1, which the target told when it wrote the answer.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch

from canopy.text.tokenizer import Tokenizer
from canopy_kernels.ngram.prompt_lookup import prompt_lookup
from canopy_training.corpus.corpus import Answer, Corpus

PROMPT_WEIGHT = 0.1  # of a prompt's token in the choice of the draft vocabulary, an answer's is 1
HELD_OUT_PERIOD = 32  # of 64 prompts two are held out, one of each parity
MAX_PROMPT_TOKENS = 192  # the last ones, of a training sequence
_SCALE_SAMPLE = 64  # answers read for the taps' scales


@dataclass(frozen=True)
class DrafterBatch:
    """S sequences, L positions, A anchors each, K rows a block, T target tokens a row."""

    hidden_states: torch.Tensor  # float16 [S, L, taps * E]
    positions: torch.Tensor  # int64 [S, L]
    anchors: torch.Tensor  # int64 [S, A] index of the anchor in L, at least 1
    parent_ids: torch.Tensor  # int64 [S, A, K] target ids; [..., 0] is the anchor's
    label_ids: torch.Tensor  # int64 [S, A, K, T] draft ids, best first; where not in it 0
    label_probs: torch.Tensor  # float32 [S, A, K, T] 0 where not in the draft vocabulary
    next_ids: torch.Tensor  # int64 [S, A, K] target ids of the tokens that came
    copied_ids: (
        torch.Tensor
    )  # int64 [S, A, K] of the latest match, see canopy_kernels.ngram.prompt_lookup
    match_lengths: torch.Tensor  # int64 [S, A]
    is_kept: torch.Tensor  # bool [S, A, K] rows that exist and are asked for

    def to(self, device: str) -> "DrafterBatch":
        """A copy on a device."""
        return DrafterBatch(*(getattr(self, f.name).to(device) for f in fields(self)))


def is_held_out(answer_number: int) -> bool:
    """Whether an answer is for evaluation; greedy and sampled ones alike."""
    return answer_number // 2 % HELD_OUT_PERIOD == 0


def draft_vocabulary(corpus: Corpus, size: int, further_counts: np.ndarray) -> np.ndarray:
    """int64 [<= size], ascending: the ids that the target uses most.

    further_counts: [vocabulary] of tokens in text that the target has not answered yet.
    """
    counts = PROMPT_WEIGHT * further_counts
    for answer in corpus:
        np.add.at(counts, answer.answer_ids, 1.0)
        np.add.at(counts, answer.prompt_ids, PROMPT_WEIGHT)
    return np.sort(np.argsort(-counts, kind="stable")[:size])


def prompt_counts(prompts: Path, tokenizer: Tokenizer, vocab_size: int) -> np.ndarray:
    """float64 [vocabulary]: tokens of a file of prompts, JSON lines with `prompt`."""
    counts = np.zeros(vocab_size)
    with prompts.open(encoding="utf-8") as lines:
        for line in lines:
            np.add.at(counts, tokenizer.encode(json.loads(line)["prompt"]), 1.0)
    return counts


def aux_layer_scales(corpus: Corpus) -> np.ndarray:
    """float32 [taps]: root mean square of each tap; an answer's first position is left out."""
    squares = [
        np.square(corpus[index].hidden_states[1:].astype(np.float32)).mean(axis=(0, 2))
        for index in range(min(len(corpus), _SCALE_SAMPLE))
        if len(corpus[index].hidden_states) > 1
    ]
    return np.sqrt(np.mean(squares, axis=0)).astype(np.float32)


class Batches:
    """Draws batches; the same generator state gives the same batch of the same answers."""

    def __init__(self, draft_ids: np.ndarray, vocab_size: int, block_size: int) -> None:
        self._draft_of = np.full(vocab_size, -1, np.int64)
        self._draft_of[draft_ids] = np.arange(len(draft_ids))
        self._block_size = block_size

    def of(
        self,
        answers: Sequence[Answer],
        num_anchors: int,
        generator: np.random.Generator,
        decay: float,
    ) -> DrafterBatch:
        """A batch; row k of a block is kept with probability exp(-decay * k)."""
        parts = [self._part(answer, num_anchors, generator, decay) for answer in answers]
        length = max(len(part["hidden_states"]) for part in parts)
        for part in parts:
            for name in ("hidden_states", "positions"):
                gap = [(0, length - len(part[name])), *[(0, 0)] * (part[name].ndim - 1)]
                part[name] = np.pad(part[name], gap)
        return DrafterBatch(
            *(torch.from_numpy(np.stack([p[f.name] for p in parts])) for f in fields(DrafterBatch))
        )

    def _part(
        self, answer: Answer, num_anchors: int, generator: np.random.Generator, decay: float
    ) -> dict[str, np.ndarray]:
        num_prompt, num_tokens = len(answer.prompt_ids), len(answer.token_ids)
        first = max(0, num_prompt - MAX_PROMPT_TOKENS)
        anchors = _anchors(max(num_prompt - 1, first + 1), num_tokens - 1, num_anchors, generator)
        rows = np.arange(self._block_size)
        index = anchors[:, None] + rows  # of the parent of each row
        exists = index + 1 < num_tokens
        parents = np.minimum(index, num_tokens - 2)
        label = np.maximum(parents + 1 - num_prompt, 0)  # row of top_ids
        draft_ids = self._draft_of[np.asarray(answer.top_ids)[label]]
        probs = np.exp(np.asarray(answer.top_log_probs)[label].astype(np.float32))
        wanted = generator.random(index.shape) < np.exp(-decay * rows)
        hidden_states = np.asarray(answer.hidden_states[first:])
        token_ids = answer.token_ids.astype(np.int64)
        copies = [prompt_lookup(token_ids[: a + 1], self._block_size) for a in anchors.tolist()]
        return {
            "hidden_states": hidden_states.reshape(len(hidden_states), -1),
            "positions": first + np.arange(len(hidden_states)),
            "anchors": anchors - first,
            "parent_ids": token_ids[parents],
            "label_ids": np.maximum(draft_ids, 0),
            "label_probs": np.where(draft_ids >= 0, probs, np.float32(0.0)),
            "next_ids": token_ids[parents + 1],
            "copied_ids": np.stack([following for _, following in copies]).astype(np.int64),
            "match_lengths": np.array([length for length, _ in copies], np.int64),
            "is_kept": exists & wanted,
        }


def _anchors(first: int, end: int, num: int, generator: np.random.Generator) -> np.ndarray:
    """int64 [num] of first..end-1, distinct where there are enough."""
    choices = np.arange(first, max(end, first + 1))
    return generator.choice(choices, num, replace=len(choices) < num).astype(np.int64)
