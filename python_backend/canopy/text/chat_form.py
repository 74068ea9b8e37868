"""How a model's answers to chats hold tool calls and reasoning, told from its chat template."""

from dataclasses import dataclass

from canopy.errors import InvalidRequest
from canopy.text.chat_template import ChatTemplate

OPENS_REASONING = "<think>"

# By what only the template of such a model contains.
_TOOL_FORMATS = {"[TOOL_CALLS]": "mistral", "<tool_call>": "hermes", "<|python_tag|>": "llama3"}
_ANY_CHAT = [{"role": "user", "content": "x"}]


@dataclass(frozen=True)
class ChatForm:
    """Of one model."""

    tool_format: str | None = None  # hermes, llama3 or mistral; None: its template has none of them
    has_reasoning: bool = False  # between <think> and </think>
    opens_reasoning: bool = False  # the prompt itself ends with <think>


def form_of(template: ChatTemplate | None) -> ChatForm:
    """Told by the marks that the template's source contains, and by how a prompt ends."""
    if template is None:
        return ChatForm()
    formats = [name for mark, name in _TOOL_FORMATS.items() if mark in template.source]
    try:
        prompt = template.render(_ANY_CHAT)
    except InvalidRequest:
        prompt = ""
    return ChatForm(
        tool_format=formats[0] if formats else None,
        has_reasoning="</think>" in template.source,
        opens_reasoning=prompt.rstrip().endswith(OPENS_REASONING),
    )
