"""Started sequences travel between stages without loss."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from canopy.protocol.messages import SequenceChanges
from canopy.protocol.sequence_updates import StartedSequence, pack_started, started_sequences
from canopy.sampling import Acceptance, PolicyName, SamplingParams

params = st.builds(
    SamplingParams,
    temperature=st.floats(0, 100, width=32),
    seed=st.integers(0, 2**64 - 1),
    max_tokens=st.integers(1, 2**31 - 1),
    stop_token_ids=st.lists(st.integers(0, 2**31 - 1), max_size=3).map(tuple),
    acceptance=st.sampled_from(Acceptance),
    policy=st.sampled_from(PolicyName),
)
sequences = st.builds(
    StartedSequence,
    sequence_id=st.integers(0, 2**62),
    token_ids=st.lists(st.integers(0, 2**31 - 1), max_size=5).map(lambda t: np.array(t, np.int32)),
    num_emitted=st.integers(0, 5),
    params=params,
)


@given(st.lists(sequences, max_size=4))
def test_what_is_packed_unpacks_to_the_same(started):
    changes = SequenceChanges(**pack_started(started))
    assert [described(s) for s in started_sequences(changes).sequences] == [
        described(s) for s in started
    ]


def described(sequence):
    return (
        sequence.sequence_id,
        sequence.token_ids.tolist(),
        sequence.num_emitted,
        sequence.params,
    )


def test_seeds_on_both_sides_of_two_to_the_63_keep_every_bit():
    seeds = [2**64 - 3, 3472609497630473935, 0]
    started = [
        StartedSequence(index, np.array([1], np.int32), 0, SamplingParams(seed=seed))
        for index, seed in enumerate(seeds)
    ]
    unpacked = started_sequences(SequenceChanges(**pack_started(started))).sequences
    assert [sequence.params.seed for sequence in unpacked] == seeds
