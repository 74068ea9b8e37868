"""Steps over a paged cache with shuffled blocks, for the tests of attention."""

import numpy as np
import torch

from canopy_kernels.attention.paged_rows import PagedRows

BLOCK_SIZE = 16
SCALE = 0.3
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1e-2}
CHAIN = [-1, 0, 1, 2, 3, 4, 5]
BUSHY = [-1, 0, 0, 1, 1, 2, 3, 3, 4, 6]


def paged_rows(
    context_lengths: list[int],
    forests: list[list[int]],
    seed: int = 0,
    block_size: int = BLOCK_SIZE,
) -> PagedRows:
    """Sequences over shuffled blocks; a forest lists local parents."""
    sizes = [len(parents) for parents in forests]
    starts = np.concatenate(([0], np.cumsum(sizes)))
    needed = [-(-(c + n) // block_size) for c, n in zip(context_lengths, sizes, strict=True)]
    blocks = np.random.default_rng(seed).permutation(sum(needed) + 3)
    tables = np.full((len(sizes), max(needed)), -1, np.int32)
    slots, parent_rows = [], []
    for s, (context, parents) in enumerate(zip(context_lengths, forests, strict=True)):
        tables[s, : needed[s]], blocks = blocks[: needed[s]], blocks[needed[s] :]
        logical = context + np.arange(len(parents))
        slots.append(tables[s, logical // block_size] * block_size + logical % block_size)
        parent_rows += [p if p < 0 else p + int(starts[s]) for p in parents]
    return PagedRows(
        torch.from_numpy(np.concatenate(slots).astype(np.int64)),
        torch.tensor(parent_rows, dtype=torch.int32),
        torch.from_numpy(starts.astype(np.int32)),
        torch.tensor(context_lengths, dtype=torch.int32),
        torch.from_numpy(tables),
        block_size,
    )


def tensors(
    rows: PagedRows, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(heads * head_dim)
    num_slots = (int(rows.block_tables.max()) + 4) * rows.block_size
    shapes = (
        (len(rows.slots), heads, head_dim),
        (num_slots, kv_heads, head_dim),
        (num_slots, kv_heads, head_dim),
    )
    query, keys, values = (2 * torch.randn(s, generator=generator).to(dtype) for s in shapes)
    return query, keys, values


def context_slots(rows: PagedRows, sequence: int) -> torch.Tensor:
    positions = torch.arange(int(rows.context_lengths[sequence]))
    blocks = rows.block_tables[sequence].long()[positions // rows.block_size]
    return blocks * rows.block_size + positions % rows.block_size
