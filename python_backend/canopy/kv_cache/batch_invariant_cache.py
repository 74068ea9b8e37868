"""A paged cache on a GPU whose attention does not depend on the tree around a row."""

import torch

from canopy.kv_cache.triton_cache import KernelKVCache
from canopy_kernels.attention.batch_invariant_attention import launch_path_attention
from canopy_kernels.attention.paged_rows import PagedRows


class PathKVCache(KernelKVCache):
    """As KernelKVCache, every row summing over its own path."""

    def attend(
        self, layer: int, query: torch.Tensor, rows: PagedRows, scale: float
    ) -> torch.Tensor:
        """As `KVCache.attend`."""
        return launch_path_attention(query, self.keys[layer], self.values[layer], rows, scale)
