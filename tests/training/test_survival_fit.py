"""The fit finds the weights that made the examples, and its predictions hold on unseen ones."""

import numpy as np
import pytest
from answers import answer_of

from canopy.drafter.lookup.ngram_store import NgramStore
from canopy.drafter.lookup.source import LookupSource
from canopy.drafter.source import DraftSequence, DraftTask
from canopy.sampling import PolicyName, SamplingParams
from canopy.tree.policies import PolicySettings
from canopy_kernels.ngram.continuations import NUM_FEATURES
from canopy_training.lookup.ngrams import count, is_held_out
from canopy_training.lookup.reliability import (
    Check,
    calibration_error,
    reliability_table,
    write_plot,
)
from canopy_training.lookup.survival import Examples, acceptance, fit, gather, log_loss


def random_answers(num):
    """Texts of a random grammar: each token has few successors, one of them likely."""
    random = np.random.default_rng(1)
    successors = random.integers(0, 60, (60, 3))
    answers = []
    for number in range(num):
        text = [int(random.integers(60))]
        while len(text) < 60:
            text.append(int(successors[text[-1], random.choice(3, p=[0.6, 0.3, 0.1])]))
        answers.append(answer_of(text[:20], text[20:], number))
    return answers


@pytest.fixture(scope="module")
def answers():
    return random_answers(1200)


@pytest.fixture(scope="module")
def grams(answers):
    return count(answer for answer in answers if not is_held_out(answer.number))


@pytest.fixture(scope="module")
def examples(answers, grams):
    held_out = [answer for answer in answers if is_held_out(answer.number)]
    return gather(held_out[:60], grams, 8), gather(held_out[60:], grams, 8)


def test_a_known_law_is_found():
    random = np.random.default_rng(0)
    true_weights = np.zeros(NUM_FEATURES)
    true_weights[[0, 3, 20]] = -1.0, 1.5, 0.7
    features = np.zeros((12000, NUM_FEATURES))
    features[:, 0] = 1.0
    features[:, [3, 20]] = random.normal(size=(12000, 2))
    nodes = np.arange(12000) // 3
    drawn = Examples(features, nodes, np.zeros(12000, bool), np.ones(12000, int))
    probs = acceptance(drawn, true_weights).reshape(-1, 3)
    picks = (random.random((4000, 1)) > np.cumsum(probs, axis=1)).sum(axis=1)
    accepted = (np.arange(3) == picks[:, None]).ravel()
    found = fit(Examples(features, nodes, accepted, drawn.depths))
    np.testing.assert_allclose(found[[0, 3, 20]], true_weights[[0, 3, 20]], atol=0.12)
    assert np.abs(np.delete(found, [0, 3, 20])).max() < 1e-9


def test_examples_follow_the_text(examples):
    for part in examples:
        assert (np.bincount(part.nodes, part.accepted) <= 1).all()
        assert (np.bincount(part.nodes) >= 1).all()
        assert set(part.depths) == set(range(1, 9))
        assert 0.3 < part.accepted.sum() / part.num_nodes <= 1.0


def test_predictions_hold_on_unseen_answers(examples):
    seen, unseen = examples
    weights = fit(seen)
    probs = acceptance(unseen, weights)
    assert np.bincount(unseen.nodes, probs).max() <= 1.0
    unfitted = np.zeros(NUM_FEATURES)
    error, unfitted_error = (
        calibration_error(p, unseen.accepted) for p in (probs, acceptance(unseen, unfitted))
    )
    assert error < 0.05 < unfitted_error
    assert log_loss(unseen, weights) < log_loss(unseen, unfitted)


def test_the_table_has_every_source_and_depth(examples, tmp_path):
    unseen = examples[1]
    probs = acceptance(unseen, fit(examples[0]))
    check = Check(unseen.features, unseen.depths, probs, unseen.accepted)
    table = reliability_table(check)
    assert all(f"| {name} |" in table for name in ("all", "store", "sequence + store", "depth 8"))
    write_plot(check, tmp_path / "plot.svg")
    assert "predicted acceptance" in (tmp_path / "plot.svg").read_text()


def accepted_length(source, answers, budget):
    """Mean tokens of a round over known texts."""
    num_tokens = num_rounds = 0
    for answer in answers:
        text, place = answer.token_ids.tolist(), len(answer.prompt_ids)
        while place < len(text):
            sequence = DraftSequence(answer.number, text[:place], SamplingParams())
            settings = PolicySettings(PolicyName.TOPN, budget, 8, 8, 0.05)
            [proposal] = source.propose([DraftTask(sequence, settings)])
            node, before = 0, place
            while node is not None and place < len(text):
                children = proposal.tree.children[node]
                ids = proposal.tree.token_ids
                node = next((c for c in children if ids[c] == text[place]), None)
                place += 1
            num_tokens, num_rounds = num_tokens + place - before, num_rounds + 1
        source.finish(answer.number)
    return num_tokens / num_rounds


def test_the_store_lengthens_rounds_and_weights_do_not_shorten_them(answers, grams, examples):
    unseen = [answer for answer in answers if is_held_out(answer.number)][60:90]
    alone = accepted_length(LookupSource(1, 8), unseen, 8)
    blended = accepted_length(LookupSource(1, 8, NgramStore(grams, np.zeros(0))), unseen, 8)
    fitted = accepted_length(LookupSource(1, 8, NgramStore(grams, fit(examples[0]))), unseen, 8)
    assert blended > 1.2 * alone
    assert fitted > 0.98 * blended
