"""The asynchronous client: like `Client`, for one event loop.

Its answers are received by tasks that outlive their readers: whoever stops reading, even by being
cancelled, leaves behind a task that tells the server and reads the answer to its end.
"""

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from canopy_client.answer import health_from
from canopy_client.async_session import AsyncSession
from canopy_client.async_stream import AsyncTextStream
from canopy_client.request import MODEL, Request, generation, probe
from canopy_client.transports.base import Connection
from canopy_client.types import (
    NO_RETRY,
    Completion,
    Health,
    Messages,
    ModelInfo,
    ModelState,
    Prompt,
    Retry,
    SamplingOptions,
    Tls,
)


class AsyncClient:
    """A connection to one model of one server; arguments as those of `Client`.

    Made and used where one event loop runs.
    """

    def __init__(
        self,
        url: str = "127.0.0.1:8001",
        timeout_s: float = 600.0,
        *,
        model: str = MODEL,
        headers: Mapping[str, str] | None = None,
        tls: Tls | None = None,
        retry: Retry | None = None,
    ) -> None:
        self._session = AsyncSession(Connection(url, headers or {}, tls or Tls()), model)
        self._timeout_s = timeout_s
        self._retry = retry or Retry()

    async def generate(self, prompt: Prompt, **options: Unpack[SamplingOptions]) -> Completion:
        """Continue `prompt` as it stands. Raises a ClientError."""
        return await _read_all(self.stream(prompt, **options))

    async def chat(self, messages: Messages, **options: Unpack[SamplingOptions]) -> Completion:
        """Answer a chat (dicts of role and content), or one user message. Raises a ClientError."""
        return await _read_all(self.stream_chat(messages, **options))

    def stream(self, prompt: Prompt, **options: Unpack[SamplingOptions]) -> AsyncTextStream:
        """Like `generate`, chunk by chunk; errors are raised by the iteration."""
        return self._start(generation(self._session.model, prompt, None, options))

    def stream_chat(
        self, messages: Messages, **options: Unpack[SamplingOptions]
    ) -> AsyncTextStream:
        """Like `chat`, chunk by chunk; errors are raised by the iteration."""
        return self._start(generation(self._session.model, None, messages, options))

    async def health(self) -> Health:
        """Ask the model how it is; one that cannot say is asked for one token.

        The server's own readiness says nothing about its models. Raises Unavailable when nobody
        is there, or what else came instead of an answer.
        """
        version = await self._session.transport.server_version()
        info = await self.model_info()
        start = time.perf_counter()
        fields: dict[str, Any] = {}
        if "control" in info.inputs:
            fields = await self._session.control({"op": "health"})
        else:
            await _read_all(AsyncTextStream(self._session, probe(info), self._timeout_s, NO_RETRY))
        return health_from(version, (time.perf_counter() - start) * 1e3, fields)

    async def model_info(self) -> ModelInfo:
        """The model's own description, asked for once. Raises UnknownModel among others."""
        return await self._session.model_info()

    async def describe(self) -> dict[str, Any]:
        """The target model, its context, and what a request gets that asks for nothing.

        Empty for a service that does not tell. Raises a ClientError.
        """
        return await self._session.describe()

    async def tokenize(
        self,
        prompt: str | None = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_special_tokens: bool = True,
        **options: Unpack[SamplingOptions],
    ) -> list[int]:
        """The tokens of a prompt or of a rendered chat. Raises a ClientError.

        add_special_tokens: those that the model expects around a prompt. options: of the chat
        template, such as `tools`.
        """
        asked = {"text": prompt, "messages": messages, "parameters": options}
        operation = {"op": "tokenize", "add_special_tokens": add_special_tokens, **asked}
        reply = await self._session.control(operation)
        token_ids: list[int] = reply["token_ids"]
        return token_ids

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of tokens. Raises a ClientError."""
        operation = {"op": "detokenize", "token_ids": list(token_ids)}
        text: str = (await self._session.control(operation))["text"]
        return text

    async def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """Each token as the vocabulary spells it, "" where there is none. Raises a ClientError."""
        operation = {"op": "token_strings", "token_ids": list(token_ids)}
        texts: list[str] = (await self._session.control(operation))["token_strings"]
        return texts

    async def opens_reasoning(
        self, messages: Sequence[Mapping[str, Any]], **options: Unpack[SamplingOptions]
    ) -> bool:
        """Whether the rendered chat ends within <think>. Raises a ClientError.

        options: of the chat template, such as `chat_template_kwargs`.
        """
        asked = {"messages": messages, "parameters": options}
        reply = await self._session.control({"op": "opens_reasoning", **asked})
        return bool(reply["opens_reasoning"])

    async def models(self) -> list[ModelState]:
        """Every model that the server knows of, the stages of a pipeline included."""
        return await self._session.transport.models()

    async def close(self) -> None:
        """Let what was cancelled end, for some seconds, and close the connection."""
        await self._session.close()

    def _start(self, request: Request) -> AsyncTextStream:
        return AsyncTextStream(self._session, request, self._timeout_s, self._retry)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


async def _read_all(stream: AsyncTextStream) -> Completion:
    async with stream:
        async for _ in stream:
            pass
        return stream.completion
