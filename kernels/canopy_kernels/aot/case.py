"""A kernel at a size that it is launched with, for compilation without a launch.

A signature names the type of each argument that is no constant: "*bf16" is a pointer, "i32" a
number, and a tuple stands for a tuple of arguments.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

POINTERS = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}
Signature = dict[str, str | tuple[str, ...]]


@dataclass(frozen=True)
class KernelCase:
    """One kernel with what its launcher fixes at compile time."""

    kernel: Any
    name: str
    signature: Signature
    constants: dict[str, Any]
    options: dict[str, int] = field(default_factory=dict)  # num_warps, num_stages
    multiples_of_16: tuple[tuple[int, ...], ...] = ()  # places of such numbers among the arguments
    min_blocks_per_sm: int = 1
    overlaps_copies: bool = False  # must copies be under way while tiles are computed?

    def full_signature(self) -> Signature:
        """All arguments in order, constants included."""
        types = {**self.signature, **dict.fromkeys(self.constants, "constexpr")}
        return {name: types[name] for name in self.kernel.arg_names}

    def alignment(self) -> dict[tuple[int, ...], list[list[Any]]]:
        """Every pointer is a multiple of 16 bytes, as those of torch's allocations are."""
        places = (*self._pointers(), *self.multiples_of_16)
        return {place: [["tt.divisibility", 16]] for place in places}

    def _pointers(self) -> Iterator[tuple[int, ...]]:
        for index, types in enumerate(self.full_signature().values()):
            if isinstance(types, tuple):
                yield from ((index, i) for i, kind in enumerate(types) if kind.startswith("*"))
            elif types.startswith("*"):
                yield (index,)
