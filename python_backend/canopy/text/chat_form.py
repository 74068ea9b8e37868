"""How a model's answers to chats hold tool calls and reasoning, told from its chat template."""

from dataclasses import dataclass

from canopy.errors import InvalidRequest
from canopy.text.chat_template import ChatTemplate

_OPENING, _CLOSING = "<think>", "</think>"

# By what only the template of such a model contains.
_TOOL_FORMATS = {
    "[TOOL_CALLS]": "mistral",
    "<tool_call>": "hermes",
    "ipython<|end_header_id|>": "llama3",
}
# What answers hold around calls and reasoning; in some vocabularies they are special tokens.
MARKS = frozenset(
    {"[TOOL_CALLS]", "<tool_call>", "</tool_call>", "<|python_tag|>", _OPENING, _CLOSING}
)
# Of templates that mark calls alike, and do not write them as one JSON object each.
_OTHER_FORMATS = ("[ARGS]", "<function=", "<arg_key>")
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
    is_other = any(mark in template.source for mark in _OTHER_FORMATS)
    formats = [name for mark, name in _TOOL_FORMATS.items() if mark in template.source]
    try:
        prompt = template.render(_ANY_CHAT)
    except InvalidRequest:
        prompt = ""
    return ChatForm(
        tool_format=formats[0] if formats and not is_other else None,
        has_reasoning=_CLOSING in template.source,
        opens_reasoning=is_reasoning_open(prompt),
    )


def is_reasoning_open(prompt: str, continued: str = "") -> bool:
    """Whether a rendered chat ends within reasoning. continued: of an answer that goes on."""
    is_begun = continued.rfind(_OPENING) > continued.rfind(_CLOSING)
    return is_begun or prompt.rstrip().endswith(_OPENING)
