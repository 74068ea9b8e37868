"""Messages to and from the tensors of the Triton server, generic over messages.py.

With stages/bls.py and the adapters the only importer of `triton_python_backend_utils`, which
exists inside the server's Python stub alone.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import triton_python_backend_utils as pb_utils

from canopy.messages import array_fields

M = TypeVar("M")


def to_tensors(message: Any) -> list[Any]:
    """All fields of a message as pb_utils tensors."""
    return [
        pb_utils.Tensor(name, np.ascontiguousarray(getattr(message, name), dtype))
        for name, dtype in array_fields(message).items()
    ]


def request_message(kind: type[M], request: Any) -> M:
    """The message in an InferenceRequest."""
    return _message(kind, lambda name: pb_utils.get_input_tensor_by_name(request, name))


def response_message(kind: type[M], response: Any) -> M:
    """The message in an InferenceResponse."""
    return _message(kind, lambda name: pb_utils.get_output_tensor_by_name(response, name))


def _message(kind: type[M], tensor: Callable[[str], Any]) -> M:
    # as_numpy is a view of shared memory that lives no longer than the request: copy.
    return kind(**{name: np.array(tensor(name).as_numpy()) for name in array_fields(kind)})


def serve_stage(requests: list[Any], kind: type[M], answer: Callable[[M], Any]) -> list[Any]:
    """The body of a plain stage's `execute`: message in, message out, errors as responses."""
    responses = []
    for request in requests:
        try:
            reply = answer(request_message(kind, request))
            responses.append(pb_utils.InferenceResponse(output_tensors=to_tensors(reply)))
        except Exception as error:
            pb_utils.Logger.log_error(f"{kind.__name__}: {error!r}")
            responses.append(
                pb_utils.InferenceResponse(
                    error=pb_utils.TritonError(f"{type(error).__name__}: {error}")
                )
            )
    return responses
