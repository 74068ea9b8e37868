"""From a checked request to its answer: one stream of the server per choice."""

import json
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from starlette.responses import Response

from canopy_client import NO_RETRY, AsyncClient, AsyncTextStream, ClientError, Completion
from canopy_gateway.answers import Admission, Answers, choice_seed
from canopy_gateway.chat_answer import ChatAnswer, answer_parser, has_reasoning
from canopy_gateway.errors import APIError
from canopy_gateway.event_stream import ChunkStream, EventStream
from canopy_gateway.json_text import JsonResponse
from canopy_gateway.logprobs import mean_logprob
from canopy_gateway.responses import ChatShape, CompletionShape, Head, Shape, usage_of
from canopy_gateway.responses_api.answer import ResponseAnswer
from canopy_gateway.responses_api.event_stream import ResponseEventStream
from canopy_gateway.responses_api.request import ResponsesRequest
from canopy_gateway.schema import ChatRequest, CompletionRequest, SamplingRequest
from canopy_gateway.settings import GatewaySettings
from canopy_gateway.tokenization import DetokenizeRequest, TokenizeRequest
from canopy_gateway.tools.formats import AnswerParser
from canopy_gateway.tools.schema import NamedTool

_DESCRIPTION_MAX_AGE_S = 30.0

Start = Callable[..., AsyncTextStream]


def connect(settings: GatewaySettings) -> AsyncClient:
    """The client of the server behind. It never retries: the gateway's own clients do."""
    return AsyncClient(
        settings.server_url,
        settings.request_timeout_s,
        model=settings.model,
        tls=settings.tls,
        retry=NO_RETRY,
    )


class CompletionHandler:
    """Answers chats and completions."""

    def __init__(self, client: AsyncClient, settings: GatewaySettings) -> None:
        self._described: dict[str, Any] = {}
        self._described_s = 0.0
        self._client = client
        self._settings = settings
        self._admission = Admission(
            settings.max_concurrent,
            settings.max_concurrent_per_key or settings.max_concurrent,
            settings.retry_after_s,
        )

    async def describe(self) -> dict[str, Any]:
        """What the server says of itself; empty while it does not answer."""
        try:
            return await self._client.describe()
        except ClientError:
            return {}

    async def _description(self) -> dict[str, Any]:
        """The last one; asked for anew now and then, since a server may change its model.

        Raises ClientError where there is none yet.
        """
        age_s = time.monotonic() - self._described_s
        if not self._described or age_s > _DESCRIPTION_MAX_AGE_S:
            try:
                self._described = await self._client.describe()
            except ClientError:
                if not self._described:
                    raise
            self._described_s = time.monotonic()
        return self._described

    async def tokenize(self, request: TokenizeRequest) -> Response:
        """Raises APIError and ClientError."""
        self._check_model(request.model or self._settings.names[0])
        arguments = request.arguments(self._settings.allow_special_tokens)
        token_ids = await self._client.tokenize(**arguments)
        content = {
            "count": len(token_ids),
            "max_model_len": (await self._description()).get("max_context_length"),
            "tokens": token_ids,
        }
        if request.return_token_strs:
            content["token_strs"] = await self._client.token_strings(token_ids)
        return JsonResponse(content)

    async def detokenize(self, request: DetokenizeRequest) -> Response:
        """Raises APIError and ClientError."""
        self._check_model(request.model or self._settings.names[0])
        return JsonResponse({"prompt": await self._client.detokenize(request.tokens)})

    async def chat(self, request: ChatRequest, api_key: str) -> Response:
        """Raises APIError and ClientError."""
        start, new_parser = await self._chat_start(request)
        is_named = isinstance(request.tool_choice, NamedTool)
        shape = ChatShape(request.num_logprobs, lambda: ChatAnswer(new_parser(), is_named))
        return await self._answer(request, [start], shape, api_key)

    async def respond(self, request: ResponsesRequest, api_key: str) -> Response:
        """Raises APIError and ClientError."""
        self._check_model(request.model)
        start, new_parser = await self._chat_start(request)
        head = Head(f"resp_{uuid.uuid4().hex}", int(time.time()), request.model)
        answer = ResponseAnswer(request, head, new_parser())
        leave = self._admission.enter(1, api_key)
        answers = await Answers.open(self._choices(request, [start]), leave)
        try:
            headers = {"X-Request-Id": head.id}
            if request.stream:
                await answers.wait_for_first(self._settings.stream_start_s)
                interval_s = self._settings.comment_interval_s
                return ResponseEventStream(answers, answer, interval_s, headers)
            while not answers.has_ended:
                piece = await answers.next()
                deque(answer.feed(piece.chunk) if piece else (), maxlen=0)
            content = answer.whole(answers.completions[0])
        except BaseException:
            await answers.close()
            raise
        await answers.close()
        return JsonResponse(content, headers=headers)

    async def _chat_start(self, request: ChatRequest) -> tuple[Start, Callable[[], AnswerParser]]:
        """What starts an answer, and what makes a parser of one. Raises APIError."""
        messages = [message.for_server() for message in request.messages]
        self._check_size(len(json.dumps(messages, ensure_ascii=False).encode()), "messages")
        form = await self._form_of(request, messages)
        new_parser = partial(answer_parser, request, form, self._settings)
        new_parser()  # refused before anything runs
        allowed = self._settings.allow_special_tokens
        start = partial(self._client.stream_chat, messages, allow_special_tokens=allowed)
        return start, new_parser

    async def _form_of(
        self, request: ChatRequest, messages: Sequence[dict[str, Any]]
    ) -> dict[str, Any]:
        """How the answer holds calls and reasoning; options of a template may close the latter."""
        form = (await self._description()).get("chat", {})
        if request.is_rendered_as_usual or not has_reasoning(request, form, self._settings):
            return form
        options = request.template_options()
        is_open = await self._client.opens_reasoning(messages, **options)
        return {**form, "opens_reasoning": is_open}

    async def complete(self, request: CompletionRequest, api_key: str) -> Response:
        """Raises APIError and ClientError."""
        texts = [prompt for prompt in request.prompt if isinstance(prompt, str)]
        self._check_size(sum(len(text.encode()) for text in texts), "prompt")
        starts = [partial(self._client.stream, prompt) for prompt in request.prompt]
        shape = CompletionShape(request.logprobs, bool(request.echo))
        return await self._answer(request, starts, shape, api_key)

    async def _answer(
        self, request: SamplingRequest, starts: Sequence[Start], shape: Shape, api_key: str
    ) -> Response:
        self._check_model(request.model)
        streams = self._choices(request, starts)
        head = Head(f"{shape.prefix}-{uuid.uuid4().hex}", int(time.time()), request.model)
        leave = self._admission.enter(len(streams), api_key)
        answers = await Answers.open(streams, leave, request.num_answers)
        try:
            if request.stream:
                await answers.wait_for_first(self._settings.stream_start_s)
                return self._stream(request, answers, shape, head)
            completions = await answers.all()
            usage = usage_of(completions, request.num_answers)
            likeliest = _likeliest(completions, request.num_answers, request.n)
            content = shape.whole(head, likeliest, usage)
        except BaseException:
            await answers.close()
            raise
        await answers.close()
        return JsonResponse(content, headers={"X-Request-Id": head.id})

    def _stream(
        self, request: SamplingRequest, answers: Answers, shape: Shape, head: Head
    ) -> EventStream:
        return ChunkStream(
            answers,
            shape,
            head,
            request.n if request.stream_options.include_usage else None,
            self._settings.comment_interval_s,
            {"X-Request-Id": head.id},
        )

    def _choices(self, request: SamplingRequest, starts: Sequence[Start]) -> list[Start]:
        """The answers of each prompt, those of one prompt together."""
        count = len(starts) * request.num_answers
        if count > self._settings.max_choices:
            limit = self._settings.max_choices
            raise APIError(400, f"{count} answers were asked for, at most {limit} are", param="n")
        options: dict[str, Any] = {**request.options()}
        choices: list[Start] = []
        for start in starts:
            for index in range(request.num_answers):
                seed = choice_seed(request.seed, index)
                own = options if seed is None else {**options, "seed": seed}
                choices.append(partial(start, **own))
        return choices

    def _check_model(self, name: str) -> None:
        if name not in self._settings.names:
            known = ", ".join(self._settings.names)
            message = f"there is no model {name[:80]!r}: known are {known}"
            raise APIError(404, message, "model_not_found", "model")

    def _check_size(self, size: int, name: str) -> None:
        limit = self._settings.max_prompt_bytes
        if size > limit:
            message = f"{name}: {size} bytes of text, at most {limit} are accepted"
            raise APIError(400, message, "prompt_too_large", name)


def _likeliest(
    completions: Sequence[Completion], num_answers: int, num_given: int
) -> list[Completion]:
    """Of each prompt's answers those with the highest log-prob a token, the best first."""
    if num_given == num_answers:
        return list(completions)
    starts = range(0, len(completions), num_answers)
    groups = [completions[start : start + num_answers] for start in starts]
    ranked = [sorted(group, key=lambda c: -mean_logprob(c.logprobs)) for group in groups]
    return [completion for group in ranked for completion in group[:num_given]]
