"""A paged cache on a GPU whose attention does not depend on the tree around a row."""

import torch

from canopy.kv_cache.triton_cache import TritonKVCache
from canopy_kernels.attention.batch_invariant_attention import batch_invariant_attention
from canopy_kernels.attention.paged_rows import PagedRows


class BatchInvariantKVCache(TritonKVCache):
    """As TritonKVCache, every row summing over its own path."""

    def attend(
        self, layer: int, query: torch.Tensor, rows: PagedRows, scale: float
    ) -> torch.Tensor:
        """As `KVCache.attend`."""
        return batch_invariant_attention(query, self.keys[layer], self.values[layer], rows, scale)
