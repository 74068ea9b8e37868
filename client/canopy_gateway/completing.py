"""From a checked request to its answer: one stream of the server per choice."""

import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from starlette.responses import JSONResponse, Response

from canopy_client import NO_RETRY, AsyncClient, AsyncTextStream, Tls
from canopy_gateway.answers import Admission, Answers, choice_seed
from canopy_gateway.errors import Refusal
from canopy_gateway.event_stream import EventStream
from canopy_gateway.schema import ChatRequest, CompletionRequest, SamplingRequest
from canopy_gateway.settings import GatewaySettings
from canopy_gateway.shapes import ChatShape, CompletionShape, Head, Shape, usage_of

Start = Callable[..., AsyncTextStream]


def connect(settings: GatewaySettings) -> AsyncClient:
    """The client of the server behind. It never retries: the gateway's own clients do."""
    return AsyncClient(
        settings.server_url,
        settings.request_timeout_s,
        model=settings.model,
        tls=settings.tls if settings.tls != Tls() else None,
        retry=NO_RETRY,
    )


class Completer:
    """Answers chats and completions."""

    def __init__(self, client: AsyncClient, settings: GatewaySettings) -> None:
        self._client = client
        self._settings = settings
        self._admission = Admission(settings.max_concurrent, settings.retry_after_s)

    async def chat(self, request: ChatRequest) -> Response:
        """Raises Refusal and ClientError."""
        messages = [message.for_server() for message in request.messages]
        self._check_size(sum(len(m["content"].encode()) for m in messages), "messages")
        start = partial(self._client.stream_chat, messages)
        return await self._answer(request, [start], ChatShape())

    async def complete(self, request: CompletionRequest) -> Response:
        """Raises Refusal and ClientError."""
        self._check_size(sum(len(prompt.encode()) for prompt in request.prompts), "prompt")
        starts = [partial(self._client.stream, prompt) for prompt in request.prompts]
        return await self._answer(request, starts, CompletionShape())

    async def _answer(
        self, request: SamplingRequest, starts: Sequence[Start], shape: Shape
    ) -> Response:
        self._check_model(request.model)
        streams = self._choices(request, starts)
        head = Head(f"{shape.prefix}-{uuid.uuid4().hex}", int(time.time()), request.model)
        headers = {"X-Request-Id": head.id}
        answers = await Answers.open(streams, self._admission)
        if request.stream:
            count = request.num_choices if request.includes_usage else None
            return EventStream(answers, shape, head, count, headers)
        try:
            async for _ in answers.pieces():
                pass
            completions = answers.completions
        finally:
            await answers.close()
        usage = usage_of(completions, request.num_choices)
        return JSONResponse(shape.whole(head, completions, usage), headers=headers)

    def _choices(self, request: SamplingRequest, starts: Sequence[Start]) -> list[Start]:
        """`n` answers of each prompt, those of one prompt together."""
        count = len(starts) * request.num_choices
        if count > self._settings.max_choices:
            limit = self._settings.max_choices
            raise Refusal(400, f"{count} answers were asked for, at most {limit} are", param="n")
        options: dict[str, Any] = {**request.options()}
        choices: list[Start] = []
        for start in starts:
            for index in range(request.num_choices):
                seed = choice_seed(request.seed, index)
                own = options if seed is None else {**options, "seed": seed}
                choices.append(partial(start, **own))
        return choices

    def _check_model(self, name: str) -> None:
        if name not in self._settings.names:
            known = ", ".join(self._settings.names)
            message = f"there is no model {name[:80]!r}: known are {known}"
            raise Refusal(404, message, "model_not_found", "model")

    def _check_size(self, size: int, name: str) -> None:
        limit = self._settings.max_prompt_bytes
        if size > limit:
            message = f"{name}: {size} bytes of text, at most {limit} are accepted"
            raise Refusal(400, message, "prompt_too_large", name)
