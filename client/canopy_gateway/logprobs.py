"""Log-probs of tokens as the server tells them, in the two forms of OpenAI's objects."""

from collections.abc import Mapping, Sequence
from typing import Any

from canopy_client.types import Logprobs


def chat_logprobs(found: Sequence[Logprobs], num_top: int) -> dict[str, Any] | None:
    """Of a chat's choice; None where no token is told of."""
    if not found:
        return None
    content = [
        _entry(_own(token)) | {"top_logprobs": [_entry(top) for top in _likeliest(token, num_top)]}
        for token in found
    ]
    return {"content": content, "refusal": None}


def text_logprobs(
    found: Sequence[Logprobs], num_top: int, first_offset: int
) -> dict[str, Any] | None:
    """Of a completion's choice, whose first token stands at `first_offset` of its text.

    The first token of an echoed prompt has no log-prob: it and its likeliest tokens are null.
    """
    if not found:
        return None
    owns = [_own(token) for token in found]
    offsets = [first_offset]
    for own in owns[:-1]:
        offsets.append(offsets[-1] + len(own["decoded_token"]))
    return {
        "tokens": [own["decoded_token"] for own in owns],
        "token_logprobs": [own["logprob"] for own in owns],
        "top_logprobs": [_by_text(token, num_top) for token in found],
        "text_offset": offsets,
    }


def length_of(found: Sequence[Logprobs]) -> int:
    """Characters of these tokens, as `text_offset` counts them."""
    return sum(len(_own(token)["decoded_token"]) for token in found)


def mean_logprob(found: Sequence[Logprobs]) -> float:
    """What `best_of` ranks answers by."""
    return sum(_own(token)["logprob"] for token in found) / max(len(found), 1)


def _own(token: Logprobs) -> Mapping[str, Any]:
    return next(iter(token.values()))


def _likeliest(token: Logprobs, num_top: int) -> list[Mapping[str, Any]]:
    ranked = sorted(token.values(), key=lambda told: told["rank"])
    return [told for told in ranked if told["rank"] <= num_top]


def _entry(told: Mapping[str, Any]) -> dict[str, Any]:
    return {"token": told["decoded_token"], "logprob": told["logprob"], "bytes": told["bytes"]}


def _by_text(token: Logprobs, num_top: int) -> dict[str, float] | None:
    """The likeliest tokens, and the token itself."""
    if _own(token)["logprob"] is None:
        return None
    told = [*_likeliest(token, num_top), _own(token)]
    return {each["decoded_token"]: each["logprob"] for each in told}
