"""The key and value tensors of a paged cache, as int8 on the CPU."""

import torch

from canopy.errors import InvalidDeployment
from canopy_kernels.int8.kv_cache import GROUP, move, new_key_values


class Int8KVCache:
    """Like `KVCache`, in the layout of canopy_kernels.int8.kv_cache; slots are the same."""

    def __init__(
        self, num_layers: int, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int
    ) -> None:
        if block_size % GROUP:
            raise InvalidDeployment(
                f"with int8 cache.block_size must be a multiple of {GROUP}, not {block_size}"
            )
        self.block_size = block_size
        self.num_blocks = num_blocks
        num_groups = num_blocks * block_size // GROUP
        self.arrays = new_key_values(num_layers, num_groups, num_kv_heads, head_dim)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def move(self, sources: torch.Tensor, destinations: torch.Tensor) -> None:
        """Copy slots to other slots in all layers; see `models.decoder.Cache.move`."""
        moved = sources >= 0
        move(self.arrays, sources[moved].numpy(), destinations[moved].numpy())
