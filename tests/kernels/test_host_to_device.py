"""Arrays arrive as they were, in one buffer, each where kernels may read it."""

import numpy as np
import torch
from kernel_interpreter import DEVICE

from canopy_kernels.host_to_device import ALIGNMENT, copy_packed, packed, views

ARRAYS = {
    "ids": np.arange(3, dtype=np.int32),
    "none": np.zeros((0, 5), np.float32),
    "table": np.arange(6, dtype=np.int64).reshape(2, 3),
    "thresholds": np.array([[0.5, -1.0]], np.float32),
}


def test_arrays_arrive_as_they_were():
    sent = copy_packed(ARRAYS, DEVICE)
    for name, array in ARRAYS.items():
        assert np.array_equal(sent[name].cpu().numpy(), array)
        assert sent[name].cpu().numpy().dtype == array.dtype
        assert sent[name].shape == array.shape
        assert sent[name].is_contiguous()
    places = [tensor.storage_offset() * tensor.itemsize for tensor in sent.values()]
    assert all(place % ALIGNMENT == 0 for place in places)


def test_views_follow_what_is_copied_into_their_buffer():
    buffer = torch.empty_like(packed(ARRAYS.values(), "cpu"))
    table = views(buffer, ARRAYS.values())[2]
    changed = {**ARRAYS, "table": ARRAYS["table"] + 10}
    buffer.copy_(packed(changed.values(), "cpu"))
    assert table.tolist() == changed["table"].tolist()
