"""A message survives the crossing as one tensor of bytes."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy.protocol.messages import (
    BuildReply,
    BuildRequest,
    DraftReply,
    DraftRequest,
    VerifyReply,
    VerifyRequest,
    array_fields,
    pack,
    unpack,
)

KINDS = (DraftRequest, DraftReply, BuildRequest, BuildReply, VerifyRequest, VerifyReply)


@st.composite
def messages(draw):
    kind = draw(st.sampled_from(KINDS))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    lengths = {name: draw(st.integers(0, 9)) for name in array_fields(kind)}
    return kind(
        **{
            name: rng.integers(0, 1 << 16, lengths[name]).astype(dtype)
            for name, dtype in array_fields(kind).items()
        }
    )


@given(messages())
def test_every_field_comes_back_with_its_type(message):
    other = unpack(type(message), pack(message))
    for field in fields(message):
        sent, received = getattr(message, field.name), getattr(other, field.name)
        assert received.dtype == sent.dtype
        np.testing.assert_array_equal(received, sent)


def test_fields_of_other_types_are_converted_as_the_list_says():
    message = VerifyReply(status=np.array([1, 2], np.int64))
    received = unpack(VerifyReply, pack(message))
    assert received.status.dtype == np.int32
    assert received.status.tolist() == [1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_of_another_size_are_refused(kind):
    packed = pack(kind()).copy()
    with pytest.raises(ValueError, match=kind.__name__):
        unpack(kind, np.concatenate([packed, np.zeros(8, np.uint8)]))
    packed[:8].view(np.int64)[0] = -1
    with pytest.raises(ValueError, match=kind.__name__):
        unpack(kind, packed)
