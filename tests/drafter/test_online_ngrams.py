"""Online learning counts what was served on top of the store, within bounds."""

import numpy as np
from answers import answer_of
from hypothesis import given
from hypothesis import strategies as st

from canopy.drafter.lookup import counting
from canopy.drafter.lookup.ngram_store import NgramStore
from canopy.drafter.lookup.online_ngrams import OnlineNgrams
from canopy.drafter.lookup.source import LookupSource
from canopy.drafter.source import DraftSequence, DraftTask
from canopy.sampling import PolicyName, SamplingParams
from canopy.tree.policies import PolicySettings
from canopy_kernels.ngram.ngram_table import context_keys, empty_ngram_table, find_context
from canopy_training.lookup.ngrams import count

texts = st.lists(st.integers(0, 3), min_size=1, max_size=40)
PROMPT = [1, 2, 3, 0]
EVERY_CONTEXT = (1, 1, 1, 1)


def rows(grams):
    """Followers and total by context."""
    return {
        key: (
            total,
            dict(
                zip(
                    grams.follower_ids[first:end].tolist(),
                    grams.follower_counts[first:end].tolist(),
                    strict=True,
                )
            ),
        )
        for key, total, first, end in zip(
            grams.keys.tolist(),
            grams.totals.tolist(),
            grams.starts[:-1].tolist(),
            grams.starts[1:].tolist(),
            strict=True,
        )
    }


def text_of(answer):
    return np.array([*PROMPT, *answer], np.int32)


@given(st.lists(texts, max_size=3), st.lists(texts, min_size=1, max_size=3))
def test_learnt_and_stored_count_alike(stored, served):
    parts = [(text_of(text), len(PROMPT)) for text in stored + served]
    whole = counting.count(parts, least_totals=EVERY_CONTEXT)
    base = counting.count(parts[: len(stored)], least_totals=EVERY_CONTEXT)
    table = OnlineNgrams(base, answers_at_once=len(served))
    for text in served:
        assert table.ngrams is base
        table.learn(text_of(text), len(PROMPT))
    assert rows(table.ngrams) == rows(whole)
    assert all(not array.flags.writeable for array in table.ngrams)


def knows(grams, token):
    return find_context(grams, context_keys(np.array([token, 0], np.int32), 1)[0]) >= 0


def test_what_is_learnt_is_bounded_and_the_oldest_goes_first():
    stored = count([answer_of(PROMPT, [7, 8, 7, 8])])
    table = OnlineNgrams(stored, answers_at_once=1, max_tokens=40)
    for token in range(100, 140):
        table.learn(text_of([token, token + 1000]), len(PROMPT))
    assert knows(table.ngrams, 139)
    assert not knows(table.ngrams, 100)
    assert knows(table.ngrams, 7)


def test_a_prompt_alone_teaches_nothing():
    table = OnlineNgrams(empty_ngram_table(), answers_at_once=1)
    table.learn(np.array(PROMPT, np.int32), len(PROMPT))
    assert len(table.ngrams.keys) == 0


def propose(source, sequence):
    settings = PolicySettings(PolicyName.CHAIN, 2, 2, 1, 0.05)
    [proposal] = source.propose([DraftTask(sequence, settings)])
    return proposal.tree.token_ids[1:].tolist()


def test_a_finished_answer_is_proposed_to_the_next_sequence():
    learning = OnlineNgrams(empty_ngram_table(), answers_at_once=1)
    source = LookupSource(1, 8, NgramStore.empty(), learning)
    served = DraftSequence(1, [*PROMPT], SamplingParams())
    propose(source, served)
    served.token_ids += [41, 42, 43]
    propose(source, served)
    assert propose(source, DraftSequence(2, [9, 41], SamplingParams())) == []
    source.finish(1)
    assert propose(source, DraftSequence(3, [9, 41], SamplingParams())) == [42, 43]
