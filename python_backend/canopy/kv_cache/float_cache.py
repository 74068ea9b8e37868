"""The key and value tensors of a paged cache.

Slot = block id * block_size + offset; which slots belong to whom is the block manager's matter.
"""

import torch

from canopy_kernels.attention.paged_rows import PagedRows
from canopy_kernels.attention.tree_attention import tree_attention


class KVCache:
    """`keys` and `values`: [num_layers, num_slots, num_kv_heads, head_dim], zero at first."""

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: str,
    ) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        shape = (num_layers, num_blocks * block_size, num_kv_heads, head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)

    @property
    def device(self) -> torch.device:
        return self.keys.device

    def write(
        self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Store the rows of a step. slots: int64 [T]; keys, values: [T, num_kv_heads, head_dim]."""
        self.keys[layer].index_copy_(0, slots, keys)
        self.values[layer].index_copy_(0, slots, values)

    def attend(
        self, layer: int, query: torch.Tensor, rows: PagedRows, scale: float
    ) -> torch.Tensor:
        """`tree_attention` of a step's rows, whose keys and values are here: [T, heads, head_dim].

        query: [T, heads, head_dim], contiguous.
        """
        return tree_attention(query, self.keys[layer], self.values[layer], rows, scale)

    def move(self, sources: torch.Tensor, destinations: torch.Tensor) -> None:
        """Copy slots to other slots in all layers; see `models.decoder.Cache.move`."""
        moved = sources >= 0
        sources, destinations = sources[moved], destinations[moved]
        for tensor in (self.keys, self.values):
            tensor.index_copy_(1, destinations, tensor.index_select(1, sources))
