"""How attention over the int8 cache is cut into units, and which units are whose.

A unit is some rows of a sequence and a KV head: rows that are computed together share what is read
of the cache. Units are shared out by the lengths of their paths, in one order for all workers, so
that a worker's units follow each other: what the next one reads can be asked for in time.

`layout` is `PagedRows.arrays`, its block size a multiple of GROUP.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from canopy_kernels.int8.kv_cache import GROUP
from canopy_kernels.int8.layout import tile_height


class WorkItem(NamedTuple):
    """Rows first .. end of a sequence whose rows begin at start, of a step."""

    sequence: int
    start: int
    first: int
    end: int
    kv_head: int


@njit(cache=True, nogil=True, error_model="numpy")
def partition_of_items(layout, most_rows, num_kv_heads, worker, num_workers):
    """A worker's items, int64 [n, 5] with the fields of WorkItem, of at most most_rows rows."""
    starts, context_lengths = layout[2:4]
    units = np.empty((starts[-1] * num_kv_heads, 5), np.int64)
    total = _cost_of_all(layout, most_rows, num_kv_heads)
    before = count = 0
    for sequence in range(len(context_lengths)):
        start, last = starts[sequence], starts[sequence + 1]
        height = _rows_at_once(last - start, most_rows)
        for first in range(start, last, height):
            end = min(first + height, last)
            for kv_head in range(num_kv_heads):
                if before * num_workers // total == worker:
                    unit = units[count]
                    unit[0], unit[1], unit[2], unit[3] = sequence, start, first, end
                    unit[4] = kv_head
                    count += 1
                before += _cost(context_lengths[sequence], start, first, end)
    return units[:count]


@njit(inline="always")
def unit_at(units, index):
    row = units[index]
    return WorkItem(row[0], row[1], row[2], row[3], row[4])


@njit(inline="always")
def _cost_of_all(layout, most_rows, num_kv_heads):
    starts, context_lengths = layout[2:4]
    total = 0
    for sequence in range(len(context_lengths)):
        start, last = starts[sequence], starts[sequence + 1]
        height = _rows_at_once(last - start, most_rows)
        for first in range(start, last, height):
            end = min(first + height, last)
            total += num_kv_heads * _cost(context_lengths[sequence], start, first, end)
    return total


@njit(inline="always")
def _rows_at_once(num_rows, most_rows):
    """Parts of a sequence are as even as can be, so that workers have shares as even as can be."""
    return tile_height(max(num_rows, 1), most_rows)


@njit(inline="always")
def _cost(context_length, start, first, end):
    return (end - first) * (context_length + end - start)


@njit(inline="always")
def most_groups(longest_table, block_size, num_rows):
    """No unit has more groups, with so many blocks in a sequence's table and rows in a step."""
    return longest_table * block_size // GROUP + num_rows


@njit(inline="always")
def find_groups(layout, unit, groups, lanes):
    """List the groups of the context and of the step's rows up to the unit's last; their number.

    groups: int64, overwritten. lanes: int64 [rows of the sequence so far], overwritten with the
    rows' places among the lanes of all groups.
    """
    slots, _, _, context_lengths, block_tables, block_size = layout
    num_groups = 0
    for position in range(0, context_lengths[unit.sequence], GROUP):
        block = np.int64(block_tables[unit.sequence, position // block_size])
        groups[num_groups] = (block * block_size + position % block_size) // GROUP
        num_groups += 1
    for row in range(unit.start, unit.end):
        if row == unit.start or slots[row] // GROUP != slots[row - 1] // GROUP:
            groups[num_groups] = slots[row] // GROUP
            num_groups += 1
        lanes[row - unit.start] = GROUP * (num_groups - 1) + slots[row] % GROUP
    return num_groups
