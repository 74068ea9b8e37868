"""From what a client sent to a checked GenerationRequest."""

import json
import secrets
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from canopy.config import Deployment
from canopy.engine.request import GenerationRequest
from canopy.errors import ContextLengthExceeded, InvalidRequest
from canopy.frontend.sampling_options import ClientParameters, parse_parameters, with_lists
from canopy.sampling import Acceptance, PolicyName, SamplingParams
from canopy.text.tokenizer import Tokenizer

_ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True)
class ClientRequest:
    """The inputs of the entry model, as they came; None = not sent."""

    text_input: bytes | None = None
    messages: bytes | None = None
    stream: bool = False
    exclude_input_in_output: bool | None = None
    sampling_parameters: bytes | None = None
    request_parameters: dict[str, Any] = field(default_factory=dict)
    timeout_us: int = 0


@dataclass(frozen=True)
class ModelLimits:
    """What the target model allows."""

    max_context_length: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    defaults: ClientParameters = ClientParameters()  # of a request that names no sampling


class RequestParser:
    """Checks requests against one deployment and its target."""

    def __init__(self, deployment: Deployment, model: ModelLimits, tokenizer: Tokenizer) -> None:
        self._deployment = deployment
        self._model = model
        self._tokenizer = tokenizer
        limits = (
            model.max_context_length,
            deployment.limits.max_context_length or model.max_context_length,
            deployment.cache.num_blocks * deployment.cache.block_size,
        )
        self.max_context_length = min(limits)

    def parse(self, client: ClientRequest) -> GenerationRequest:
        """Raises InvalidRequest, with a text that says what to change."""
        given = parse_parameters(_merged_parameters(client), self._model.defaults)
        is_excluded = client.exclude_input_in_output
        if client.stream and is_excluded is False:
            raise InvalidRequest("exclude_input_in_output = false cannot be had when streaming")
        prompt_text, token_ids = self._prompt(client, given.allow_special_tokens)
        prepends = not client.stream and not is_excluded and client.text_input is not None
        timeouts = [self._deployment.limits.request_timeout_s]
        if client.timeout_us > 0:
            timeouts.append(client.timeout_us / 1e6)
        return GenerationRequest(
            prompt_text=prompt_text,
            prompt_token_ids=np.array(token_ids, np.int32),
            params=self._params(given, len(token_ids), self._default_max_tokens(client)),
            stop_strings=given.stop,
            stream=client.stream,
            prepend_prompt=prepends,
            timeout_s=min(timeouts),
            trace=given.trace,
        )

    def _prompt(self, client: ClientRequest, allow_special_tokens: bool) -> tuple[str, list[int]]:
        if (client.text_input is None) == (client.messages is None):
            raise InvalidRequest(
                "send either text_input or messages; messages is a string that holds a JSON list"
            )
        if client.messages is not None:
            self._check_size(client.messages, "messages")
            messages = _parse_messages(client.messages)
            text = self._tokenizer.render_chat(messages, allow_special_tokens)
            token_ids = self._tokenizer.encode_rendered(text)
        elif not allow_special_tokens:
            raise InvalidRequest("allow_special_tokens = false goes with messages alone")
        else:
            text = self._decode(client.text_input or b"", "text_input")
            token_ids = self._tokenizer.encode(text)
        if not token_ids:
            raise InvalidRequest("the prompt is empty")
        if len(token_ids) > self.max_context_length:
            raise ContextLengthExceeded(
                f"the maximum context length is {self.max_context_length} tokens, the prompt has "
                f"{len(token_ids)}: shorten it"
            )
        self._check_known(token_ids)
        return text, token_ids

    def _check_known(self, token_ids: list[int]) -> None:
        """A tokenizer may have tokens, such as a `[PAD]`, that its model was never given."""
        if (largest := max(token_ids)) >= self._model.vocab_size:
            raise InvalidRequest(
                f"the prompt holds the token {self._tokenizer.token(largest)!r} ({largest}), which "
                f"is outside the model's vocabulary of {self._model.vocab_size}: leave it out"
            )

    def _decode(self, text: bytes, name: str) -> str:
        self._check_size(text, name)
        try:
            return text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"{name} is not valid UTF-8: {error}") from error

    def _check_size(self, text: bytes, name: str) -> None:
        limit = self._deployment.limits.max_prompt_bytes
        if len(text) > limit:
            raise InvalidRequest(f"{name} has {len(text)} bytes, at most {limit} are accepted")

    def describe(self) -> dict[str, Any]:
        """The context, and what a request gets that asks for nothing, as JSON has it."""
        limits, defaults = self._deployment.limits, self._model.defaults
        return {
            "max_context_length": self.max_context_length,
            "defaults": {
                "temperature": defaults.temperature,
                "top_k": defaults.top_k,
                "top_p": defaults.top_p,
                "min_p": defaults.min_p,
                "max_tokens": min(limits.default_max_tokens, self.max_context_length),
                "chat_max_tokens": min(
                    limits.default_chat_max_tokens or self.max_context_length,
                    self.max_context_length,
                ),
            },
        }

    def _default_max_tokens(self, client: ClientRequest) -> int:
        limits = self._deployment.limits
        if client.messages is None:
            return limits.default_max_tokens
        return limits.default_chat_max_tokens or self.max_context_length

    def _params(
        self, given: ClientParameters, num_prompt_tokens: int, default_max_tokens: int
    ) -> SamplingParams:
        """The last token emitted needs no place in the context: hence the `+ 1`."""
        room = self.max_context_length - num_prompt_tokens + 1
        max_tokens = min(given.max_tokens or default_max_tokens, room)
        if given.min_tokens > max_tokens:
            raise InvalidRequest(
                f"min_tokens = {given.min_tokens} exceeds the {max_tokens} tokens that "
                "max_tokens and the context leave"
            )
        policy, node_budget = self._speculation(given)
        seed = secrets.randbits(64) if given.seed is None else given.seed
        params = SamplingParams(
            temperature=given.temperature,
            top_k=given.top_k if given.top_k < self._model.vocab_size else 0,
            top_p=given.top_p,
            min_p=given.min_p,
            seed=seed,
            max_tokens=max_tokens,
            min_tokens=given.min_tokens,
            stop_token_ids=self._stop_token_ids(given),
            acceptance=self._acceptance(given),
            policy=policy,
            node_budget=node_budget,
        )
        self._check_leaves_tokens(params)
        return params

    def _check_leaves_tokens(self, params: SamplingParams) -> None:
        num_allowed = self._model.vocab_size - len(params.stop_token_ids)
        if params.min_tokens > 0 and num_allowed <= 0:
            raise InvalidRequest(
                f"min_tokens = {params.min_tokens} cannot be reached: stop_token_ids hold the "
                "whole vocabulary"
            )

    def _stop_token_ids(self, given: ClientParameters) -> tuple[int, ...]:
        too_large = [i for i in given.stop_token_ids if i >= self._model.vocab_size]
        if too_large:
            raise InvalidRequest(
                f"stop_token_ids {too_large[:5]} lie outside the vocabulary of "
                f"{self._model.vocab_size} tokens"
            )
        eos = () if given.ignore_eos else self._model.eos_token_ids
        return tuple(dict.fromkeys((*eos, *given.stop_token_ids)))

    def _acceptance(self, given: ClientParameters) -> Acceptance:
        """At temperature 0 every mode is greedy; above it, greedy is refused."""
        if given.temperature == 0.0:
            return Acceptance.GREEDY
        if given.acceptance == "greedy":
            raise InvalidRequest('acceptance = "greedy" goes with temperature = 0')
        return Acceptance[(given.acceptance or self._deployment.tree.acceptance).upper()]

    def _speculation(self, given: ClientParameters) -> tuple[PolicyName, int]:
        tree = self._deployment.tree
        node_budget = tree.node_budget if given.node_budget is None else given.node_budget
        name = given.speculation or tree.policy
        has_drafter = self._deployment.drafter.source != "none"
        if given.speculation not in (None, "off") and not has_drafter:
            raise InvalidRequest(f'speculation = "{name}": this deployment has no drafter')
        if name == "off" or node_budget == 0 or not has_drafter:
            return PolicyName.OFF, 0
        return PolicyName[name.upper()], node_budget


def _merged_parameters(client: ClientRequest) -> dict[str, Any]:
    """Both ways to send parameters count; the same name twice is refused."""
    given: dict[str, Any] = {}
    if client.sampling_parameters is not None:
        given = _parse_json(client.sampling_parameters, "sampling_parameters")
        if not isinstance(given, dict):
            raise InvalidRequest("sampling_parameters must be a JSON object")
    twice = sorted(given.keys() & client.request_parameters.keys())
    if twice:
        raise InvalidRequest(f"{', '.join(twice)} sent twice: as parameter and in the JSON object")
    return {**given, **with_lists(client.request_parameters)}


def _parse_json(text: bytes, name: str) -> Any:
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{name} holds half of a surrogate pair: send valid Unicode") from None
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{name} is not valid JSON: {error}") from error
    return value


def _parse_messages(text: bytes) -> list[dict[str, Any]]:
    messages = _parse_json(text, "messages")
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("messages must be a non-empty JSON list of {role, content}")
    return [_parse_message(message) for message in messages]


def _parse_message(message: Any) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise InvalidRequest("each message must be an object with role and content")
    message = {name: value for name, value in message.items() if value is not None}
    unknown = sorted(message.keys() - {"role", "content", "name"})
    if unknown:
        raise InvalidRequest(
            f"unknown field {unknown[0]} of a message: known are role, content, name"
        )
    if message.get("role") not in _ROLES:
        raise InvalidRequest(f"a message's role must be one of {', '.join(_ROLES)}")
    content = message.get("content", "" if message["role"] == "assistant" else None)
    if isinstance(content, list):
        content = _joined_parts(content)
    if not isinstance(content, str):
        raise InvalidRequest("a message's content must be a string or a list of text parts")
    if not isinstance(message.get("name", ""), str):
        raise InvalidRequest("a message's name must be a string")
    return {**message, "content": content}


def _joined_parts(parts: list[Any]) -> str:
    for part in parts:
        is_text = isinstance(part, dict) and part.get("type") == "text"
        if not is_text or not isinstance(part.get("text"), str):
            raise InvalidRequest('content parts must be {"type": "text", "text": ...}')
    return "".join(part["text"] for part in parts)
