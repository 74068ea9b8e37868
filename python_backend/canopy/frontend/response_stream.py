"""The pieces of one answer as responses of the entry model."""

import json
from collections.abc import Collection
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from canopy.engine.output import Delta
from canopy.frontend.reply import Reply
from canopy.frontend.response_thread import ResponseThread


class TritonSink(Reply):
    """`engine.output.Sink` of an accepted request: pieces as the vLLM backend names them."""

    def __init__(
        self,
        sender: Any,
        response_thread: ResponseThread,
        request_id: str = "",
        returned_outputs: Collection[str] = (),
        num_input_tokens: int = 0,
    ) -> None:
        super().__init__(sender, response_thread)
        self.request_id = request_id
        self._returned = returned_outputs
        self._num_input_tokens = num_input_tokens

    def send(self, delta: Delta) -> None:
        """One response; the last one carries the speculation report."""
        self.respond(lambda: self._tensors(delta), delta.is_last)

    def _tensors(self, delta: Delta) -> list[Any]:
        tensors = [_string("text_output", delta.text)]
        if "finish_reason" in self._returned:
            tensors.append(_string("finish_reason", str(delta.finish_reason)))
        if "num_input_tokens" in self._returned:
            tensors.append(_count("num_input_tokens", self._num_input_tokens))
        if "num_output_tokens" in self._returned:
            tensors.append(_count("num_output_tokens", delta.num_tokens))
        if delta.report is not None:
            tensors.append(_string("speculation", json.dumps(delta.report)))
        if delta.rounds is not None:
            tensors.append(_string("trace", json.dumps(delta.rounds)))
        return tensors


def _string(name: str, text: str) -> Any:
    return pb_utils.Tensor(name, np.array([text.encode("utf-8")], np.object_))


def _count(name: str, count: int) -> Any:
    return pb_utils.Tensor(name, np.array([count], np.uint32))
