"""The blocking client: one connection, one call per request, safe to share among threads.

An answer is read to its end and a cancel goes to the service as a message where the service takes
one: a gRPC cancel close to the end of a stream can abort the server, so it is the last resort.
"""

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from canopy_client.answer import health_from
from canopy_client.request import MODEL, Request, generation, probe
from canopy_client.session import Session
from canopy_client.stream import TextStream
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


class Client:
    """A connection to one model of one server.

    `url` is host:port or grpc://host:port, or http://host:port for HTTP with server-sent events;
    grpcs:// and https:// encrypt. `timeout_s` bounds every request from its start to its end,
    retries included. `headers` go with every call. Raises ValueError for a malformed address.
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
        self._session = Session(Connection(url, headers or {}, tls or Tls()), model)
        self._timeout_s = timeout_s
        self._retry = retry or Retry()

    def generate(self, prompt: Prompt, **options: Unpack[SamplingOptions]) -> Completion:
        """Continue `prompt` as it stands. Raises a ClientError."""
        return _read_all(self.stream(prompt, **options))

    def chat(self, messages: Messages, **options: Unpack[SamplingOptions]) -> Completion:
        """Answer a chat (dicts of role and content), or one user message. Raises a ClientError."""
        return _read_all(self.stream_chat(messages, **options))

    def stream(self, prompt: Prompt, **options: Unpack[SamplingOptions]) -> TextStream:
        """Like `generate`, chunk by chunk; errors are raised by the iteration."""
        return self._start(generation(self._session.model, prompt, None, options))

    def stream_chat(self, messages: Messages, **options: Unpack[SamplingOptions]) -> TextStream:
        """Like `chat`, chunk by chunk; errors are raised by the iteration."""
        return self._start(generation(self._session.model, None, messages, options))

    def health(self) -> Health:
        """Ask the model how it is; one that cannot say is asked for one token.

        The server's own readiness says nothing about its models. Raises Unavailable when nobody
        is there, or what else came instead of an answer.
        """
        version = self._session.transport.server_version()
        info = self.model_info()
        start = time.perf_counter()
        fields: dict[str, Any] = {}
        if "control" in info.inputs:
            fields = self._session.control({"op": "health"})
        else:
            _read_all(TextStream(self._session, probe(info), self._timeout_s, NO_RETRY))
        return health_from(version, (time.perf_counter() - start) * 1e3, fields)

    def model_info(self) -> ModelInfo:
        """The model's own description, asked for once. Raises UnknownModel among others."""
        return self._session.model_info()

    def describe(self) -> dict[str, Any]:
        """The target model, its context, and what a request gets that asks for nothing.

        Empty for a service that does not tell. Raises a ClientError.
        """
        return self._session.describe()

    def tokenize(
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
        reply = self._session.control(operation)
        token_ids: list[int] = reply["token_ids"]
        return token_ids

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of tokens. Raises a ClientError."""
        operation = {"op": "detokenize", "token_ids": list(token_ids)}
        text: str = (self._session.control(operation))["text"]
        return text

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """Each token as the vocabulary spells it, "" where there is none. Raises a ClientError."""
        operation = {"op": "token_strings", "token_ids": list(token_ids)}
        texts: list[str] = (self._session.control(operation))["token_strings"]
        return texts

    def opens_reasoning(
        self, messages: Sequence[Mapping[str, Any]], **options: Unpack[SamplingOptions]
    ) -> bool:
        """Whether the rendered chat ends within <think>. Raises a ClientError.

        options: of the chat template, such as `chat_template_kwargs`.
        """
        asked = {"messages": messages, "parameters": options}
        reply = self._session.control({"op": "opens_reasoning", **asked})
        return bool(reply["opens_reasoning"])

    def models(self) -> list[ModelState]:
        """Every model that the server knows of, the stages of a pipeline included."""
        return self._session.transport.models()

    def close(self) -> None:
        """Close the connection; what still streams is cut off."""
        self._session.transport.close()

    def _start(self, request: Request) -> TextStream:
        return TextStream(self._session, request, self._timeout_s, self._retry)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _read_all(stream: TextStream) -> Completion:
    with stream:
        for _ in stream:
            pass
        return stream.completion
