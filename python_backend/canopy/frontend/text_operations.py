"""Control messages about texts and tokens.

{"op": "tokenize", "text" or "messages": ..., "parameters": ..., "add_special_tokens": true}
{"op": "opens_reasoning", "messages": ..., "parameters": ...}
{"op": "detokenize", "token_ids": ...}
{"op": "token_strings", "token_ids": ...}
"""

import json
from collections.abc import Callable
from typing import Any

from canopy.errors import InvalidRequest
from canopy.frontend.client_request import ClientRequest
from canopy.frontend.request_parser import RequestParser

Operation = Callable[[dict[str, Any]], dict[str, Any]]


def text_operations(parser: RequestParser) -> dict[str, Operation]:
    """By name; they raise InvalidRequest."""

    def tokenize(message: dict[str, Any]) -> dict[str, Any]:
        add_special_tokens = bool(message.get("add_special_tokens", True))
        return {"token_ids": parser.tokenize(_prompt_of(message), add_special_tokens)}

    return {
        "tokenize": tokenize,
        "opens_reasoning": lambda m: {"opens_reasoning": parser.opens_reasoning(_prompt_of(m))},
        "detokenize": lambda m: {"text": parser.detokenize(m.get("token_ids"))},
        "token_strings": lambda m: {"token_strings": parser.token_strings(m.get("token_ids"))},
    }


def _prompt_of(message: dict[str, Any]) -> ClientRequest:
    text, messages = message.get("text"), message.get("messages")
    if isinstance(text, str) == (messages is not None):
        raise InvalidRequest(f"{message['op']} needs either a text or messages")
    return ClientRequest(
        text_input=text.encode() if isinstance(text, str) else None,
        messages=None if messages is None else json.dumps(messages).encode(),
        request_parameters=message.get("parameters") or {},
    )
