"""Options against `transformers` on the same logits, at every node with the node's own history."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from canopy.logits_processors.application import apply_edits
from canopy.logits_processors.edits import LogitEdits, concatenated
from canopy.logits_processors.factory import LogitsProcessors
from canopy.sampling import SamplingParams

VOCAB_SIZE = 70
PROMPT = [3, 9, 9, 41, 69]
EMITTED = [9, 12, 3, 12]
PATHS = [[], [12], [12, 3], [5], [5, 41, 69], [7, 7, 7]]


def logits_of(seed: int, num_rows: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, (num_rows, VOCAB_SIZE)).astype(np.float32)


def processed(params: SamplingParams, logits: np.ndarray, paths=PATHS) -> np.ndarray:
    processor = LogitsProcessors(VOCAB_SIZE).start(params, PROMPT + EMITTED, len(EMITTED))
    assert processor is not None
    changed = torch.from_numpy(logits.copy())
    apply_edits(changed, processor.edits(paths))
    return changed.numpy()


def by_transformers(processors, logits: np.ndarray, paths=PATHS) -> np.ndarray:
    rows = []
    for path, row in zip(paths, logits, strict=True):
        token_ids = torch.tensor([PROMPT + EMITTED + path])
        scores = torch.from_numpy(row.copy())[None]
        for processor in processors:
            scores = processor(token_ids, scores)
        rows.append(scores[0].numpy())
    return np.stack(rows)


WORDS = ((7,), (12, 3), (69, 41, 9), (7, 7, 5), (3, 12, 60))
BIAS = ((3, 2.5), (12, -4.0), (69, -100.0))


@pytest.mark.parametrize(
    ("params", "processors"),
    [
        ({"repetition_penalty": 1.7}, [RepetitionPenaltyLogitsProcessor(1.7)]),
        ({"repetition_penalty": 0.6}, [RepetitionPenaltyLogitsProcessor(0.6)]),
        ({"bad_words_ids": WORDS}, [NoBadWordsLogitsProcessor([list(w) for w in WORDS])]),
        ({"logit_bias": BIAS}, [SequenceBiasLogitsProcessor({(t,): b for t, b in BIAS})]),
        (
            {"min_tokens": 6, "stop_token_ids": (4, 12)},
            [MinNewTokensLengthLogitsProcessor(len(PROMPT), 6, [4, 12])],
        ),
        (
            {"logit_bias": BIAS, "repetition_penalty": 1.3, "bad_words_ids": WORDS},
            [
                SequenceBiasLogitsProcessor({(t,): b for t, b in BIAS}),
                RepetitionPenaltyLogitsProcessor(1.3),
                NoBadWordsLogitsProcessor([list(w) for w in WORDS]),
            ],
        ),
    ],
    ids=["repetition", "repetition below 1", "bad words", "bias", "min tokens", "all"],
)
def test_each_option_is_that_of_transformers(params, processors):
    logits = logits_of(1, len(PATHS))
    expected = by_transformers(processors, logits)
    np.testing.assert_allclose(processed(SamplingParams(**params), logits), expected, rtol=1e-6)
    assert (expected != logits).any()


def test_frequency_and_presence_penalty_count_emitted_tokens_alone():
    params = SamplingParams(frequency_penalty=0.5, presence_penalty=-1.25)
    logits = logits_of(2, len(PATHS))
    expected = logits.astype(np.float64)
    for row, path in enumerate(PATHS):
        for token_id in {*EMITTED, *path}:
            expected[row, token_id] -= 0.5 * (EMITTED + path).count(token_id) - 1.25
    np.testing.assert_allclose(processed(params, logits), expected, rtol=1e-5, atol=1e-5)


def test_only_allowed_tokens_are_left():
    allowed = (0, 31, 32, 33, 64, 69)
    changed = processed(SamplingParams(allowed_token_ids=allowed), logits_of(3, len(PATHS)))
    for row in changed:
        assert np.flatnonzero(row > -np.inf).tolist() == list(allowed)


@settings(max_examples=50, deadline=None)
@given(
    path=st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=6),
    committed=st.integers(0, 6),
    seed=st.integers(0, 99),
)
def test_a_path_counts_as_if_it_had_been_committed(path, committed, seed):
    """What a node's history does is what the same tokens do once they were emitted."""
    params = SamplingParams(
        repetition_penalty=1.2,
        frequency_penalty=0.7,
        bad_words_ids=WORDS,
        min_tokens=7,
        stop_token_ids=(2, 3),
    )
    processors, cut = LogitsProcessors(VOCAB_SIZE), min(committed, len(path))
    first = processors.start(params, PROMPT, 0)
    grown = processors.start(params, PROMPT, 0)
    grown.commit(path[:cut])
    again = processors.start(params, PROMPT + path[:cut], cut)
    found = []
    for processor, rest in ((first, path), (grown, path[cut:]), (again, path[cut:])):
        logits = torch.from_numpy(logits_of(seed, 1))
        apply_edits(logits, processor.edits([rest]))
        found.append(logits.numpy())
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[1], found[2])


def test_the_edits_of_several_sequences_stay_apart():
    processors = LogitsProcessors(VOCAB_SIZE)
    all_params = [
        SamplingParams(allowed_token_ids=(1, 2)),
        SamplingParams(logit_bias=((5, 1.0),), repetition_penalty=2.0),
        SamplingParams(bad_words_ids=((9,),), allowed_token_ids=(9, 10)),
    ]
    logits, alone, parts = logits_of(4, 3), [], []
    for row, params in enumerate(all_params):
        edits = processors.start(params, PROMPT, 0).edits([[]])
        parts.append(edits.moved(row))
        own = torch.from_numpy(logits[row : row + 1].copy())
        apply_edits(own, edits)
        alone.append(own.numpy())
    together = torch.from_numpy(logits.copy())
    apply_edits(together, concatenated(parts))
    np.testing.assert_array_equal(together.numpy(), np.concatenate(alone))


def test_nothing_is_made_where_nothing_is_asked():
    processors = LogitsProcessors(VOCAB_SIZE)
    assert processors.start(SamplingParams(stop_token_ids=(1,), top_k=3), PROMPT, 0) is None
    assert LogitEdits.none().is_empty
    assert concatenated([]).is_empty


@pytest.mark.parametrize(
    "option",
    [
        {"logit_bias": ((VOCAB_SIZE, 1.0),)},
        {"allowed_token_ids": (VOCAB_SIZE,)},
        {"bad_words_ids": ((1, VOCAB_SIZE),)},
    ],
)
def test_a_token_outside_the_vocabulary_is_refused(option):
    with pytest.raises(ValueError, match="outside"):
        LogitsProcessors(VOCAB_SIZE).start(SamplingParams(**option), PROMPT, 0)
