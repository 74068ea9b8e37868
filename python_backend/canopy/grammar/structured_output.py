"""The parameter `structured_outputs`, named and built as vLLM's: what the text has to match.

{"json": schema}         a JSON text that the JSON schema admits; an object or its text
{"json_object": true}    any JSON object
{"regex": pattern}       a text that the pattern matches as a whole
{"choice": [text, ...]}  one of these texts
{"grammar": text}        a text of a context-free grammar in Lark's or llama.cpp's notation
"""

import json
from typing import Any

import llguidance

from canopy.errors import InvalidRequest

MAX_GRAMMAR_BYTES = 1 << 18
MAX_CHOICES = 1024
# Between two parts of a JSON text: enough to indent, too little for a model to get lost in.
_WHITESPACE = r"[\x20\x0A\x0D\x09]{1,40}"
KINDS = ("json", "json_object", "regex", "choice", "grammar")


def grammar_of(value: Any) -> str:
    """The grammar in the notation of the library; it is not compiled yet.

    Raises InvalidRequest for anything but exactly one kind with a value of its type.
    """
    if not isinstance(value, dict):
        raise InvalidRequest(f"structured_outputs must be an object with one of {_listed()}")
    given = {name: each for name, each in value.items() if each not in (None, False)}
    unknown = sorted(given.keys() - set(KINDS))
    if unknown:
        raise InvalidRequest(f"structured_outputs has no {unknown[0]!r}: it takes {_listed()}")
    if len(given) != 1:
        raise InvalidRequest(f"structured_outputs must hold exactly one of {_listed()}")
    [(kind, wanted)] = given.items()
    grammar = _PARSERS[kind](wanted)
    if len(grammar.encode()) > MAX_GRAMMAR_BYTES:
        raise InvalidRequest(f"structured_outputs: {kind} exceeds {MAX_GRAMMAR_BYTES} bytes")
    return grammar


def _json(schema: Any) -> str:
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"structured_outputs: json is not valid JSON: {error}") from error
    if not isinstance(schema, dict):
        raise InvalidRequest("structured_outputs: json must be a JSON schema, which is an object")
    return _of_schema(schema)


def _json_object(wanted: Any) -> str:
    if wanted is not True:
        raise InvalidRequest("structured_outputs: json_object must be true or false")
    return _of_schema({"type": "object"})


def _of_schema(schema: dict[str, Any]) -> str:
    return llguidance.LLMatcher.grammar_from_json_schema(
        schema, defaults={"whitespace_pattern": _WHITESPACE}
    )


def _regex(pattern: Any) -> str:
    return llguidance.LLMatcher.grammar_from_regex(_text("regex", pattern))


def _choice(texts: Any) -> str:
    is_list = isinstance(texts, list) and 0 < len(texts) <= MAX_CHOICES
    if not is_list or not all(isinstance(text, str) and text for text in texts):
        expected = f"1 to {MAX_CHOICES} texts, none of them empty"
        raise InvalidRequest(f"structured_outputs: choice must be a list of {expected}")
    literals = [json.dumps(text, ensure_ascii=False) for text in texts]
    return llguidance.LLMatcher.grammar_from_lark("start: " + " | ".join(literals))


def _grammar(text: Any) -> str:
    try:
        return llguidance.grammar_from("grammar", _text("grammar", text))
    except ValueError as error:
        raise InvalidRequest(f"structured_outputs: grammar cannot be read: {error}") from error


def _text(kind: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"structured_outputs: {kind} must be a text that is not empty")
    return value


def _listed() -> str:
    return ", ".join(KINDS)


_PARSERS = {
    "json": _json,
    "json_object": _json_object,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
}
