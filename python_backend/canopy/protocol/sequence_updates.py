"""Sequences that a stage takes up: SequenceChanges to records and back."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from canopy.protocol.messages import SequenceChanges, array_fields
from canopy.sampling import Acceptance, PolicyName, SamplingParams
from canopy.tree.forest import offsets_of, split_ragged

# Message field -> SamplingParams field, for every field that is one number.
_SCALARS = {
    "started_max_tokens": "max_tokens",
    "started_min_tokens": "min_tokens",
    "started_seeds": "seed",
    "started_temperatures": "temperature",
    "started_top_ks": "top_k",
    "started_top_ps": "top_p",
    "started_min_ps": "min_p",
    "started_typical_ps": "typical_p",
    "started_repetition_penalties": "repetition_penalty",
    "started_presence_penalties": "presence_penalty",
    "started_frequency_penalties": "frequency_penalty",
    "started_logprobs": "logprobs",
    "started_prompt_logprobs": "prompt_logprobs",
    "started_acceptances": "acceptance",
    "started_policies": "policy",
    "started_node_budgets": "node_budget",
}


@dataclass(frozen=True)
class StartedSequence:
    """A sequence with every token known so far; the last `num_emitted` of them were emitted."""

    sequence_id: int
    token_ids: np.ndarray  # int32 [num_tokens]
    num_emitted: int
    params: SamplingParams


@dataclass(frozen=True)
class Started:
    """The sequences of a message that a stage can take up, and why it cannot take up the others."""

    sequences: list[StartedSequence] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)  # sequence id -> the reason


def pack_started(started: Sequence[StartedSequence]) -> dict[str, Any]:
    """The `started_*` fields of SequenceChanges; none when nothing starts."""
    if not started:
        return {}
    params = [s.params for s in started]
    grammars = [p.grammar.encode() for p in params]
    packed: dict[str, Any] = {
        "started_ids": [s.sequence_id for s in started],
        "started_lengths": [len(s.token_ids) for s in started],
        "started_token_ids": np.concatenate([s.token_ids for s in started]),
        "started_num_emitted": [s.num_emitted for s in started],
        "started_num_stops": [len(p.stop_token_ids) for p in params],
        "started_stop_token_ids": [t for p in params for t in p.stop_token_ids],
        "started_num_biases": [len(p.logit_bias) for p in params],
        "started_bias_token_ids": [token_id for p in params for token_id, _ in p.logit_bias],
        "started_biases": [bias for p in params for _, bias in p.logit_bias],
        "started_num_allowed": [len(p.allowed_token_ids) for p in params],
        "started_allowed_token_ids": [t for p in params for t in p.allowed_token_ids],
        "started_num_bad_words": [len(p.bad_words_ids) for p in params],
        "started_bad_word_lengths": [len(word) for p in params for word in p.bad_words_ids],
        "started_bad_words_ids": [t for p in params for word in p.bad_words_ids for t in word],
        "started_grammar_lengths": [len(grammar) for grammar in grammars],
        "started_grammars": list(b"".join(grammars)),
        **{name: [getattr(p, key) for p in params] for name, key in _SCALARS.items()},
    }
    # Typed from the start: large and small seeds together would become floats, and lose bits.
    dtypes = array_fields(SequenceChanges)
    return {name: np.array(values, dtypes[name]) for name, values in packed.items()}


def started_sequences(changes: SequenceChanges) -> Started:
    """The inverse of `pack_started`. Raises ValueError for ragged fields that do not fit."""
    started = Started()
    if not (len(changes.started_ids) or len(changes.started_token_ids)):
        return started
    tokens = split_ragged(changes.started_token_ids, changes.started_lengths)
    lists = _lists(changes)
    for index, sequence_id in enumerate(changes.started_ids.tolist()):
        try:
            params = _params(changes, index, {name: own[index] for name, own in lists.items()})
        except ValueError as error:
            started.refused[sequence_id] = str(error)
            continue
        num_emitted = int(changes.started_num_emitted[index])
        started.sequences.append(StartedSequence(sequence_id, tokens[index], num_emitted, params))
    return started


def _lists(changes: SequenceChanges) -> dict[str, Sequence[Any]]:
    """Every field of SamplingParams that is no number, by sequence. Raises ValueError."""
    words = _tuples(changes.started_bad_words_ids, changes.started_bad_word_lengths)
    ends = offsets_of(changes.started_num_bad_words).tolist()
    if ends[-1] != len(words):
        raise ValueError(f"there are {len(words)} bad words and {ends[-1]} are told")
    bias_ids = _tuples(changes.started_bias_token_ids, changes.started_num_biases)
    biases = _tuples(changes.started_biases, changes.started_num_biases)
    return {
        "stop_token_ids": _tuples(changes.started_stop_token_ids, changes.started_num_stops),
        "allowed_token_ids": _tuples(
            changes.started_allowed_token_ids, changes.started_num_allowed
        ),
        "logit_bias": [
            tuple(zip(ids, values, strict=True))
            for ids, values in zip(bias_ids, biases, strict=True)
        ],
        "grammar": [
            part.tobytes().decode()
            for part in split_ragged(changes.started_grammars, changes.started_grammar_lengths)
        ],
        "bad_words_ids": [tuple(words[first:end]) for first, end in pairwise(ends)],
    }


def _tuples(values: np.ndarray, lengths: np.ndarray) -> list[tuple[Any, ...]]:
    return [tuple(part.tolist()) for part in split_ragged(values, lengths)]


def _params(changes: SequenceChanges, index: int, lists: dict[str, Any]) -> SamplingParams:
    values = {key: getattr(changes, name)[index].item() for name, key in _SCALARS.items()}
    values["acceptance"] = Acceptance(values["acceptance"])
    values["policy"] = PolicyName(values["policy"])
    return SamplingParams(**values, **lists)
