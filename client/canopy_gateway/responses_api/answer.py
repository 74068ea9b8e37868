"""One answer of /v1/responses: the object, and the events of its stream."""

from collections.abc import Iterable, Iterator
from typing import Any

from canopy_client import Chunk, Completion
from canopy_gateway.errors import APIError
from canopy_gateway.responses import Head, usage_of
from canopy_gateway.responses_api.output_items import OutputItems
from canopy_gateway.responses_api.request import ResponsesRequest
from canopy_gateway.tools.events import Reasoning
from canopy_gateway.tools.formats import AnswerParser

_ENDS = {"stop": "completed", "length": "incomplete"}


class ResponseAnswer:
    """Grows chunk by chunk, whether it is streamed or not."""

    def __init__(self, request: ResponsesRequest, head: Head, parser: AnswerParser) -> None:
        self._request = request
        self._head = head
        self._parser = parser
        self._output = OutputItems()
        self._num_events = 0
        self._num_reasoning_tokens = 0  # those of a chunk that ends reasoning all count

    def begin(self) -> Iterator[dict[str, Any]]:
        """The events before any text."""
        for name in ("created", "in_progress"):
            yield from self._numbered([self._event(name, self._told("in_progress"))])

    def feed(self, chunk: Chunk) -> Iterator[dict[str, Any]]:
        """The events of the next chunk; they must be read."""
        events = [*self._parser.feed(chunk.text), *(self._parser.end() if chunk.is_last else ())]
        if any(isinstance(event, Reasoning) for event in events):
            self._num_reasoning_tokens += chunk.num_tokens
        for event in events:
            yield from self._numbered(self._output.add(event))
        if chunk.is_last:
            yield from self._numbered(self._output.end(_ENDS[chunk.finish_reason or "stop"]))

    def end(self, completion: Completion) -> Iterator[dict[str, Any]]:
        """The event after all text."""
        status = _ENDS[completion.finish_reason]
        yield from self._numbered([self._event(status, self.whole(completion))])

    def failed(self, error: APIError) -> Iterator[dict[str, Any]]:
        """The event of an answer that broke off."""
        told = {"error": {"code": "server_error", "message": str(error)}}
        yield from self._numbered([self._event("failed", self._told("failed") | told)])

    def whole(self, completion: Completion) -> dict[str, Any]:
        """The object, when everything was fed."""
        status = _ENDS[completion.finish_reason]
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        usage = usage_of([completion], 1)
        told = {
            "incomplete_details": reason,
            "speculation": completion.speculation,
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": usage["prompt_tokens_details"],
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": self._num_reasoning_tokens},
                "total_tokens": usage["total_tokens"],
            },
        }
        return self._told(status) | told

    def _numbered(self, events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for event in events:
            yield event | {"sequence_number": self._num_events}
            self._num_events += 1

    def _event(self, name: str, told: dict[str, Any]) -> dict[str, Any]:
        return {"type": f"response.{name}", "response": told}

    def _told(self, status: str) -> dict[str, Any]:
        request = self._request
        return {
            "id": self._head.id,
            "object": "response",
            "created_at": self._head.created,
            "model": self._head.model,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": {},
            "output": [item.told() for item in self._output.items],
            "parallel_tool_calls": request.parallel_tool_calls,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": request.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": request.top_p,
            "truncation": "disabled",
            "usage": None,
            **request.echoed,
        }
