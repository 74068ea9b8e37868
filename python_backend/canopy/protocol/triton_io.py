"""Messages to and from the tensors of the Triton server, generic over messages.py.

With bls.py and the adapters the only importer of `triton_python_backend_utils`, which
exists inside the server's Python stub alone.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import triton_python_backend_utils as pb_utils

from canopy.protocol.messages import pack, unpack

M = TypeVar("M")

# The one input and the one output of a stage, as in its config.pbtxt.
REQUEST = "request"
REPLY = "reply"

# One byte is no message: whoever gets it says no more than that it is there.
PING = np.zeros(1, np.uint8)


def message_tensor(name: str, message: Any) -> Any:
    """A message as a pb_utils tensor."""
    return pb_utils.Tensor(name, pack(message))


def message_of(kind: type[M], tensor: Any) -> M:
    """The message in a pb_utils tensor. Raises ValueError when it is another."""
    # as_numpy is a view of shared memory that lives no longer than the request: copy.
    return unpack(kind, np.array(tensor.as_numpy()))


def serve_stage(requests: list[Any], kind: type[M], answer: Callable[[M], Any]) -> list[Any]:
    """The body of a plain stage's `execute`: message in, message out, errors as responses."""
    responses = []
    for request in requests:
        try:
            tensor = pb_utils.get_input_tensor_by_name(request, REQUEST)
            if len(tensor.as_numpy()) == len(PING):
                reply = pb_utils.Tensor(REPLY, PING)
            else:
                reply = message_tensor(REPLY, answer(message_of(kind, tensor)))
            responses.append(pb_utils.InferenceResponse(output_tensors=[reply]))
        except Exception as error:
            pb_utils.Logger.log_error(f"{kind.__name__}: {error!r}")
            responses.append(
                pb_utils.InferenceResponse(
                    error=pb_utils.TritonError(f"{type(error).__name__}: {error}")
                )
            )
    return responses
