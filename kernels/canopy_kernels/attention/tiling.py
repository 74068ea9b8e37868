"""How the work of one attention program is cut, and how many programs a card runs at once."""

from dataclasses import dataclass, replace
from functools import cache

import torch

INTERPRETED_PROGRAMS = 8  # there is no card to fill
INTERPRETED_CAPABILITY = 90


@dataclass(frozen=True)
class Kind:
    """What a program's registers depend on beside its tile."""

    dtype: torch.dtype
    head_dim: int
    is_plain: bool = True  # no window, soft cap or sinks


@dataclass(frozen=True)
class Tiling:
    """Chosen so that nothing spills, no two warps compute the same product, and copies overlap."""

    rows: int  # packed: rows times the query heads of a KV head
    keys: int
    num_warps: int
    num_stages: int = 3
    programs_per_sm: int = 2

    @staticmethod
    def of(kind: "Kind", packed_rows: int, capability: int = 90) -> "Tiling":
        """packed_rows: of a sequence, on average. capability: 90 for 9.0.

        Hopper's matrix instructions take their tiles from shared memory and add up in registers:
        it alone has room for 64 keys at a time. float32 is multiplied in full precision, without
        tensor cores.
        """
        if kind.dtype.itemsize > 2:
            return Tiling(16, 16, num_warps=4, num_stages=1)
        is_hopper, is_wide = capability // 10 == 9, kind.head_dim > 128
        if packed_rows <= 16:
            return Tiling(16, 64 if is_hopper and not is_wide else 32, num_warps=4)
        if is_hopper and not (is_wide and packed_rows <= 64):
            keys = 32 if is_wide else 64
            if packed_rows <= 64:
                return Tiling(64, keys, num_warps=4)
            return Tiling(128, keys, num_warps=8, programs_per_sm=1)
        if is_wide or not kind.is_plain:
            return Tiling(32, 32, num_warps=4)
        if packed_rows <= 64:
            return Tiling(64, 32, num_warps=4)
        return Tiling(128, 32, num_warps=8, programs_per_sm=1)

    def within(self, block_size: int) -> "Tiling":
        """A tile of keys lies in one block of the cache."""
        assert block_size >= 16
        assert block_size & (block_size - 1) == 0
        return replace(self, keys=min(self.keys, block_size))


def capability_of(device: torch.device) -> int:
    """90 for 9.0."""
    return _capability(device) if device.type == "cuda" else INTERPRETED_CAPABILITY


def num_programs_on(device: torch.device, tiling: Tiling) -> int:
    """How many programs the card runs at once."""
    if device.type != "cuda":
        return INTERPRETED_PROGRAMS
    return _num_sms(device) * tiling.programs_per_sm


@cache
def _num_sms(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@cache
def _capability(device: torch.device) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor
