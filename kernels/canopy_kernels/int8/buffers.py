"""What the phases of a quantized step hand to each other, in memory that outlives the step.

Fresh memory costs a page fault for every 4 KB that is written first, in a step of a tree more
than its norms take. T rows of a step, n of them with logits; other sizes as in
canopy_kernels.int8.decoder.
"""

from typing import Any, NamedTuple

import numpy as np

from canopy_kernels.cpu import aligned
from canopy_kernels.int8.attention import Queries, Scratch, new_queries, new_scratch
from canopy_kernels.int8.layout import padded_outputs
from canopy_kernels.int8.linears import NewRows


class Sizes(NamedTuple):
    """Numbers per row; `*` marks those that the linears pad to whole blocks."""

    hidden: int  # E
    num_heads: int  # H
    head_dim: int  # D
    inner: int  # I
    qkv: int  # *
    change: int  # E *
    gate_up: int  # 2I *
    logits: int  # vocabulary *
    num_kv_heads: int  # K
    num_workers: int  # W


class RowFormats(NamedTuple):
    """What makes room for the quantized inputs of linears."""

    layers: NewRows
    head: NewRows


class Buffers(NamedTuple):
    """Of one step."""

    hidden: Any  # T rows of E inputs, quantized for the linears of layers
    mixed_heads: Any  # of H * D inputs
    inner: Any  # of I inputs
    head_inputs: Any  # n rows of E inputs, quantized for the head
    qkv: np.ndarray  # float32 [T, out*]
    queries: Queries
    mixed: np.ndarray  # float32 [T, H, D']
    change: np.ndarray  # float32 [T, E*] what is added to hidden next; zero at first
    gate_up: np.ndarray  # float32 [T, out*]
    logits: np.ndarray  # float32 [n, vocabulary*]
    scratch: Scratch


class Workspace:
    """Buffers for one step at a time, of any size; it has room for twice the largest so far."""

    def __init__(self, sizes: Sizes, formats: RowFormats) -> None:
        self._sizes = sizes
        self._formats = formats
        self._capacity = (0, 0, 0)
        self._whole = self._part = _allocate(sizes, formats, *self._capacity)

    def buffers(self, num_rows: int, num_logit_rows: int, num_groups: int) -> Buffers:
        """Those that the step before had are overwritten.

        num_groups: at least `int8_units.most_groups`.
        """
        wanted = num_rows, num_logit_rows, num_groups
        if any(size > room for size, room in zip(wanted, self._capacity, strict=True)):
            rows, logit_rows, groups = np.maximum(self._capacity, np.multiply(2, wanted)).tolist()
            self._capacity = rows, logit_rows, groups
            self._whole = _allocate(self._sizes, self._formats, *self._capacity)
            self._part = self._whole
        if (num_rows, num_logit_rows) != (len(self._part.qkv), len(self._part.logits)):
            self._part = _first_rows(self._whole, num_rows, num_logit_rows)
        self._part.change[...] = 0.0
        return self._part


def _allocate(
    sizes: Sizes, formats: RowFormats, num_rows: int, num_logit_rows: int, num_groups: int
) -> Buffers:
    mixed = sizes.num_heads * sizes.head_dim
    num_members = sizes.num_heads // sizes.num_kv_heads
    heads = num_rows, sizes.num_heads
    return Buffers(
        hidden=formats.layers(num_rows, sizes.hidden),
        mixed_heads=formats.layers(num_rows, mixed),
        inner=formats.layers(num_rows, sizes.inner),
        head_inputs=formats.head(num_logit_rows, sizes.hidden),
        qkv=aligned.empty((num_rows, sizes.qkv), np.float32),
        queries=new_queries(num_rows, sizes.num_heads, sizes.head_dim),
        mixed=aligned.empty((*heads, padded_outputs(sizes.head_dim)), np.float32),
        change=aligned.empty((num_rows, sizes.change), np.float32),
        gate_up=aligned.empty((num_rows, sizes.gate_up), np.float32),
        logits=aligned.empty((num_logit_rows, sizes.logits), np.float32),
        scratch=new_scratch(sizes.num_workers, num_members, num_groups, sizes.head_dim),
    )


def _first_rows(whole: Buffers, num_rows: int, num_logit_rows: int) -> Buffers:
    queries = whole.queries
    return whole._replace(
        qkv=whole.qkv[:num_rows],
        queries=queries._replace(q=queries.q[:num_rows], scales=queries.scales[:num_rows]),
        mixed=whole.mixed[:num_rows],
        change=whole.change[:num_rows],
        gate_up=whole.gate_up[:num_rows],
        logits=whole.logits[:num_logit_rows],
    )
