"""The pieces of one answer as responses of the entry model."""

import json
from collections.abc import Collection
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from canopy.engine.output import Delta
from canopy.frontend.reply import Reply
from canopy.frontend.response_thread import ResponseThread
from canopy.frontend.token_texts import TokenTexts


class TritonSink(Reply):
    """`engine.output.Sink` of an accepted request: pieces as the vLLM backend names them."""

    def __init__(
        self,
        sender: Any,
        response_thread: ResponseThread,
        request_id: str = "",
        returned_outputs: Collection[str] = (),
        token_texts: TokenTexts | None = None,
    ) -> None:
        """token_texts: spells log-probs, where they are asked for."""
        super().__init__(sender, response_thread)
        self.request_id = request_id
        self._returned = returned_outputs
        self._token_texts = token_texts

    def send(self, delta: Delta) -> None:
        """One response; the last one carries the speculation report."""
        self.respond(lambda: self._tensors(delta), delta.is_last)

    def _tensors(self, delta: Delta) -> list[Any]:
        tensors = [_string("text_output", delta.text)]
        if "finish_reason" in self._returned:
            tensors.append(_string("finish_reason", str(delta.finish_reason)))
        if "num_input_tokens" in self._returned:
            tensors.append(_count("num_input_tokens", delta.num_input_tokens))
        if "num_output_tokens" in self._returned:
            tensors.append(_count("num_output_tokens", delta.num_tokens))
        if "token_ids" in self._returned:
            tensors.append(pb_utils.Tensor("token_ids", np.array(delta.token_ids, np.int32)))
        if "cumulative_logprob" in self._returned:
            total = sum(token.logprob or 0.0 for token in delta.logprobs)
            tensors.append(pb_utils.Tensor("cumulative_logprob", np.array([total], np.float32)))
        tensors += self._logprobs(delta)
        if delta.report is not None:
            tensors.append(_string("speculation", json.dumps(delta.report)))
        if delta.rounds is not None:
            tensors.append(_string("trace", json.dumps(delta.rounds)))
        return tensors

    def _logprobs(self, delta: Delta) -> list[Any]:
        if self._token_texts is None:
            return []
        tensors = []
        if delta.logprobs:
            told = self._token_texts.logprobs(delta.logprobs)
            tensors.append(_string("logprobs", json.dumps(told)))
        if delta.prompt_logprobs:
            of_prompt = self._token_texts.logprobs(delta.prompt_logprobs)
            tensors.append(_string("prompt_logprobs", json.dumps(of_prompt)))
        return tensors


def _string(name: str, text: str) -> Any:
    return pb_utils.Tensor(name, np.array([text.encode("utf-8")], np.object_))


def _count(name: str, count: int) -> Any:
    return pb_utils.Tensor(name, np.array([count], np.uint32))
