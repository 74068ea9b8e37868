"""From what a client sent to a checked GenerationRequest."""

from dataclasses import asdict, replace
from typing import Any

import numpy as np

from canopy.config import Deployment
from canopy.engine.request import GenerationRequest
from canopy.errors import ContextLengthExceeded, InvalidRequest
from canopy.frontend.client_request import ClientRequest
from canopy.frontend.messages import parse_json, parse_messages
from canopy.frontend.sampling_options import ClientParameters, parse_parameters, with_json_read
from canopy.frontend.sampling_params import ModelLimits, SamplingParamsBuilder
from canopy.grammar.compiler import GrammarCompiler
from canopy.text.chat_form import is_reasoning_open
from canopy.text.chat_template import PLAIN_CHAT, ChatOptions
from canopy.text.tokenizer import Tokenizer

# Said elsewhere in a request.
_NOT_OF_TEMPLATES = frozenset(
    {"messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template"}
)


class RequestParser:
    """Checks requests against one deployment and its target."""

    def __init__(
        self,
        deployment: Deployment,
        model: ModelLimits,
        tokenizer: Tokenizer,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        self._deployment = deployment
        self._model = model
        self._tokenizer = tokenizer
        limits = (
            model.max_context_length,
            deployment.limits.max_context_length or model.max_context_length,
            deployment.cache.num_blocks * deployment.cache.block_size,
        )
        self.max_context_length = min(limits)
        self._sampling = SamplingParamsBuilder(
            deployment, model, tokenizer, self.max_context_length, grammars
        )

    def check_sizes(self, client: ClientRequest) -> None:
        """Raises InvalidRequest for what is too long to be parsed at all."""
        client.check_sizes(self._deployment.limits.max_prompt_bytes)

    def parse(self, client: ClientRequest) -> GenerationRequest:
        """Raises InvalidRequest, with a text that says what to change."""
        self.check_sizes(client)
        parameters = _merged_parameters(client)
        given = parse_parameters(parameters, self._model.defaults)
        if client.needs_logprobs and given.logprobs is None:
            given = replace(given, logprobs=0)
        is_excluded = client.exclude_input_in_output
        if client.stream and is_excluded is False:
            raise InvalidRequest("exclude_input_in_output = false cannot be had when streaming")
        prompt_text, token_ids = self._prompt(client, given)
        is_prepended = not client.stream and not is_excluded and client.text_input is not None
        timeouts = [self._deployment.limits.request_timeout_s]
        if client.timeout_us > 0:
            timeouts.append(client.timeout_us / 1e6)
        return GenerationRequest(
            prompt_text=prompt_text,
            prompt_token_ids=np.array(token_ids, np.int32),
            params=self._sampling.build(given, len(token_ids), self._default_max_tokens(client)),
            stop_strings=given.stop,
            stream=client.stream,
            prepend_prompt=is_prepended or given.echo,
            timeout_s=min(timeouts),
            trace=given.trace,
            origins=self._sampling.origins(parameters),
        )

    def _prompt(self, client: ClientRequest, given: ClientParameters) -> tuple[str, list[int]]:
        sent = [client.text_input, client.messages, given.prompt_token_ids or None]
        if sum(prompt is not None for prompt in sent) != 1:
            raise InvalidRequest(
                "send one of text_input, messages and prompt_token_ids; messages is a string that "
                "holds a JSON list"
            )
        text, token_ids = self._encoded(client, given)
        if not token_ids:
            raise InvalidRequest("the prompt is empty")
        self._check_fits(len(token_ids))
        self._check_known(token_ids)
        return text, token_ids

    def _encoded(self, client: ClientRequest, given: ClientParameters) -> tuple[str, list[int]]:
        if client.messages is not None:
            messages = parse_messages(client.messages)
            options = _chat_options(given)
            text = self._tokenizer.render_chat(messages, given.allow_special_tokens, options)
            self._check_length(text)
            return text, self._tokenizer.encode_rendered(text)
        if not given.allow_special_tokens:
            raise InvalidRequest("allow_special_tokens = false goes with messages alone")
        if _chat_options(given) != PLAIN_CHAT:
            raise InvalidRequest("tools and options of the chat template go with messages alone")
        if given.prompt_token_ids:
            token_ids = list(given.prompt_token_ids)
            self._check_fits(len(token_ids))
            self._check_known(token_ids)
            return self._tokenizer.decode(token_ids), token_ids
        text = _decode(client.text_input or b"", "text_input")
        self._check_length(text)
        return text, self._tokenizer.encode(text)

    def _check_length(self, text: str) -> None:
        """What is too long whatever its tokens are is not tokenized."""
        longest = self._tokenizer.longest_token_bytes
        if longest is not None:
            self._check_fits(-(-len(text.encode("utf-8", "surrogatepass")) // longest), "at least ")

    def _check_fits(self, num_tokens: int, how: str = "") -> None:
        if num_tokens > self.max_context_length:
            raise ContextLengthExceeded(
                f"the maximum context length is {self.max_context_length} tokens, the prompt has "
                f"{how}{num_tokens}: shorten it"
            )

    def _check_known(self, token_ids: list[int]) -> None:
        """A tokenizer may have tokens, such as a `[PAD]`, that its model was never given."""
        if (largest := max(token_ids)) >= self._model.vocab_size:
            raise InvalidRequest(
                f"the prompt holds the token {self._tokenizer.token(largest)!r} ({largest}), which "
                f"is outside the model's vocabulary of {self._model.vocab_size}: leave it out"
            )

    def tokenize(self, client: ClientRequest, add_special_tokens: bool) -> list[int]:
        """The tokens of a text or a chat. Raises InvalidRequest."""
        self.check_sizes(client)
        given = parse_parameters(_merged_parameters(client))
        if client.text_input is not None and not add_special_tokens:
            text = _decode(client.text_input, "text_input")
            self._check_length(text)
            return self._tokenizer.encode_rendered(text)
        return self._encoded(client, given)[1]

    def opens_reasoning(self, client: ClientRequest) -> bool:
        """Whether the answer to a chat begins within <think>. Raises InvalidRequest."""
        self.check_sizes(client)
        given = parse_parameters(_merged_parameters(client))
        prompt, _ = self._encoded(client, given)
        is_continued = given.continue_final_message and client.messages is not None
        last = parse_messages(client.messages or b"")[-1]["content"] if is_continued else ""
        return is_reasoning_open(prompt, last)

    def detokenize(self, token_ids: Any) -> str:
        """The text of tokens. Raises InvalidRequest."""
        return self._tokenizer.decode(self._known(token_ids))

    def token_strings(self, token_ids: Any) -> list[str]:
        """Each token as the vocabulary spells it. Raises InvalidRequest."""
        return [self._tokenizer.token(token_id) for token_id in self._known(token_ids)]

    def _known(self, token_ids: Any) -> list[int]:
        known = list(parse_parameters({"prompt_token_ids": token_ids}).prompt_token_ids)
        if known:
            self._check_known(known)
        return known

    def describe(self) -> dict[str, Any]:
        """The context, and what a request gets that asks for nothing, as JSON has it."""
        limits, defaults = self._deployment.limits, self._model.defaults
        return {
            "max_context_length": self.max_context_length,
            "chat": asdict(self._tokenizer.chat_form),
            "defaults": {
                "temperature": defaults.temperature,
                "top_k": defaults.top_k,
                "top_p": defaults.top_p,
                "min_p": defaults.min_p,
                "typical_p": defaults.typical_p,
                "repetition_penalty": defaults.repetition_penalty,
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


def _chat_options(given: ClientParameters) -> ChatOptions:
    if reserved := sorted(_NOT_OF_TEMPLATES & given.chat_template_kwargs.keys()):
        raise InvalidRequest(f"chat_template_kwargs must not hold {reserved[0]}")
    return ChatOptions(
        list(given.tools) or None,
        given.add_generation_prompt and not given.continue_final_message,
        given.continue_final_message,
        given.chat_template_kwargs,
    )


def _decode(text: bytes, name: str) -> str:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{name} is not valid UTF-8: {error}") from error


def _merged_parameters(client: ClientRequest) -> dict[str, Any]:
    """Both ways to send parameters count; the same name twice is refused."""
    given: dict[str, Any] = {}
    if client.sampling_parameters is not None:
        given = parse_json(client.sampling_parameters, "sampling_parameters")
        if not isinstance(given, dict):
            raise InvalidRequest("sampling_parameters must be a JSON object")
    twice = sorted(given.keys() & client.request_parameters.keys())
    if twice:
        raise InvalidRequest(f"{', '.join(twice)} sent twice: as parameter and in the JSON object")
    return {**given, **with_json_read(client.request_parameters)}
