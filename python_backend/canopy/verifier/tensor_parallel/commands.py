"""What rank 0 tells the others: an operation and its arrays, broadcast as whole numbers.

header     int64 [2 + MAX_ARRAYS]: the operation, how many arrays, the size of each
payload    int64 [sum of the sizes]: the arrays, one after the other; absent when empty
"""

from collections.abc import Sequence
from dataclasses import fields
from enum import IntEnum

import torch
import torch.distributed as dist

from canopy.models.step_batch import StepBatch

MAX_ARRAYS = 8
_INT32_FIELDS = ("parent_rows", "row_starts", "context_lengths", "block_tables")


class Operation(IntEnum):
    """What every rank does at once."""

    PULSE = 0  # show that it lives, and that all it was told before is done
    NEW_CACHE = 1  # arrays: [number of blocks, block size]
    STEP = 2  # arrays: the fields of a StepBatch
    MOVE = 3  # arrays: sources, destinations, [number of sequences]
    STOP = 4


def broadcast(operation: Operation, arrays: Sequence[torch.Tensor] = ()) -> None:
    """On rank 0."""
    sizes = [array.numel() for array in arrays]
    header = torch.zeros(2 + MAX_ARRAYS, dtype=torch.int64)
    header[: 2 + len(sizes)] = torch.tensor([operation, len(sizes), *sizes])
    dist.broadcast(header, 0)
    if sum(sizes):
        flat = [array.reshape(-1).to("cpu", torch.int64) for array in arrays]
        dist.broadcast(torch.cat(flat), 0)


def receive() -> tuple[Operation, list[torch.Tensor]]:
    """On every other rank: the next operation, its arrays flat."""
    header = torch.zeros(2 + MAX_ARRAYS, dtype=torch.int64)
    dist.broadcast(header, 0)
    operation, num_arrays, *sizes = header.tolist()
    sizes = sizes[:num_arrays]
    payload = torch.empty(sum(sizes), dtype=torch.int64)
    if sum(sizes):
        dist.broadcast(payload, 0)
    return Operation(operation), list(payload.split(sizes)) if sizes else []


def arrays_of(batch: StepBatch) -> list[torch.Tensor]:
    """The arrays of Operation.STEP."""
    return [getattr(batch, field.name) for field in fields(batch)]


def batch_of(arrays: Sequence[torch.Tensor], device: str) -> StepBatch:
    """The inverse, on a device."""
    values = {}
    for field, array in zip(fields(StepBatch), arrays, strict=True):
        dtype = torch.int32 if field.name in _INT32_FIELDS else torch.int64
        values[field.name] = array.to(device, dtype)
    num_sequences = len(values["context_lengths"])
    values["block_tables"] = values["block_tables"].view(num_sequences, -1)
    return StepBatch(**values)
