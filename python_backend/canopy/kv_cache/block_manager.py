"""Who owns which block of a paged KV cache.

    a sequence's slots    |<- committed ->|<- reserved: scratch ->|
    its blocks            [shared or own, full] ... [own, filling] [scratch] ...

Committed tokens never change, so a full committed block may serve every sequence that begins with
the same tokens. A block is found by the digest of all tokens up to its end; it keeps that digest
when it is freed, until it is handed out again, least recently freed first.
"""

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

_NO_DIGEST = b""
# 128 bits of a cryptographic hash: two different prefixes do not meet.
_DIGEST_BYTES = 16


def block_digest(before: bytes, token_ids: Sequence[int] | np.ndarray) -> bytes:
    """The digest of a block of tokens: `before` is that of the block in front of it."""
    tokens = np.asarray(token_ids, np.int32).tobytes()
    return hashlib.blake2b(before + tokens, digest_size=_DIGEST_BYTES).digest()


@dataclass
class _OwnedBlocks:
    """The blocks of one sequence."""

    block_ids: list[int] = field(default_factory=list)
    num_full: int = 0  # committed blocks without a gap
    digest: bytes = _NO_DIGEST  # of the last full block
    tail: list[int] = field(default_factory=list)  # committed tokens behind the last full block


class BlockManager:
    """Blocks `0 .. num_blocks - 1`, each with `block_size` slots."""

    def __init__(self, num_blocks: int, block_size: int, prefix_reuse: bool) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._prefix_reuse = prefix_reuse
        self._owned: dict[int, _OwnedBlocks] = {}
        self._ref_counts = [0] * num_blocks
        self._digests = [_NO_DIGEST] * num_blocks
        self._cached: dict[bytes, int] = {}  # digest -> the block that holds those tokens
        self._free = OrderedDict.fromkeys(range(num_blocks))  # in the order of reuse

    # One sequence

    def start(
        self,
        sequence_id: int,
        token_ids: Sequence[int] | np.ndarray,
        salt: bytes = _NO_DIGEST,
        num_spared: int = 0,
    ) -> int:
        """Take up a sequence and share the cached blocks it begins with.

        salt: what its slots depend on besides these tokens; only sequences of the same salt share.
        num_spared: blocks at the end of what could be shared that are left out. Returns the number
        of tokens committed by that, at least one less than there are: the last one has to be
        computed for its logits. A known sequence is finished first.
        """
        self.finish(sequence_id)
        owned = self._owned[sequence_id] = _OwnedBlocks(digest=salt)
        matches = self._matches(token_ids, salt)
        for digest, block_id in matches[: max(len(matches) - num_spared, 0)]:
            self._take(block_id)
            owned.block_ids.append(block_id)
            owned.num_full += 1
            owned.digest = digest
        return self.num_committed(sequence_id)

    def reserve(self, sequence_id: int, num_tokens: int) -> bool:
        """Let the block table cover `num_tokens` tokens; False, and no change, when it cannot."""
        block_ids = self._owned[sequence_id].block_ids
        num_missing = self._num_blocks_for(num_tokens) - len(block_ids)
        if num_missing > len(self._free):
            return False
        for _ in range(num_missing):
            block_ids.append(self._take_least_recently_freed())
        return True

    def commit(self, sequence_id: int, token_ids: Iterable[int]) -> None:
        """The next slots now hold these tokens for good; blocks that they fill can be shared.

        Raises ValueError, and nothing changes, for tokens beyond the reserved blocks.
        """
        owned = self._owned[sequence_id]
        tail = [*owned.tail, *map(int, token_ids)]
        num_filled, num_left = divmod(len(tail), self.block_size)
        if owned.num_full + num_filled + (num_left > 0) > len(owned.block_ids):
            raise ValueError(f"sequence {sequence_id} commits tokens without a reserved block")
        for index in range(num_filled):
            first = index * self.block_size
            self._fill(owned, tail[first : first + self.block_size])
        owned.tail = tail[num_filled * self.block_size :]

    def release_scratch(self, sequence_id: int) -> None:
        """Give back the blocks without a committed token."""
        block_ids = self._owned[sequence_id].block_ids
        num_kept = self._num_blocks_for(self.num_committed(sequence_id))
        while len(block_ids) > num_kept:
            self._release(block_ids.pop())

    def finish(self, sequence_id: int) -> None:
        """Free all blocks of a sequence; no-op for unknown ids."""
        owned = self._owned.pop(sequence_id, _OwnedBlocks())
        # From the back, so that a prefix outlives what follows it.
        for block_id in reversed(owned.block_ids):
            self._release(block_id)

    # What is known

    def block_table(self, sequence_id: int) -> Sequence[int]:
        """The sequence's block ids, by logical position. Raises KeyError for an unknown one."""
        return self._owned[sequence_id].block_ids

    def num_committed(self, sequence_id: int) -> int:
        """Tokens of the sequence whose slots are final. Raises KeyError for an unknown one."""
        owned = self._owned[sequence_id]
        return owned.num_full * self.block_size + len(owned.tail)

    @property
    def num_free(self) -> int:
        """Blocks that no sequence holds, cached ones included."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks that at least one sequence holds."""
        return sum(count > 0 for count in self._ref_counts)

    def check_integrity(self) -> None:
        """Raises AssertionError when the books disagree."""
        tables = [owned.block_ids for owned in self._owned.values()]
        held = Counter(block_id for table in tables for block_id in table)
        assert self.num_free + self.num_used == self.num_blocks, "free + used != total"
        assert self._ref_counts == [held[b] for b in range(self.num_blocks)], "wrong ref counts"
        assert set(self._free).isdisjoint(held), "a block is free and held"
        assert all(len(set(table)) == len(table) for table in tables), "a table repeats a block"
        assert all(self._digests[b] == digest for digest, b in self._cached.items())
        assert len(self._cached) == sum(digest != _NO_DIGEST for digest in self._digests)
        for owned in self._owned.values():
            assert len(owned.tail) < self.block_size, "a full block is kept as a tail"
            scratch = owned.block_ids[owned.num_full :]
            assert len(scratch) >= bool(owned.tail), "a committed token without a block"
            assert all(self._digests[b] == _NO_DIGEST for b in scratch), "scratch can be shared"
            assert all(held[b] == 1 for b in scratch), "scratch is shared"

    # Blocks

    def _matches(
        self, token_ids: Sequence[int] | np.ndarray, digest: bytes
    ) -> list[tuple[bytes, int]]:
        """Digests and ids of the cached blocks that a sequence begins with."""
        matches: list[tuple[bytes, int]] = []
        num_sharable = (len(token_ids) - 1) // self.block_size if self._prefix_reuse else 0
        for first in range(0, num_sharable * self.block_size, self.block_size):
            digest = block_digest(digest, token_ids[first : first + self.block_size])
            block_id = self._cached.get(digest)
            if block_id is None:
                break
            matches.append((digest, block_id))
        return matches

    def _num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _take(self, block_id: int) -> None:
        self._free.pop(block_id, None)
        self._ref_counts[block_id] += 1

    def _take_least_recently_freed(self) -> int:
        block_id = next(iter(self._free))
        if digest := self._digests[block_id]:
            del self._cached[digest]
            self._digests[block_id] = _NO_DIGEST
        self._take(block_id)
        return block_id

    def _release(self, block_id: int) -> None:
        self._ref_counts[block_id] -= 1
        if self._ref_counts[block_id] == 0:
            self._free[block_id] = None
            if self._digests[block_id] == _NO_DIGEST:  # nothing is lost by using it next
                self._free.move_to_end(block_id, last=False)

    def _fill(self, owned: _OwnedBlocks, token_ids: Sequence[int]) -> None:
        owned.digest = block_digest(owned.digest, token_ids)
        block_id = owned.block_ids[owned.num_full]
        if self._prefix_reuse and owned.digest not in self._cached:
            self._cached[owned.digest] = block_id
            self._digests[block_id] = owned.digest
        owned.num_full += 1
