"""Tools as OpenAI's package and LangChain's agent use them, over a real server.

The tiny model would hardly call a tool: a grammar makes it write what a trained one does.
"""

import json
import re

import openai
import pytest
from served import gateway

from canopy_gateway import GatewaySettings

pytestmark = pytest.mark.server

CHAT = [{"role": "user", "content": "weather?"}]
SAMPLED = {"model": "canopy", "temperature": 0.9, "seed": 2, "max_tokens": 400}
CITY = {"type": "string", "enum": ["Oslo", "Rome", "Lima"]}
DAYS = {"$ref": "#/$defs/Days"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Forecast",
        "parameters": {
            "type": "object",
            "properties": {"city": CITY, "days": DAYS},
            "required": ["city", "days"],
            "additionalProperties": False,
            "$defs": {"Days": {"type": "integer", "minimum": 1, "maximum": 9}},
        },
    },
}
RESPONSES_WEATHER = {"type": "function", **WEATHER["function"]}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}
A_CALL = (
    r'([a-z]{1,4} )?<tool_call>\n?\{"name": "get_weather", "arguments": '
    r'\{"city": "(Oslo|Rome)", "days": [1-9]\}\}\n?</tool_call>'
)


def is_weather(call) -> bool:
    arguments = json.loads(call.function.arguments)
    is_city = arguments["city"] in ("Oslo", "Rome", "Lima")
    return call.function.name == "get_weather" and is_city and 1 <= arguments["days"] <= 9


def joined(client, **options):
    """Content and calls of a stream, put together as clients do."""
    with client.chat.completions.stream(**options) as stream:
        return stream.get_final_completion().choices[0]


def test_a_call_is_read_from_the_models_own_form(client):
    options = {
        "messages": CHAT,
        "tools": [WEATHER],
        "extra_body": {"structured_outputs": {"regex": A_CALL}},
        **SAMPLED,
    }
    choice = client.chat.completions.create(**options).choices[0]
    [call] = choice.message.tool_calls
    assert is_weather(call)
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None or re.fullmatch("[a-z]{1,4}", choice.message.content)
    streamed = joined(client, **options)
    assert [c.function.arguments for c in streamed.message.tool_calls] == [call.function.arguments]
    assert streamed.finish_reason == "tool_calls"


def test_a_required_call_follows_one_of_the_schemas(client):
    options = {"messages": CHAT, "tools": [WEATHER, CLOCK], "tool_choice": "required", **SAMPLED}
    once = options | {"parallel_tool_calls": False}
    for seed in range(3):
        choice = client.chat.completions.create(**once | {"seed": seed}).choices[0]
        if choice.finish_reason == "length":
            continue
        [call] = choice.message.tool_calls
        assert call.function.name == "clock" or is_weather(call)
        assert choice.finish_reason == "tool_calls"
    streamed = joined(client, **once)
    whole = client.chat.completions.create(**once).choices[0]
    assert [c.function.arguments for c in streamed.message.tool_calls or []] == [
        c.function.arguments for c in whole.message.tool_calls or []
    ]


def test_a_named_tool_gets_its_arguments(client):
    named = {"type": "function", "function": {"name": "get_weather"}}
    choice = client.chat.completions.create(
        messages=CHAT, tools=[CLOCK, WEATHER], tool_choice=named, **SAMPLED
    ).choices[0]
    [call] = choice.message.tool_calls
    assert is_weather(call)
    assert choice.finish_reason == "stop"


def test_calls_and_results_are_history(client):
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    history = [
        *CHAT,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": "rain"},
    ]
    answer = client.chat.completions.create(messages=history, tools=[WEATHER], **SAMPLED)
    without = client.chat.completions.create(messages=history, **SAMPLED)
    assert answer.usage.prompt_tokens > without.usage.prompt_tokens + 100
    told = client.post("/../tokenize", body={"messages": history}, cast_to=object)
    text = client.post("/../detokenize", body={"tokens": told["tokens"]}, cast_to=object)
    assert '<tool_call>{"name": "f", "arguments": {}}</tool_call>' in text["prompt"]
    assert "[tool] rain" in text["prompt"]


def test_tools_that_are_not_to_be_called_are_not_told_of(client):
    plain = client.chat.completions.create(messages=CHAT, **SAMPLED)
    answer = client.chat.completions.create(
        messages=CHAT, tools=[WEATHER], tool_choice="none", **SAMPLED
    )
    assert answer.choices[0].message.content == plain.choices[0].message.content
    assert answer.choices[0].message.tool_calls is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tool_choice": "required"}, "goes with tools"),
        ({"tools": [WEATHER, WEATHER]}, "same name"),
        ({"tools": [WEATHER], "tool_choice": {"function": {"name": "g"}}}, "names no tool"),
        ({"tools": [{"type": "retrieval"}]}, "tools"),
        (
            {
                "tools": [WEATHER],
                "tool_choice": "required",
                "response_format": {"type": "json_object"},
            },
            "no room for another form",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(client, options, text):
    with pytest.raises(openai.BadRequestError, match=text):
        client.chat.completions.create(messages=CHAT, **options, **SAMPLED)


def test_the_last_message_may_be_continued(client):
    history = [*CHAT, {"role": "assistant", "content": "It is"}]
    body = {"messages": history, "continue_final_message": True}
    told = client.post("/../tokenize", body=body, cast_to=object)
    text = client.post("/../detokenize", body={"tokens": told["tokens"]}, cast_to=object)
    assert text["prompt"] == "[user] weather?\n[assistant] It is"
    assert told["count"] == len(told["tokens"]) == len(text["prompt"])
    options = {"extra_body": {"continue_final_message": True}, "max_tokens": 5, "temperature": 0}
    chat = client.chat.completions.create(messages=history, model="canopy", **options)
    plain = client.completions.create(
        prompt=text["prompt"], model="canopy", max_tokens=5, temperature=0
    )
    assert chat.choices[0].message.content == plain.choices[0].text


def test_tokens_are_those_of_the_chat_that_is_answered(client):
    chat = [{"role": "user", "content": "a<|end|>b"}]
    body = {"messages": chat, "return_token_strs": True}
    told = client.post("/../tokenize", body=body, cast_to=object)
    answer = client.chat.completions.create(messages=chat, model="canopy", max_tokens=1)
    assert told["count"] == answer.usage.prompt_tokens == len(told["token_strs"])
    assert "<|end|>" not in told["token_strs"]


def test_reasoning_that_the_prompt_has_opened_goes_on(triton):
    """And only then; a grammar, which cannot close it, makes the whole answer content."""
    settings = GatewaySettings(server_url=triton.grpc_url, reasoning_parser="think")
    history = [*CHAT, {"role": "assistant", "content": "<think>a"}]
    going_on = {"continue_final_message": True}
    grammar = {"structured_outputs": {"choice": ["yes"]}}
    options = {"model": "canopy", "messages": history, "max_tokens": 8, "temperature": 0}
    with gateway(settings) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        open_one, closed, held = [
            client.chat.completions.create(extra_body=body, **options).choices[0].message
            for body in (going_on, {"chat_template_kwargs": {"x": "y"}}, going_on | grammar)
        ]
    assert open_one.reasoning_content
    assert (open_one.content, held.content) == ("", "yes")
    assert closed.content
    assert not hasattr(closed, "reasoning_content")


def test_reasoning_and_a_call_are_told_apart_whole_and_streamed(triton):
    settings = GatewaySettings(server_url=triton.grpc_url, reasoning_parser="think")
    body = {"structured_outputs": {"regex": rf"<think>[a-z]{{2,8}}</think>\n\n{A_CALL}"}}
    options = {"messages": CHAT, "tools": [WEATHER], "extra_body": body, **SAMPLED}
    with gateway(settings) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        choice = client.chat.completions.create(**options).choices[0]
        deltas = [
            piece.choices[0].delta
            for piece in client.chat.completions.create(stream=True, **options)
        ]
        output = client.responses.create(
            model="canopy", input=CHAT, tools=[RESPONSES_WEATHER], temperature=0.9,
            extra_body=body | {"seed": SAMPLED["seed"]},
        ).output  # fmt: skip
    reasoning, [call] = choice.message.reasoning_content, choice.message.tool_calls
    assert re.fullmatch("[a-z]{2,8}", reasoning)
    assert is_weather(call)
    assert "".join(getattr(d, "reasoning_content", "") for d in deltas) == reasoning
    calls = [c.function for delta in deltas for c in delta.tool_calls or []]
    assert "".join(c.arguments for c in calls) == call.function.arguments
    assert output[0].content[0].text == reasoning
    assert output[-1].arguments == call.function.arguments
