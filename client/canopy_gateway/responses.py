"""What is answered: objects as OpenAI's clients read them, and the speculation report beside."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from canopy_client import Chunk, Completion
from canopy_gateway.chat_answer import ChatAnswer
from canopy_gateway.logprobs import chat_logprobs, length_of, text_logprobs
from canopy_gateway.tools.reasoning import PlainAnswer


@dataclass(frozen=True)
class Head:
    """What every object of one answer carries."""

    id: str
    created: int
    model: str


def usage_of(completions: Sequence[Completion], num_answers: int) -> dict[str, Any]:
    """A prompt counts once, however many answers it got; answers of a prompt stand together."""
    firsts = completions[::num_answers]
    num_input = sum(c.num_input_tokens for c in firsts)
    num_output = sum(c.num_output_tokens for c in completions)
    num_cached = sum(c.speculation.get("cached_prompt_tokens", 0) for c in firsts)
    return {
        "prompt_tokens": num_input,
        "completion_tokens": num_output,
        "total_tokens": num_input + num_output,
        "prompt_tokens_details": {"cached_tokens": num_cached},
    }


class ChatShape:
    """Of /v1/chat/completions."""

    prefix = "chatcmpl"

    def __init__(
        self,
        num_logprobs: int | None = None,
        new_answer: Callable[[], ChatAnswer] = lambda: ChatAnswer(PlainAnswer()),
    ) -> None:
        """num_logprobs: likeliest tokens told with each token; None: not even its own.

        new_answer: reads one choice.
        """
        self._num_logprobs = num_logprobs
        self._answers: defaultdict[int, ChatAnswer] = defaultdict(new_answer)

    def _logprobs(self, part: Chunk | Completion) -> dict[str, Any] | None:
        if self._num_logprobs is None:
            return None
        return chat_logprobs(part.logprobs, self._num_logprobs)

    def whole(
        self, head: Head, completions: Sequence[Completion], usage: dict[str, Any]
    ) -> dict[str, Any]:
        """The answer in one piece."""
        choices = [
            {
                "index": index,
                "message": self._answers[index].message(completion.text),
                "logprobs": self._logprobs(completion),
                "finish_reason": self._answers[index].finish_reason(completion.finish_reason),
                "speculation": completion.speculation,
                **_tokens_of(completion),
            }
            for index, completion in enumerate(completions)
        ]
        return _envelope(head, "chat.completion", choices) | {"usage": usage}

    def piece(self, head: Head, index: int, chunk: Chunk, is_first: bool) -> dict[str, Any]:
        """One chunk of a choice; the first says who speaks, the last how the answer ended."""
        answer = self._answers[index]
        delta = answer.delta(chunk.text, chunk.is_last)
        if is_first or chunk.rounds:
            delta = {"content": ""} | delta
        if is_first:
            delta = {"role": "assistant"} | delta
        choice: dict[str, Any] = {
            "index": index,
            "delta": delta,
            "logprobs": self._logprobs(chunk),
            "finish_reason": answer.finish_reason(chunk.finish_reason),
            **_tokens_of(chunk),
        }
        if chunk.rounds:
            choice["rounds"] = chunk.rounds
        if chunk.speculation is not None:
            choice["speculation"] = chunk.speculation
        return _envelope(head, "chat.completion.chunk", [choice])

    def empty(self, head: Head) -> dict[str, Any]:
        """A piece without choices, which carries the usage."""
        return _envelope(head, "chat.completion.chunk", [])


class CompletionShape:
    """Of /v1/completions, where pieces and wholes look alike."""

    prefix = "cmpl"

    def __init__(self, num_logprobs: int | None = None, is_echoed: bool = False) -> None:
        """num_logprobs: as of a chat. is_echoed: an answer begins with its prompt."""
        self._num_logprobs = num_logprobs
        self._is_echoed = is_echoed
        self._offsets: Counter[int] = Counter()  # by choice: where its next token begins

    def whole(
        self, head: Head, completions: Sequence[Completion], usage: dict[str, Any]
    ) -> dict[str, Any]:
        """The answer in one piece."""
        choices = [self._choice(index, c, c.finish_reason) for index, c in enumerate(completions)]
        return _envelope(head, "text_completion", choices) | {"usage": usage}

    def piece(self, head: Head, index: int, chunk: Chunk, is_first: bool) -> dict[str, Any]:
        """One chunk of a choice."""
        choice = self._choice(index, chunk, chunk.finish_reason)
        return _envelope(head, "text_completion", [choice])

    def empty(self, head: Head) -> dict[str, Any]:
        """A piece without choices, which carries the usage."""
        return _envelope(head, "text_completion", [])

    def _choice(
        self, index: int, part: Chunk | Completion, finish_reason: str | None
    ) -> dict[str, Any]:
        choice = {
            "index": index,
            "text": part.text,
            "logprobs": self._logprobs(index, part),
            "finish_reason": finish_reason,
            **_tokens_of(part),
        }
        return choice if part.speculation is None else choice | {"speculation": part.speculation}

    def _logprobs(self, index: int, part: Chunk | Completion) -> dict[str, Any] | None:
        if self._num_logprobs is None:
            return None
        found = [*(part.prompt_logprobs if self._is_echoed else ()), *part.logprobs]
        told = text_logprobs(found, self._num_logprobs, self._offsets[index])
        self._offsets[index] += length_of(found)
        return told


Shape = ChatShape | CompletionShape


def _tokens_of(part: Chunk | Completion) -> dict[str, Any]:
    """What of tokens was asked for beyond OpenAI's objects, named as vLLM names it."""
    found = {"token_ids": part.token_ids, "prompt_logprobs": part.prompt_logprobs}
    return {name: list(value) for name, value in found.items() if value}


def _envelope(head: Head, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": head.id,
        "object": kind,
        "created": head.created,
        "model": head.model,
        "choices": choices,
    }


def model_card(name: str, created: int, served: Mapping[str, Any]) -> dict[str, Any]:
    """One entry of /v1/models, with what the server says of itself as far as it is known."""
    card = {"id": name, "object": "model", "created": created, "owned_by": "canopy"}
    fields = {
        "root": served.get("model"),
        "max_model_len": served.get("max_context_length"),
        "default_sampling": served.get("defaults"),
    }
    return card | {name: value for name, value in fields.items() if value is not None}
