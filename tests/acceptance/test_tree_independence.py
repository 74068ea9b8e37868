"""Greedy, coupled and target_only emit the same tokens whatever tree stands below the anchor."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from canopy.acceptance import accept
from canopy.logits_processors.application import apply_edits
from canopy.logits_processors.factory import LogitsProcessors
from canopy.sampling import Acceptance, SamplingParams
from canopy.tree import DraftTree, ProposalRow

VOCAB_SIZE = 5
PROMPT = (1, 2)
NUM_TOKENS = 9
STOPS = (3,)
PROCESSORS = LogitsProcessors(VOCAB_SIZE)

greedy = SamplingParams(temperature=0.0, acceptance=Acceptance.COUPLED)
coupled = SamplingParams(temperature=0.8, acceptance=Acceptance.COUPLED)
PARAMS = {
    "temperature 0": greedy,
    "greedy": SamplingParams(acceptance=Acceptance.GREEDY),
    "coupled": coupled,
    "coupled, filtered": replace(coupled, top_k=4, top_p=0.9, min_p=0.05),
    "coupled, at least 6 tokens": replace(coupled, min_tokens=6, stop_token_ids=STOPS),
    "greedy, at least 6 tokens": replace(greedy, min_tokens=6, stop_token_ids=STOPS),
    "target_only": SamplingParams(acceptance=Acceptance.TARGET_ONLY),
    "greedy, penalized": replace(greedy, repetition_penalty=1.6, frequency_penalty=0.4),
    "coupled, penalized": replace(coupled, presence_penalty=1.5, logit_bias=((3, 2.5), (1, -9.0))),
    "coupled, bad words": replace(coupled, bad_words_ids=((2,), (4, 0), (3, 1, 3)), typical_p=0.8),
    "coupled, allowed tokens": replace(coupled, allowed_token_ids=(1, 3, 4), top_k=2),
}


def toy_logits(prefix):
    return np.random.default_rng([17, *prefix]).normal(0, 2, VOCAB_SIZE).astype(np.float32)


def decode_round(sequence, tree, params):
    """The sequence after one round of the production path over the toy target."""
    prefixes = [[*sequence, *tree.token_ids[tree.path(node)]] for node in range(len(tree.parents))]
    logits = np.stack([toy_logits(prefix) for prefix in prefixes])
    processor = PROCESSORS.start(params, sequence, len(sequence) - len(PROMPT))
    if processor is not None:
        apply_edits(torch.from_numpy(logits), processor.edits(tree.token_paths))
    rows = [ProposalRow.empty()] * len(tree.parents)
    result = accept(tree, rows, logits, params, len(sequence))
    assert all(tree.parents[b] == a for a, b in zip([0, *result.path], result.path, strict=False))
    return [*sequence, *result.token_ids(tree)]


def plain_decoding(params, num_tokens):
    sequence = list(PROMPT)
    for _ in range(num_tokens):
        sequence = decode_round(sequence, DraftTree.of_anchor(sequence[-1]), params)
    return sequence


@st.composite
def trees(draw, anchor):
    num_nodes = draw(st.integers(0, 12))
    parents = [-1] + [draw(st.integers(0, node)) for node in range(num_nodes)]
    tokens = [anchor] + [draw(st.integers(0, VOCAB_SIZE - 1)) for _ in range(num_nodes)]
    return DraftTree(np.array(tokens, np.int32), np.array(parents, np.int32))


@pytest.mark.parametrize("params_name", PARAMS)
@settings(max_examples=25, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**64 - 1))
def test_the_text_is_that_of_plain_decoding(params_name, data, seed):
    params = replace(PARAMS[params_name], seed=seed)
    expected = plain_decoding(params, NUM_TOKENS)
    sequence = list(PROMPT)
    while len(sequence) < len(expected):
        sequence = decode_round(sequence, data.draw(trees(sequence[-1])), params)
    assert sequence[: len(expected)] == expected


def test_a_tree_that_holds_the_text_is_accepted_to_its_end():
    expected = plain_decoding(coupled, NUM_TOKENS)
    path = expected[len(PROMPT) : len(PROMPT) + 4]
    chain = DraftTree(np.array([PROMPT[-1], *path], np.int32), np.array([-1, 0, 1, 2, 3], np.int32))
    assert decode_round(list(PROMPT), chain, coupled) == expected[: len(PROMPT) + 5]


def test_no_stop_token_is_emitted_before_min_tokens():
    reaches_stop = 0
    for seed in range(40):
        params = replace(PARAMS["coupled, at least 6 tokens"], seed=seed)
        emitted = plain_decoding(params, NUM_TOKENS)[len(PROMPT) :]
        assert STOPS[0] not in emitted[:6]
        reaches_stop += STOPS[0] in emitted[6:]
    assert reaches_stop > 0


def test_unusable_logits_are_an_error_and_not_a_token():
    tree = DraftTree.of_anchor(0)
    for bad in (np.full((1, 4), np.nan), np.full((1, 4), -np.inf), np.array([[0, np.nan, 1, 2]])):
        for params in (greedy, coupled):
            with pytest.raises(ValueError, match="NaN or infinity"):
                accept(tree, [ProposalRow.empty()], bad.astype(np.float32), params, 2)
