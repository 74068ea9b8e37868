"""One parallel region for many small phases: threads that share the work and meet at barriers.

A forward pass on a CPU consists of hundreds of phases of a few microseconds each. Starting threads
for every phase would cost more than the phases; a team is started once, runs one compiled
function on every worker, and that function calls `barrier` between its phases.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

# Looks at the barrier before the processor is offered to other threads, a few microseconds.
SPIN_LIMIT = 2000


class WorkerContext(NamedTuple):
    """A worker's place in its team; `barrier` counts arrivals."""

    arrivals: np.ndarray  # int64 [1], zero at the start of a run
    worker: int
    num_workers: int


class WorkerThreads:
    """Runs compiled functions on several threads at once, the caller's among them."""

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self._threads = ThreadPoolExecutor(max(num_workers - 1, 1), "worker")

    def run(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call `function(*arguments, context)` once per worker; return when all have returned.

        The function must release the GIL, must not raise, and every worker must meet as often.
        """
        arrivals = np.zeros(1, np.int64)
        places = [
            WorkerContext(arrivals, worker, self.num_workers) for worker in range(self.num_workers)
        ]
        others = [self._threads.submit(function, *arguments, context) for context in places[1:]]
        function(*arguments, places[0])
        for other in others:
            other.result()


@njit(cache=True, nogil=True)
def barrier(context):
    """Wait until every worker of the team has come here; what they wrote before is visible."""
    if context.num_workers > 1:
        arrival = _increment(context.arrivals.ctypes.data)
        last = arrival - arrival % context.num_workers + context.num_workers
        looks = 0
        while _current(context.arrivals.ctypes.data) < last:
            looks += 1
            if looks > SPIN_LIMIT:
                _sched_yield()


@njit(inline="always")
def partition(context, count):
    """The worker's contiguous part of range(count): first and end."""
    first = count * context.worker // context.num_workers
    return first, count * (context.worker + 1) // context.num_workers


_sched_yield = types.ExternalFunction("sched_yield", types.int32())


@intrinsic
def _increment(context, address):
    """Atomically add one; the number before."""

    def codegen(context, builder, signature, arguments):
        counter = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", counter, ir.Constant(ir.IntType(64), 1), "seq_cst")

    return types.int64(types.intp), codegen


@intrinsic
def _current(context, address):
    def codegen(context, builder, signature, arguments):
        counter = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load_atomic(counter, "seq_cst", 8)

    return types.int64(types.intp), codegen


@intrinsic
def without_refcounts(context, value):
    """The arrays of nested tuples, no longer counted; somebody else keeps them alive meanwhile.

    Every view of an array counts it up and down. Where several workers do that at once, they wait
    for each other's counting.
    """

    def codegen(context, builder, signature, arguments):
        return _without_owner(context, builder, signature.args[0], arguments[0])

    return value(value), codegen


def _without_owner(context, builder, kind, value):
    if isinstance(kind, types.Array):
        array = cgutils.create_struct_proxy(kind)(context, builder, value=value)
        array.meminfo = cgutils.get_null_value(array.meminfo.type)
        array.parent = cgutils.get_null_value(array.parent.type)
        return array._getvalue()
    if isinstance(kind, types.BaseTuple):
        for index, element in enumerate(kind):
            part = builder.extract_value(value, index)
            part = _without_owner(context, builder, element, part)
            value = builder.insert_value(value, part, index)
    return value
