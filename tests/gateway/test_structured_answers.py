"""Structured output as OpenAI's package asks for it, over a real server."""

import json
import re
from typing import Literal

import openai
import pydantic
import pytest

pytestmark = pytest.mark.server

CHAT = [{"role": "user", "content": "abc"}]
SAMPLED = {"model": "canopy", "temperature": 0.8, "seed": 3, "max_tokens": 300}


class Pet(pydantic.BaseModel):
    name: Literal["Rex", "Tom"]
    kind: Literal["dog", "cat"]
    is_old: bool


def test_a_pydantic_model_is_what_comes_back(client):
    answer = client.chat.completions.parse(messages=CHAT, response_format=Pet, **SAMPLED)
    pet = answer.choices[0].message.parsed
    assert isinstance(pet, Pet)
    assert answer.choices[0].finish_reason == "stop"


def test_a_stream_spells_the_same_model(client):
    with client.chat.completions.stream(messages=CHAT, response_format=Pet, **SAMPLED) as stream:
        final = stream.get_final_completion()
    whole = client.chat.completions.parse(messages=CHAT, response_format=Pet, **SAMPLED)
    assert final.choices[0].message.parsed == whole.choices[0].message.parsed


def test_a_json_object_is_one(client):
    answer = client.chat.completions.create(
        messages=CHAT, response_format={"type": "json_object"}, **SAMPLED | {"max_tokens": 2000}
    )
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)
    assert answer.choices[0].message.content.startswith("{")


@pytest.mark.parametrize(
    ("wanted", "pattern"),
    [
        ({"regex": "[0-9]{3}-[0-9]{4}"}, "[0-9]{3}-[0-9]{4}"),
        ({"choice": ["yes", "no"]}, "yes|no"),
        ({"grammar": 'start: "a" start "b" | "c"'}, "a*cb*"),
    ],
)
def test_regex_choice_and_grammar_are_sent_beside(client, wanted, pattern):
    answer = client.completions.create(
        prompt="abc", extra_body={"structured_outputs": wanted}, **SAMPLED
    )
    if answer.choices[0].finish_reason == "stop":
        assert re.fullmatch(pattern, answer.choices[0].text)


def test_a_schema_that_cannot_be_enforced_is_refused_with_the_reason(client):
    schema = {"type": "array", "uniqueItems": True}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with pytest.raises(openai.BadRequestError, match="uniqueItems"):
        client.chat.completions.create(messages=CHAT, response_format=wanted, **SAMPLED)
