"""Rounds of every acceptance mode follow the processed target; seeds give independent answers."""

from functools import cache

import numpy as np
import pytest
import torch

from canopy.acceptance import accept, draft_noise, draw_children
from canopy.logits_processors.application import apply_edits
from canopy.logits_processors.candidates import processed_candidates
from canopy.logits_processors.factory import LogitsProcessors
from canopy.sampling import Acceptance, SamplingParams
from canopy.tree import DraftTree, ProposalRow
from canopy_gateway.answers import choice_seed

VOCAB_SIZE = 6
PROMPT = [4, 1, 1]
PROCESSORS = LogitsProcessors(VOCAB_SIZE)
CHI_SQUARE_LIMIT = 31.8  # quantile at 1e-4 of 8 degrees of freedom, more than any test here has
OPTIONS = {
    "penalties": {
        "repetition_penalty": 1.8,
        "frequency_penalty": 0.9,
        "presence_penalty": 0.4,
        "temperature": 0.9,
    },
    "bias and bans": {
        "logit_bias": ((3, 1.5), (0, -2.0)),
        "bad_words_ids": ((5,), (1, 2)),
        "temperature": 1.1,
    },
    "allowed and minimum": {
        "allowed_token_ids": (0, 1, 2, 3),
        "stop_token_ids": (2,),
        "min_tokens": 1,
        "min_p": 0.02,
    },
}


@cache
def toy_logits(prefix):
    return np.random.default_rng([5, *prefix]).normal(0, 1.2, VOCAB_SIZE).astype(np.float32)


def processed(params: SamplingParams, prefixes) -> np.ndarray:
    """float32 [n, V] logits after each prefix, as the verifier changes them."""
    logits = np.stack([toy_logits(tuple(prefix)) for prefix in prefixes])
    processor = PROCESSORS.start(params, PROMPT, 0)
    apply_edits(torch.from_numpy(logits), processor.edits(prefixes))
    return logits


def distribution(params: SamplingParams, prefix) -> np.ndarray:
    """What plain sampling after a prefix means, in float64."""
    logits = processed(params, [list(prefix)])[0].astype(np.float64) / params.temperature
    weights = np.exp(logits - logits.max())
    weights[weights < params.min_p] = 0.0
    return weights / weights.sum()


def drafted_tree(params: SamplingParams, num_tokens: int):
    """Two children and one grandchild below each, drawn or ranked by a drafter that was told."""
    processor = PROCESSORS.start(params, PROMPT, 0)
    tokens, parents, rows, prefixes = [0], [-1], [], [[]]
    for node, width in ((0, 2), (1, 1), (2, 1), (3, 0), (4, 0)):
        if node >= len(prefixes):
            break
        guess = np.random.default_rng([6, *prefixes[node]]).normal(0, 1.2, VOCAB_SIZE)
        offered = (guess - np.log(np.exp(guess).sum())).astype(np.float32)
        ids = np.arange(VOCAB_SIZE, dtype=np.int32)
        token_ids, log_probs = processed_candidates(processor, prefixes[node], ids, offered)
        probs = np.exp(log_probs.astype(np.float64))
        row = ProposalRow(token_ids, np.log(probs / probs.sum()).astype(np.float32))
        if params.mode.draws_children:
            noise = draft_noise(params.seed, num_tokens + len(prefixes[node]), node)
            children = draw_children(row, width, noise)
        else:
            row, children = ProposalRow.empty(), token_ids[:width]
        rows.append(row)
        for token in children.tolist():
            tokens.append(token)
            parents.append(node)
            prefixes.append([*prefixes[node], token])
    tree = DraftTree(np.array(tokens, np.int32), np.array(parents, np.int32))
    return tree, rows, prefixes


def chi_square(counts: np.ndarray, probs: np.ndarray) -> float:
    assert counts[probs == 0.0].sum() == 0
    expected = probs[probs > 0.0] * counts.sum()
    return float(np.sum((counts[probs > 0.0] - expected) ** 2 / expected))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("mode", [mode for mode in Acceptance if mode is not Acceptance.GREEDY])
def test_rounds_follow_the_processed_target(mode, options):
    first, second = np.zeros(VOCAB_SIZE), np.zeros((VOCAB_SIZE, VOCAB_SIZE))
    for seed in range(700):
        params = SamplingParams(acceptance=mode, seed=seed, **OPTIONS[options])
        tree, rows, prefixes = drafted_tree(params, len(PROMPT))
        emitted = accept(tree, rows, processed(params, prefixes), params, len(PROMPT))
        token_ids = emitted.token_ids(tree)
        first[token_ids[0]] += 1
        if len(token_ids) > 1:
            second[token_ids[0], token_ids[1]] += 1
    assert chi_square(first, distribution(params, [])) < CHI_SQUARE_LIMIT
    followed = [token for token in range(VOCAB_SIZE) if second[token].sum() > 60]
    assert followed
    for token in followed:
        assert chi_square(second[token], distribution(params, [token])) < CHI_SQUARE_LIMIT


@pytest.mark.parametrize("index", [1, 7])
def test_the_answers_of_one_request_are_independent_of_each_other(index):
    """Their tokens at one position, over the seeds of many requests."""
    params = SamplingParams(acceptance=Acceptance.COUPLED, **OPTIONS["allowed and minimum"])
    anchor, logits = DraftTree.of_anchor(0), processed(params, [[]])
    pairs = np.zeros((VOCAB_SIZE, VOCAB_SIZE))
    for seed in range(1500):
        drawn = [
            accept(
                anchor,
                [ProposalRow.empty()],
                logits,
                SamplingParams(
                    acceptance=Acceptance.COUPLED,
                    seed=choice_seed(seed, number),
                    **OPTIONS["allowed and minimum"],
                ),
                len(PROMPT),
            ).bonus
            for number in (0, index)
        ]
        pairs[drawn[0], drawn[1]] += 1
    probs = distribution(params, [])
    assert chi_square(pairs.ravel(), np.outer(probs, probs).ravel()) < CHI_SQUARE_LIMIT
