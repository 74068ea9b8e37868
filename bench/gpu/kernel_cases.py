"""Inputs of the benchmark `kernels`: shapes, tensors on a device, and bytes that must move."""

from dataclasses import dataclass

import numpy as np
import torch

from canopy_kernels.attention.paged_rows import PagedRows

BLOCK_SIZE = 64
BRANCHES = 2


@dataclass(frozen=True)
class AttentionCase:
    """`num_sequences` trees of `num_rows` nodes, each on a context of its own."""

    num_sequences: int
    context_length: int
    num_rows: int
    num_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128

    @property
    def blocks_of_each(self) -> int:
        return -(-(self.context_length + self.num_rows) // BLOCK_SIZE)

    @property
    def num_slots(self) -> int:
        return self.num_sequences * self.blocks_of_each * BLOCK_SIZE

    def num_bytes(self, dtype: torch.dtype) -> int:
        """What no implementation can do without: read keys, values and queries, write results."""
        keys = self.num_sequences * (self.context_length + self.num_rows) * self.num_kv_heads
        queries = self.num_sequences * self.num_rows * self.num_heads
        return (2 * keys + 2 * queries) * self.head_dim * dtype.itemsize


ATTENTION_CASES = [
    AttentionCase(sequences, context, rows)
    for sequences in (1, 16)
    for context in (1024, 8192, 32768)
    for rows in (1, 17, 65)
]


def binary_tree(num_rows: int) -> np.ndarray:
    """int [num_rows] parents; row 0 has -1."""
    rows = np.arange(num_rows)
    return np.where(rows == 0, -1, (rows - 1) // BRANCHES)


@dataclass(frozen=True)
class AttentionInputs:
    """One layer of a paged cache with shuffled blocks, and a step's rows on it."""

    case: AttentionCase
    query: torch.Tensor  # [T, H, D]
    keys: torch.Tensor  # [num_slots, KVH, D]
    values: torch.Tensor  # [num_slots, KVH, D]
    rows: PagedRows

    @staticmethod
    def of(case: AttentionCase, dtype: torch.dtype, device: str) -> "AttentionInputs":
        """Random ones, the same each time."""
        generator = torch.Generator(device).manual_seed(0)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, device=device).to(dtype)

        kept = (case.num_slots, case.num_kv_heads, case.head_dim)
        num_rows = case.num_sequences * case.num_rows
        query = random(num_rows, case.num_heads, case.head_dim)
        return AttentionInputs(case, query, random(*kept), random(*kept), paged_rows(case, device))

    @property
    def scale(self) -> float:
        return self.case.head_dim**-0.5

    def path_slots(self) -> torch.Tensor:
        """int64 [S, context + rows]: each sequence's slots in order."""
        length = self.case.context_length + self.case.num_rows
        offsets = torch.arange(BLOCK_SIZE, device=self.query.device)
        slots = self.rows.block_tables.long().unsqueeze(2) * BLOCK_SIZE + offsets
        return slots.flatten(1)[:, :length]

    def mask(self) -> torch.Tensor:
        """bool [rows, context + rows]: what each row of a tree sees, the same in all trees."""
        case = self.case
        mask = np.zeros((case.num_rows, case.context_length + case.num_rows), bool)
        for row, parent in enumerate(binary_tree(case.num_rows)):
            if parent < 0:
                mask[row, : case.context_length] = True
            else:
                mask[row] = mask[parent]
            mask[row, case.context_length + row] = True
        return torch.from_numpy(mask).to(self.query.device)


def paged_rows(case: AttentionCase, device: str) -> PagedRows:
    """Every sequence has `blocks_of_each` blocks, shuffled over the cache."""
    blocks = np.random.default_rng(0).permutation(case.num_sequences * case.blocks_of_each)
    tables = blocks.reshape(case.num_sequences, -1).astype(np.int32)
    logical = case.context_length + np.arange(case.num_rows)
    slots = tables[:, logical // BLOCK_SIZE] * BLOCK_SIZE + logical % BLOCK_SIZE
    starts = np.arange(case.num_sequences + 1, dtype=np.int32) * case.num_rows
    tree = binary_tree(case.num_rows)
    parents = np.where(tree < 0, -1, tree + starts[:-1, None]).astype(np.int32)
    contexts = np.full(case.num_sequences, case.context_length, np.int32)
    return PagedRows(
        torch.from_numpy(slots.reshape(-1).astype(np.int64)).to(device),
        torch.from_numpy(parents.reshape(-1)).to(device),
        torch.from_numpy(starts).to(device),
        torch.from_numpy(contexts).to(device),
        torch.from_numpy(tables).to(device),
        BLOCK_SIZE,
    )


@dataclass(frozen=True)
class MoveCase:
    """Accepted paths of `num_sequences` sequences move into place, in all layers."""

    num_sequences: int
    num_moves: int
    num_layers: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128

    def num_bytes(self, dtype: torch.dtype) -> int:
        """Each moved row is read and written, keys and values."""
        rows = self.num_layers * self.num_sequences * self.num_moves
        return 4 * rows * self.num_kv_heads * self.head_dim * dtype.itemsize


MOVE_CASES = [MoveCase(sequences, moves) for sequences in (1, 16) for moves in (4, 16)]


@dataclass(frozen=True)
class SamplingCase:
    """One draw for each of `num_rows` nodes."""

    num_rows: int
    vocab_size: int = 131072

    def num_bytes(self, dtype: torch.dtype) -> int:
        """Logits are read once."""
        return self.num_rows * self.vocab_size * dtype.itemsize


SAMPLING_CASES = [SamplingCase(rows) for rows in (1, 17, 256)]


@dataclass(frozen=True)
class LinearCase:
    """The rows of a step times the weight of one linear."""

    num_rows: int
    inner: int
    num_outs: int

    def num_bytes(self, dtype: torch.dtype) -> int:
        """The weight and the rows are read, the results written."""
        read = self.inner * (self.num_outs + self.num_rows)
        return (read + self.num_rows * self.num_outs) * dtype.itemsize


# The MLP's first and last linear of Llama 3.1 8B, and its head.
LINEAR_CASES = [
    LinearCase(num_rows, inner, num_outs)
    for inner, num_outs in ((4096, 28672), (14336, 4096), (4096, 128256))
    for num_rows in (1, 17, 65, 256)
]
