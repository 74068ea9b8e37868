"""Fields that cannot change an answer, dropped before a request is checked.

A field that is not offered is accepted with a value that asks for nothing and refused otherwise, so
that nothing which would change the answer is ever ignored. To offer a field, take its name out of
the table here and declare it in `schema`.
"""

from collections.abc import Collection, Mapping
from typing import Any

from pydantic_core import PydanticCustomError

# Without effect on the answer, whatever they hold.
IGNORED_FIELDS = frozenset(
    {
        "metadata",
        "prediction",  # a hint for speed: the answer is the same without it
        "prompt_cache_key",
        "prompt_cache_retention",
        "request_id",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
# Not offered: each with the values that ask for nothing. Null always does.
NEUTRAL_VALUES: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "documents": ([],),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "modalities": (["text"],),
    "moderation": (),
    "priority": (0,),
    "reasoning_effort": ("none",),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "suffix": ("",),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}


def without_null(given: Any) -> Any:
    """A JSON object without the fields that are null; anything else as it is."""
    if not isinstance(given, dict):
        return given
    return {name: value for name, value in given.items() if value is not None}


def without_neutral(
    given: Any, ignored: Collection[str], neutral: Mapping[str, tuple[Any, ...]]
) -> Any:
    """A JSON object without ignored and neutral fields; anything else as it is.

    Raises PydanticCustomError, with the field in its context, for a value that asks for something
    that is not offered.
    """
    if not isinstance(given, dict):
        return given
    for name in given.keys() & neutral.keys():
        if not is_neutral(given[name], neutral[name]):
            message = "{field} is not supported by this server"
            raise PydanticCustomError("unsupported", message, {"field": name})
    return {n: value for n, value in given.items() if n not in ignored and n not in neutral}


def is_neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    """Whether the value is null or one of these; a number is no truth value."""
    if value is None:
        return True
    return any(isinstance(value, bool) == isinstance(n, bool) and value == n for n in neutral)
