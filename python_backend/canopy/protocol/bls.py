"""The stages behind the Triton server: the Protocols of stages.py through BLS."""

from collections.abc import Callable
from typing import Any, TypeVar

import triton_python_backend_utils as pb_utils

from canopy.errors import ServerStopping, StageFailed
from canopy.protocol.messages import (
    BuildReply,
    BuildRequest,
    DraftReply,
    DraftRequest,
    VerifyReply,
    VerifyRequest,
)
from canopy.protocol.triton_io import PING, REPLY, REQUEST, message_of, message_tensor

R = TypeVar("R")


# What the server says of every model once it has begun to stop.
_STOPPING = ("Server not ready", "Server is stopping")


def _exchange(model_name: str, message: Any, read: Callable[[Any], R]) -> R:
    """What `read` makes of the reply tensor, which lives no longer than the response.

    Raises StageFailed.
    """
    request = pb_utils.InferenceRequest(
        model_name=model_name, requested_output_names=[REPLY], inputs=[message]
    )
    try:
        response = request.exec()
    except pb_utils.TritonModelException as error:
        raise _failure(model_name, str(error)) from error
    if response.has_error():
        raise _failure(model_name, response.error().message())
    try:
        return read(pb_utils.get_output_tensor_by_name(response, REPLY))
    except ValueError as error:
        raise StageFailed(model_name, f"its reply is malformed: {error}") from error


def _failure(model_name: str, text: str) -> StageFailed:
    kind = ServerStopping if any(sign in text for sign in _STOPPING) else StageFailed
    return kind(model_name, text)


def _call(model_name: str, message: Any, reply_kind: type[R]) -> R:
    tensor = message_tensor(REQUEST, message)
    return _exchange(model_name, tensor, lambda reply: message_of(reply_kind, reply))


def ping(model_name: str) -> None:
    """Return if a stage answers. Raises StageFailed."""
    _exchange(model_name, pb_utils.Tensor(REQUEST, PING), lambda reply: None)


class BlsDrafter:
    """`stages.protocol.Drafter` in the model `draft`."""

    def draft(self, request: DraftRequest) -> DraftReply:
        """One BLS call. Raises StageFailed."""
        return _call("draft", request, DraftReply)


class BlsTreeBuilder:
    """`stages.protocol.TreeBuilder` in the model `tree_builder`."""

    def build(self, request: BuildRequest) -> BuildReply:
        """One BLS call. Raises StageFailed."""
        return _call("tree_builder", request, BuildReply)


class BlsVerifier:
    """`stages.protocol.Verifier` in the model `verifier`."""

    def verify(self, request: VerifyRequest) -> VerifyReply:
        """One BLS call. Raises StageFailed."""
        return _call("verifier", request, VerifyReply)
