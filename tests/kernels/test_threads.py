"""Workers of a team see what the others wrote before a meeting."""

import sys

import numpy as np
import pytest
from numba import njit

from canopy_kernels.cpu.threads import (
    WorkerContext,
    WorkerThreads,
    barrier,
    partition,
    without_refcounts,
)

NUM_PHASES = 400


@njit(nogil=True)
def _write_and_compare(written, faults, context):
    num_phases = written.shape[1]
    for phase in range(num_phases):
        written[context.worker, phase] = phase + 1
        barrier(context)
        for other in range(context.num_workers):
            if written[other, phase] != phase + 1:
                faults[context.worker] += 1
            if phase + 1 < num_phases and written[other, phase + 1] != 0:
                faults[context.worker] += 1
        barrier(context)


@pytest.mark.parametrize("num_workers", [1, 2, 5])
def test_nobody_leaves_a_meeting_before_all_have_come(num_workers):
    team = WorkerThreads(num_workers)
    for _ in range(3):
        written = np.zeros((num_workers, NUM_PHASES), np.int64)
        faults = np.zeros(num_workers, np.int64)
        team.run(_write_and_compare, written, faults)
        assert not faults.any()
        assert np.array_equal(written, np.tile(np.arange(1, NUM_PHASES + 1), (num_workers, 1)))


@pytest.mark.parametrize("count", [0, 1, 2, 10, 97])
@pytest.mark.parametrize("num_workers", [1, 3, 8])
def test_shares_cover_everything_once_and_evenly(count, num_workers):
    places = [
        WorkerContext(np.zeros(1, np.int64), worker, num_workers) for worker in range(num_workers)
    ]
    shares = [partition.py_func(context, count) for context in places]
    covered = [index for first, end in shares for index in range(first, end)]
    assert covered == list(range(count))
    sizes = [end - first for first, end in shares]
    assert max(sizes) - min(sizes) <= 1


@njit(nogil=True)
def _add_rows_of_borrowed(counts, context):
    (total, rows), context = without_refcounts((counts, context))
    first, end = partition(context, len(total))
    for index in range(first, end):
        view = rows[index]
        total[index] += view.sum()


def test_borrowed_arrays_are_the_same_arrays_and_stay_with_their_owner():
    total, rows = np.ones(5), np.arange(20.0).reshape(5, 4)
    references = sys.getrefcount(total), sys.getrefcount(rows)
    WorkerThreads(2).run(_add_rows_of_borrowed, (total, rows))
    assert total.tolist() == [7.0, 23.0, 39.0, 55.0, 71.0]
    assert (sys.getrefcount(total), sys.getrefcount(rows)) == references
