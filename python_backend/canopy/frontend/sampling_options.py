"""Sampling parameters as clients write them: names, types and ranges, nothing silently ignored.

Numbers may come as numeric strings, as clients of the Triton vLLM backend send them.
"""

import json
import math
import reprlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from canopy.config import ACCEPTANCE_MODES, POLICIES
from canopy.errors import InvalidRequest
from canopy.frontend.neutral import VLLM_PARAMETERS, without_neutral
from canopy.grammar.structured_output import grammar_of
from canopy.sampling import (
    LEAST_FLOAT32,
    MAX_LOGPROBS,
    MAX_NODE_BUDGET,
    MAX_PENALTY,
    MAX_TEMPERATURE,
)

MAX_STOP_STRINGS = 32
MAX_STOP_TOKEN_IDS = 256
MAX_INT32 = (1 << 31) - 1
MAX_BIASES = 4096
MAX_BAD_WORDS = 256
LISTS = frozenset({"stop", "stop_token_ids", "bad_words", "allowed_token_ids", "prompt_token_ids"})
OBJECTS = frozenset({"logit_bias", "structured_outputs", "tools", "chat_template_kwargs"})
INPUTS = frozenset({"messages", "text_input", "stream", "exclude_input_in_output"})


@dataclass(frozen=True)
class ClientParameters:
    """What one request asks for; None = the deployment's default.

    The defaults of SamplingParams change nothing; those of a model come from its folder.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_token_ids: tuple[int, ...] = ()
    echo: bool = False
    structured_outputs: str = ""  # the grammar of canopy.grammar.structured_output
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    n: int = 1
    speculation: str | None = None
    node_budget: int | None = None
    acceptance: str | None = None
    trace: bool = False
    allow_special_tokens: bool = True
    tools: tuple[dict[str, Any], ...] = ()
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False


def parse_parameters(
    given: dict[str, Any], defaults: ClientParameters = ClientParameters()
) -> ClientParameters:
    """Check and convert; what is not given, or null, stays as in `defaults`.

    Raises InvalidRequest for an unknown name or a value out of range.
    """
    wanted = without_neutral(given, VLLM_PARAMETERS)
    misplaced = sorted(wanted.keys() & INPUTS)
    if misplaced:
        raise InvalidRequest(f"{', '.join(misplaced)} must be sent as inputs, not as parameters")
    unknown = sorted(wanted.keys() - _PARSERS.keys())
    if unknown:
        raise InvalidRequest(
            f"unknown parameter {', '.join(unknown)}: known are {', '.join(_PARSERS)}"
        )
    return replace(
        defaults, **{name: _PARSERS[name](name, value) for name, value in wanted.items()}
    )


def with_json_read(given: dict[str, Any]) -> dict[str, Any]:
    """Request parameters, which can carry no lists, with JSON texts of lists and objects read."""
    return {n: _read(value) if n in LISTS | OBJECTS else value for n, value in given.items()}


def parse_timeout_us(value: Any) -> int:
    """Microseconds, 0 = no limit of its own. Raises InvalidRequest."""
    return _integer(0, (1 << 63) - 1, "a whole number of microseconds")("timeout", value)


def _refuse(name: str, value: Any, expected: str) -> InvalidRequest:
    return InvalidRequest(f"{name} must be {expected}, got {reprlib.repr(value)}")


def _integer(low: int, high: int, expected: str) -> Callable[[str, Any], int]:
    def parse(name: str, value: Any) -> int:
        try:
            if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
                raise ValueError
            number = int(value)
        except (TypeError, ValueError, OverflowError):
            raise _refuse(name, value, expected) from None
        if not low <= number <= high:
            raise _refuse(name, value, expected)
        return number

    return parse


def _number(low: float, high: float, expected: str, open_low: bool = False) -> Callable:
    def parse(name: str, value: Any) -> float:
        try:
            if isinstance(value, bool):
                raise ValueError
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            raise _refuse(name, value, expected) from None
        if not math.isfinite(number) or not low <= number <= high:
            raise _refuse(name, value, expected)
        if abs(number) < LEAST_FLOAT32:
            number = 0.0  # as the stages get to see it
        if open_low and number == low:
            raise _refuse(name, value, expected)
        return number

    return parse


def _boolean(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise _refuse(name, value, "true or false")


def _choice(*choices: str) -> Callable[[str, Any], str]:
    def parse(name: str, value: Any) -> str:
        if value not in choices:
            raise _refuse(name, value, f"one of {', '.join(choices)}")
        return value

    return parse


def _top_k(name: str, value: Any) -> int:
    """0 and -1 both mean "all tokens", as in vLLM."""
    expected = f"an integer from 1 to {MAX_INT32}, or 0 or -1 for all"
    return max(_integer(-1, MAX_INT32, expected)(name, value), 0)


def _read(value: Any) -> Any:
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _stop(name: str, value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value
    is_valid = isinstance(stops, list) and all(isinstance(s, str) and s for s in stops)
    if not is_valid or len(stops) > MAX_STOP_STRINGS:
        expected = f"a non-empty string or a list of at most {MAX_STOP_STRINGS} of them"
        raise _refuse(name, value, expected)
    return tuple(stops)


def _stop_token_ids(name: str, value: Any) -> tuple[int, ...]:
    expected = f"a list of at most {MAX_STOP_TOKEN_IDS} token ids"
    if not isinstance(value, list) or len(value) > MAX_STOP_TOKEN_IDS:
        raise _refuse(name, value, expected)
    parse = _integer(0, MAX_INT32, expected)
    return tuple(parse(name, token_id) for token_id in value)


def _texts(most: int) -> Callable[[str, Any], tuple[str, ...]]:
    def parse(name: str, value: Any) -> tuple[str, ...]:
        is_valid = isinstance(value, list) and all(isinstance(text, str) and text for text in value)
        if not is_valid or len(value) > most:
            raise _refuse(name, value, f"a list of at most {most} strings, none of them empty")
        return tuple(value)

    return parse


def _token_ids(name: str, value: Any) -> tuple[int, ...]:
    """An empty list says nothing, as null does."""
    if not isinstance(value, list):
        raise _refuse(name, value, "a list of token ids")
    parse = _integer(0, MAX_INT32, "a list of token ids")
    return tuple(parse(name, token_id) for token_id in value)


def _num_logprobs(name: str, value: Any) -> int | None:
    """False asks for none, as null does; 0 for that of the token itself."""
    expected = f"an integer from 0 to {MAX_LOGPROBS}"
    is_false = value is False or (isinstance(value, str) and value.lower() == "false")
    return None if is_false else _integer(0, MAX_LOGPROBS, expected)(name, value)


def _logit_bias(name: str, value: Any) -> tuple[tuple[int, float], ...]:
    """As OpenAI has it: token ids, which JSON spells as strings, and what is added."""
    expected = f"an object of at most {MAX_BIASES} token ids with numbers from -100 to 100"
    if not isinstance(value, dict) or len(value) > MAX_BIASES:
        raise _refuse(name, value, expected)
    token_id, bias = _integer(0, MAX_INT32, expected), _number(-100.0, 100.0, expected)
    found = {token_id(name, key): bias(name, each) for key, each in value.items()}
    return tuple(sorted((key, each) for key, each in found.items() if each != 0.0))


def _tools(name: str, value: Any) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise _refuse(name, value, "a list of objects")
    return tuple(value)


def _object(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _refuse(name, value, "an object")
    return value


def _seed(name: str, value: Any) -> int | None:
    """-1 is no seed, as in vLLM."""
    seed = _integer(-1, (1 << 64) - 1, "an integer from 0 to 2^64 - 1, or -1 for none")(name, value)
    return None if seed == -1 else seed


_PARSERS: dict[str, Callable[[str, Any], Any]] = {
    "temperature": _number(0.0, MAX_TEMPERATURE, f"a number from 0 to {MAX_TEMPERATURE:g}"),
    "top_k": _top_k,
    "top_p": _number(0.0, 1.0, "a number above 0, at most 1", open_low=True),
    "min_p": _number(0.0, 1.0, "a number from 0 to 1"),
    "typical_p": _number(0.0, 1.0, "a number above 0, at most 1", open_low=True),
    "repetition_penalty": _number(
        0.0, MAX_PENALTY, f"a number above 0, at most {MAX_PENALTY:g}", open_low=True
    ),
    "presence_penalty": _number(-2.0, 2.0, "a number from -2 to 2"),
    "frequency_penalty": _number(-2.0, 2.0, "a number from -2 to 2"),
    "logit_bias": _logit_bias,
    "bad_words": _texts(MAX_BAD_WORDS),
    "allowed_token_ids": _token_ids,
    "logprobs": _num_logprobs,
    "prompt_logprobs": _num_logprobs,
    "prompt_token_ids": _token_ids,
    "echo": _boolean,
    "structured_outputs": lambda _, value: grammar_of(value),
    "seed": _seed,
    "max_tokens": _integer(1, MAX_INT32, f"an integer from 1 to {MAX_INT32}"),
    "min_tokens": _integer(0, MAX_INT32, f"an integer from 0 to {MAX_INT32}"),
    "stop": _stop,
    "stop_token_ids": _stop_token_ids,
    "ignore_eos": _boolean,
    "n": _integer(1, 1, "1: one answer per request"),
    "speculation": _choice("off", *POLICIES),
    "node_budget": _integer(0, MAX_NODE_BUDGET, f"an integer from 0 to {MAX_NODE_BUDGET}"),
    "acceptance": _choice(*ACCEPTANCE_MODES),
    "trace": _boolean,
    "allow_special_tokens": _boolean,
    "tools": _tools,
    "chat_template_kwargs": _object,
    "add_generation_prompt": _boolean,
    "continue_final_message": _boolean,
}
