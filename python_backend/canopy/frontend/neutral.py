"""Parameters that are not offered, each with the values that ask for nothing.

Clients of the Triton vLLM backend send many of vLLM's parameters with their defaults. Such a value
is accepted; any other is refused, so that nothing which would change the answer is ever ignored.
To offer a parameter, take its name out of the table and give it a parser in `parameters`.
"""

from collections.abc import Mapping
from typing import Any

from canopy.errors import InvalidRequest

VLLM_PARAMETERS: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "detokenize": (True,),
    "early_stopping": (False,),
    "extra_args": ({},),
    "flat_logprobs": (False,),
    "guided_decoding": (),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "lora_name": ("",),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
}
# Parameters of the server's protocols that reach the model over HTTP.
PROTOCOL_PARAMETERS: Mapping[str, tuple[Any, ...]] = {
    "priority": (0,),
    "sequence_end": (False,),
    "sequence_id": (0, ""),
    "sequence_start": (False,),
}


def without_neutral(
    given: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]]
) -> dict[str, Any]:
    """The parameters that are neither null nor in the table.

    Raises InvalidRequest for a value that asks for something.
    """
    for name in given.keys() & neutral.keys():
        if not _is_neutral(given[name], neutral[name]):
            shown = repr(given[name])
            raise InvalidRequest(f"{name} = {shown[:80]} is not supported: leave it out")
    return {n: value for n, value in given.items() if value is not None and n not in neutral}


def _is_neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    return value is None or any(_means(value, expected) for expected in neutral)


def _means(value: Any, expected: Any) -> bool:
    """Equal, or its text where the client sends text; a number is no truth value."""
    if isinstance(value, str) and isinstance(expected, bool):
        return value.lower() == str(expected).lower()
    if isinstance(value, str) and isinstance(expected, int):
        try:
            return float(value) == expected
        except ValueError:
            return False
    return isinstance(value, bool) == isinstance(expected, bool) and value == expected
