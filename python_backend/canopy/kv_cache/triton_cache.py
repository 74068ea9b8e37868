"""The key and value tensors of a paged cache on a GPU, worked on by the Triton-language kernels."""

import torch

from canopy.kv_cache.float_cache import KVCache
from canopy_kernels.attention.paged_kv import commit_kv, write_kv
from canopy_kernels.attention.paged_rows import PagedRows
from canopy_kernels.attention.tree_attention_triton import launch_tree_attention

MAX_MOVES = 256  # of one sequence: a program reads all of them before it writes any


class TritonKVCache(KVCache):
    """As KVCache, one launch for each operation and no synchronization with the host."""

    def write(
        self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """As `KVCache.write`; the last two dimensions of keys and values are contiguous."""
        write_kv(self.keys[layer], self.values[layer], slots, keys, values)

    def attend(
        self, layer: int, query: torch.Tensor, rows: PagedRows, scale: float
    ) -> torch.Tensor:
        """As `KVCache.attend`."""
        return launch_tree_attention(query, self.keys[layer], self.values[layer], rows, scale)

    def move(self, sources: torch.Tensor, destinations: torch.Tensor) -> None:
        """As `KVCache.move`."""
        if sources.shape[-1] > MAX_MOVES:
            super().move(sources, destinations)
        else:
            moves = (torch.atleast_2d(slots).contiguous() for slots in (sources, destinations))
            commit_kv(self.keys, self.values, *moves)


def cache_type_for(device: str) -> type[KVCache]:
    """The class of float caches for a device: "cpu" or a "cuda" one."""
    return TritonKVCache if device.startswith("cuda") else KVCache
