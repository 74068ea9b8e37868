"""What a drafter offers is told the options, so that no node is spent on an impossible token."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from canopy.config import TreeConfig
from canopy.drafter.growth.options import processed
from canopy.drafter.lookup.source import LookupSource
from canopy.drafter.source import DraftSequence, DraftTask
from canopy.logits_processors.application import apply_edits
from canopy.logits_processors.candidates import processed_candidates
from canopy.logits_processors.factory import LogitsProcessors
from canopy.sampling import PolicyName, SamplingParams
from canopy.tree.policies import PolicySettings

VOCAB_SIZE = 40
PROMPT = [1, 2, 3, 4, 5, 6, 1, 2]
PARAMS = SamplingParams(
    logit_bias=((7, 2.0),),
    bad_words_ids=((9,), (3, 4)),
    min_tokens=4,
    stop_token_ids=(5,),
    allowed_token_ids=(*range(20), 30),
)


@settings(max_examples=60, deadline=None)
@given(
    weights=st.lists(st.floats(0.01, 1.0), min_size=1, max_size=12),
    path=st.lists(st.integers(0, 10), max_size=3),
)
def test_hard_options_and_bias_leave_the_proportions_of_the_whole_distribution(weights, path):
    """Offered the whole distribution, candidates are its processed form exactly."""
    probs = np.array(weights) / sum(weights)
    token_ids = np.arange(len(probs), dtype=np.int32)
    processor = LogitsProcessors(VOCAB_SIZE).start(PARAMS, PROMPT, 0)
    found, log_probs = processed_candidates(processor, path, token_ids, np.log(probs))
    logits = torch.full((1, VOCAB_SIZE), -torch.inf)
    logits[0, : len(probs)] = torch.from_numpy(np.log(probs))
    apply_edits(logits, processor.edits([path]))
    if not torch.isfinite(logits).any():
        assert len(found) == 0
        return
    expected = torch.softmax(logits[0].double(), 0).numpy()
    assert sorted(found.tolist()) == np.flatnonzero(expected).tolist()
    np.testing.assert_allclose(np.exp(log_probs), expected[found], rtol=1e-4)
    assert (np.diff(log_probs) <= 0).all()


def test_what_is_missing_from_the_offer_keeps_its_share():
    processor = LogitsProcessors(VOCAB_SIZE).start(SamplingParams(bad_words_ids=((2,),)), [1], 0)
    offered = np.log(np.array([0.5, 0.25]))
    found, log_probs = processed_candidates(processor, [], np.array([2, 3], np.int32), offered)
    assert found.tolist() == [3]
    assert np.exp(log_probs[0]) == pytest.approx(0.25 / 0.5)


def lookup_tokens(params: SamplingParams) -> set[int]:
    processor = LogitsProcessors(VOCAB_SIZE).start(params, PROMPT, 0)
    sequence = DraftSequence(1, PROMPT, params, processor)
    shape = PolicySettings.of_request(PolicyName.TOPN, 8, TreeConfig())
    [proposal] = LookupSource(1, 4).propose([DraftTask(sequence, shape)])
    return set(proposal.tree.token_ids[1:].tolist())


def test_lookup_drafts_no_token_that_cannot_follow():
    assert {3, 4} <= lookup_tokens(SamplingParams())
    assert 4 not in lookup_tokens(SamplingParams(bad_words_ids=((3, 4),)))
    assert lookup_tokens(SamplingParams(bad_words_ids=((3,),))) == set()
    assert 5 not in lookup_tokens(SamplingParams(min_tokens=9, stop_token_ids=(5,)))


def test_a_sequence_without_options_is_left_as_it_is():
    sequence = DraftSequence(1, PROMPT, SamplingParams())
    known = lambda path: None  # noqa: E731
    assert processed(known, sequence) is known
