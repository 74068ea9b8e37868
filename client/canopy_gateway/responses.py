"""What is answered: objects as OpenAI's clients read them, and the speculation report beside."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from canopy_client import Chunk, Completion


@dataclass(frozen=True)
class Head:
    """What every object of one answer carries."""

    id: str
    created: int
    model: str


def usage_of(completions: Sequence[Completion], num_choices: int) -> dict[str, Any]:
    """A prompt counts once, however many answers it got; answers of a prompt stand together."""
    firsts = completions[::num_choices]
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

    def whole(
        self, head: Head, completions: Sequence[Completion], usage: dict[str, Any]
    ) -> dict[str, Any]:
        """The answer in one piece."""
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": completion.text, "refusal": None},
                "logprobs": None,
                "finish_reason": completion.finish_reason,
                "speculation": completion.speculation,
            }
            for index, completion in enumerate(completions)
        ]
        return _envelope(head, "chat.completion", choices) | {"usage": usage}

    def piece(self, head: Head, index: int, chunk: Chunk, is_first: bool) -> dict[str, Any]:
        """One chunk of a choice; the first says who speaks, the last how the answer ended."""
        delta = {"role": "assistant"} if is_first else {}
        if chunk.text or chunk.rounds or is_first:
            delta["content"] = chunk.text
        choice: dict[str, Any] = {
            "index": index,
            "delta": delta,
            "logprobs": None,
            "finish_reason": chunk.finish_reason,
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

    def whole(
        self, head: Head, completions: Sequence[Completion], usage: dict[str, Any]
    ) -> dict[str, Any]:
        """The answer in one piece."""
        choices = [
            _text_choice(index, c.text, c.finish_reason, c.speculation)
            for index, c in enumerate(completions)
        ]
        return _envelope(head, "text_completion", choices) | {"usage": usage}

    def piece(self, head: Head, index: int, chunk: Chunk, is_first: bool) -> dict[str, Any]:
        """One chunk of a choice."""
        choice = _text_choice(index, chunk.text, chunk.finish_reason, chunk.speculation)
        return _envelope(head, "text_completion", [choice])

    def empty(self, head: Head) -> dict[str, Any]:
        """A piece without choices, which carries the usage."""
        return _envelope(head, "text_completion", [])


Shape = ChatShape | CompletionShape


def _text_choice(
    index: int, text: str, reason: str | None, report: dict[str, Any] | None
) -> dict[str, Any]:
    choice = {"index": index, "text": text, "logprobs": None, "finish_reason": reason}
    return choice if report is None else {**choice, "speculation": report}


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
