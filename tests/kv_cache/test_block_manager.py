"""Blocks are neither lost nor shared wrongly, whatever the sequences do."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from canopy.kv_cache.block_manager import BlockManager

BLOCK = 4


def committed(manager: BlockManager, sequence_id: int, tokens: list[int]) -> None:
    """Start a sequence and commit all of its tokens."""
    num_cached = manager.start(sequence_id, tokens)
    assert manager.reserve(sequence_id, len(tokens))
    manager.commit(sequence_id, tokens[num_cached:])
    manager.check_integrity()


class CacheMachine(RuleBasedStateMachine):
    """A cache whose slots remember the whole prefix they were computed from.

    Every committed slot of every sequence must hold the sequence's own prefix at all times,
    while reserved slots are scribbled over.
    """

    def __init__(self) -> None:
        super().__init__()
        self.manager = BlockManager(num_blocks=9, block_size=BLOCK, prefix_reuse=True)
        self.memory: dict[int, tuple[int, ...] | str] = {}
        self.tokens: dict[int, list[int]] = {}

    def slot(self, sequence_id: int, index: int) -> int:
        return self.manager.block_table(sequence_id)[index // BLOCK] * BLOCK + index % BLOCK

    @rule(
        sequence_id=st.integers(0, 4), tokens=st.lists(st.integers(0, 1), min_size=1, max_size=14)
    )
    def start(self, sequence_id: int, tokens: list[int]) -> None:
        num_cached = self.manager.start(sequence_id, tokens)
        assert num_cached % BLOCK == 0
        assert num_cached < len(tokens)
        self.tokens[sequence_id] = tokens[:num_cached]

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), extra=st.integers(0, 12))
    def reserve(self, data: st.DataObject, extra: int) -> None:
        sequence_id = data.draw(st.sampled_from(sorted(self.tokens)))
        before = list(self.manager.block_table(sequence_id))
        num_tokens = len(self.tokens[sequence_id]) + extra
        num_missing = max(0, -(-num_tokens // BLOCK) - len(before))
        could = num_missing <= self.manager.num_free
        assert self.manager.reserve(sequence_id, num_tokens) == could
        table = list(self.manager.block_table(sequence_id))
        assert len(table) - len(before) == (num_missing if could else 0)
        assert table[: len(before)] == before
        for index in range(len(self.tokens[sequence_id]), len(table) * BLOCK):
            self.memory[self.slot(sequence_id, index)] = "scratch"

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        sequence_id = data.draw(st.sampled_from(sorted(self.tokens)))
        tokens = self.tokens[sequence_id]
        room = len(self.manager.block_table(sequence_id)) * BLOCK - len(tokens)
        new = data.draw(st.lists(st.integers(0, 1), max_size=room))
        self.manager.commit(sequence_id, new)
        for token in new:
            tokens.append(token)
            self.memory[self.slot(sequence_id, len(tokens) - 1)] = tuple(tokens)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def release_scratch(self, data: st.DataObject) -> None:
        sequence_id = data.draw(st.sampled_from(sorted(self.tokens)))
        self.manager.release_scratch(sequence_id)
        num_kept = -(-len(self.tokens[sequence_id]) // BLOCK)
        assert len(self.manager.block_table(sequence_id)) == num_kept

    @rule(sequence_id=st.integers(0, 4))
    def finish(self, sequence_id: int) -> None:
        self.manager.finish(sequence_id)
        self.tokens.pop(sequence_id, None)

    @invariant()
    def committed_slots_hold_the_sequence(self) -> None:
        for sequence_id, tokens in self.tokens.items():
            assert self.manager.num_committed(sequence_id) == len(tokens)
            for index in range(len(tokens)):
                held = self.memory[self.slot(sequence_id, index)]
                assert held == tuple(tokens[: index + 1])

    @invariant()
    def books_agree(self) -> None:
        self.manager.check_integrity()

    def teardown(self) -> None:
        for sequence_id in list(self.tokens):
            self.manager.finish(sequence_id)
        self.manager.check_integrity()
        assert self.manager.num_free == 9


CacheMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True
)
TestCacheMachine = CacheMachine.TestCase


def test_a_second_sequence_shares_the_full_blocks_of_its_prefix():
    manager = BlockManager(10, BLOCK, prefix_reuse=True)
    committed(manager, 1, [*range(10)])
    assert manager.start(2, [*range(8), 99, 98]) == 8
    assert list(manager.block_table(2)) == list(manager.block_table(1))[:2]
    assert manager.num_used == 3
    manager.check_integrity()


def test_the_last_token_is_never_taken_from_the_cache():
    manager = BlockManager(10, BLOCK, prefix_reuse=True)
    committed(manager, 1, [*range(8)])
    assert manager.start(2, [*range(8)]) == 4
    assert manager.start(3, [*range(9)]) == 8
    assert manager.start(4, [0]) == 0


def test_equal_blocks_behind_unequal_prefixes_are_not_shared():
    manager = BlockManager(10, BLOCK, prefix_reuse=True)
    committed(manager, 1, [1, 1, 1, 1, 7, 7, 7, 7])
    assert manager.start(2, [2, 2, 2, 2, 7, 7, 7, 7, 0]) == 0
    assert manager.start(3, [7, 7, 7, 7, 0]) == 0


def test_a_finished_sequence_leaves_its_prefix_until_the_blocks_are_needed():
    manager = BlockManager(4, BLOCK, prefix_reuse=True)
    committed(manager, 1, [*range(12)])
    manager.finish(1)
    manager.finish(1)
    assert (manager.num_free, manager.num_used) == (4, 0)
    assert manager.start(2, [*range(12), 0]) == 12
    manager.finish(2)
    # Two blocks are taken: the one never used, then the end of the prefix.
    committed(manager, 3, [50, 51, 52, 53, 54])
    assert manager.start(4, [*range(12), 0]) == 8
    manager.check_integrity()


def test_reserved_tokens_that_are_never_committed_are_not_shared():
    manager = BlockManager(10, BLOCK, prefix_reuse=True)
    manager.start(1, [*range(9)])
    assert manager.reserve(1, 9)
    manager.commit(1, [0, 1, 2])
    assert manager.start(2, [*range(9)]) == 0
    manager.commit(1, [3])
    assert manager.start(2, [*range(9)]) == 4


def test_a_reservation_that_does_not_fit_changes_nothing():
    manager = BlockManager(3, BLOCK, prefix_reuse=True)
    manager.start(1, [0] * 20)
    assert manager.reserve(1, 4)
    assert not manager.reserve(1, 13)
    assert (len(manager.block_table(1)), manager.num_free) == (1, 2)
    assert manager.reserve(1, 12)
    manager.check_integrity()


def test_tokens_beyond_the_reservation_are_refused_and_change_nothing():
    manager = BlockManager(3, BLOCK, prefix_reuse=True)
    manager.start(1, [0] * 9)
    assert manager.reserve(1, 4)
    with pytest.raises(ValueError, match="reserved"):
        manager.commit(1, [0] * 5)
    assert manager.num_committed(1) == 0
    assert manager.start(2, [0] * 9) == 0
    manager.check_integrity()


def test_a_restart_finds_its_own_blocks_again():
    manager = BlockManager(4, BLOCK, prefix_reuse=True)
    committed(manager, 1, [*range(8)])
    assert manager.start(1, [*range(9)]) == 8
    assert manager.num_used == 2
    manager.check_integrity()


def test_without_prefix_reuse_nothing_is_shared():
    manager = BlockManager(10, BLOCK, prefix_reuse=False)
    committed(manager, 1, [*range(8)])
    assert manager.start(2, [*range(9)]) == 0
    manager.check_integrity()


def test_only_sequences_of_one_salt_share():
    manager = BlockManager(16, BLOCK, True)
    tokens = list(range(13))
    assert manager.start(1, tokens, b"salt") == 0
    assert manager.reserve(1, len(tokens))
    manager.commit(1, tokens)
    assert manager.start(2, tokens) == 0
    assert manager.start(3, tokens, b"other") == 0
    assert manager.start(4, tokens, b"salt") == 12
    manager.check_integrity()


@pytest.mark.parametrize(("num_spared", "expected"), [(0, 12), (1, 8), (3, 0), (9, 0)])
def test_the_last_matched_blocks_can_be_left_out(num_spared, expected):
    manager = BlockManager(16, BLOCK, True)
    tokens = list(range(13))
    committed(manager, 1, tokens)
    assert manager.start(2, tokens, num_spared=num_spared) == expected
    assert manager.reserve(2, len(tokens))
    manager.commit(2, tokens[expected:])
    manager.check_integrity()
