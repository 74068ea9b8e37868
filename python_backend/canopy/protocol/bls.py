"""The stages behind the Triton server: the Protocols of stages.py through BLS."""

from typing import Any, TypeVar

import triton_python_backend_utils as pb_utils

from canopy.errors import StageFailed
from canopy.protocol.messages import (
    BuildReply,
    BuildRequest,
    DraftReply,
    DraftRequest,
    VerifyReply,
    VerifyRequest,
)
from canopy.protocol.triton_io import REPLY, REQUEST, message_of, message_tensor

R = TypeVar("R")


def _call(model_name: str, message: Any, reply_kind: type[R]) -> R:
    request = pb_utils.InferenceRequest(
        model_name=model_name,
        requested_output_names=[REPLY],
        inputs=[message_tensor(REQUEST, message)],
    )
    try:
        response = request.exec()
    except pb_utils.TritonModelException as error:
        raise StageFailed(model_name, str(error)) from error
    if response.has_error():
        raise StageFailed(model_name, response.error().message())
    try:
        return message_of(reply_kind, pb_utils.get_output_tensor_by_name(response, REPLY))
    except ValueError as error:
        raise StageFailed(model_name, f"its reply is malformed: {error}") from error


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
