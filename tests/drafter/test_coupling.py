"""Children of deterministic sources are ranked by the noise that the target will choose by."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy.drafter.growth.best_first import Continuations
from canopy.drafter.growth.coupling import coupled
from canopy.drafter.source import DraftSequence
from canopy.sampling import Acceptance, SamplingParams
from canopy_kernels.sampling.noise import gumbel

TEXT = [5, 6, 7]


def sequence_of(acceptance, seed=11):
    temperature = 0.0 if acceptance is Acceptance.GREEDY else 0.8
    params = SamplingParams(seed=seed, temperature=temperature, acceptance=acceptance)
    return DraftSequence(1, TEXT, params)


def known(path):
    probs = np.array([0.4, 0.2, 0.1, 0.05])
    return Continuations([3 + len(path), 90, 91, 92], np.log(probs).tolist(), 1.5)


@given(st.integers(0, 2**40), st.floats(0.0, 2.0), st.lists(st.integers(0, 50), max_size=3))
def test_noise_of_seed_and_position_ranks_and_moves_no_acceptance_in_or_out(seed, coupling, path):
    before = known(path)
    after = coupled(known, sequence_of(Acceptance.COUPLED, seed), coupling)(path)
    assert set(after.token_ids) == set(before.token_ids)
    assert np.exp(after.log_probs).sum() == pytest.approx(np.exp(before.log_probs).sum())
    assert list(after.log_probs) == sorted(after.log_probs, reverse=True)
    ids = np.array(before.token_ids, np.int32)
    scores = np.array(before.log_probs) + coupling * gumbel(seed, len(TEXT) + len(path), ids)
    assert after.token_ids == ids[np.argsort(-scores, kind="stable")].tolist()
    found = dict(zip(after.token_ids, after.log_probs, strict=True))
    ratios = [found[token] for token in before.token_ids] - scores
    assert np.ptp(ratios) < 1e-9


@pytest.mark.parametrize("acceptance", [Acceptance.GREEDY, Acceptance.TARGET_ONLY])
def test_other_acceptance_modes_have_no_noise(acceptance):
    assert coupled(known, sequence_of(acceptance), 0.7) is known


def test_nothing_known_stays_nothing():
    nothing = Continuations((), (), 0.0)
    sequence = sequence_of(Acceptance.COUPLED)
    assert coupled(lambda path: nothing, sequence, 0.7)([]) is nothing
