"""OpenAI's Responses API, with its own package and LangChain, over a real server."""

import json

import httpx2
import openai
import pytest
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

pytestmark = pytest.mark.server

GREEDY = {"model": "canopy", "temperature": 0, "max_output_tokens": 12}
SAMPLED = {"model": "canopy", "temperature": 0.9, "max_output_tokens": 400}
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Forecast",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
A_CALL = (
    r'([a-z]{1,4} )?<tool_call>\n?\{"name": "get_weather", "arguments": '
    r'\{"city": "(Oslo|Rome)"\}\}\n?</tool_call>'
)
CHAT = [{"role": "user", "content": "abc"}]


class Answer(BaseModel):
    is_true: bool


def test_a_response_says_what_a_chat_says(client):
    response = client.responses.create(input="abc", instructions="be brief", **GREEDY)
    chat = client.chat.completions.create(
        messages=[{"role": "system", "content": "be brief"}, *CHAT],
        model="canopy", temperature=0, max_tokens=12,
    )  # fmt: skip
    assert response.output_text == chat.choices[0].message.content
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    assert response.usage.output_tokens == 12
    assert (response.status, response.incomplete_details.reason) == (
        "incomplete",
        "max_output_tokens",
    )
    assert response.instructions == "be brief"


def test_a_streamed_response_is_the_whole_one_in_events(client):
    whole = client.responses.create(input=CHAT, **GREEDY)
    with client.responses.stream(input=CHAT, **GREEDY) as stream:
        events = list(stream)
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-1] == "response.incomplete"
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text == events[-1].response.output_text
    assert events[-1].response.usage.total_tokens == whole.usage.total_tokens
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_a_call_and_its_result_are_items(client):
    options = {"tools": [WEATHER], "extra_body": {"structured_outputs": {"regex": A_CALL}}}
    options |= {"input": CHAT, "seed": 2} | SAMPLED
    options["extra_body"]["seed"] = options.pop("seed")
    response = client.responses.create(**options)
    [call] = [item for item in response.output if item.type == "function_call"]
    assert json.loads(call.arguments)["city"] in ("Oslo", "Rome")
    with client.responses.stream(**options) as stream:
        streamed = stream.get_final_response()
    assert [item.type for item in streamed.output] == [item.type for item in response.output]
    assert streamed.output[-1].arguments == call.arguments
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    again = client.responses.create(
        input=[*CHAT, *response.output, result], tools=[WEATHER], tool_choice="none", **GREEDY
    )
    assert again.output_text
    assert again.usage.input_tokens > len("rain") + len(call.arguments)


def test_a_required_call_follows_its_schema(client):
    options = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    [call] = client.responses.create(input=CHAT, **options, **SAMPLED).output
    assert json.loads(call.arguments)["city"] in ("Oslo", "Rome")
    named = {"type": "function", "name": "get_weather"}
    [call] = client.responses.create(
        input=CHAT, tools=[WEATHER], tool_choice=named, **SAMPLED
    ).output
    assert json.loads(call.arguments)["city"] in ("Oslo", "Rome")


def test_structured_output_is_parsed(client):
    parsed = client.responses.parse(input=CHAT, text_format=Answer, **SAMPLED).output_parsed
    assert parsed.is_true in (True, False)


def test_langchain_speaks_it(url):
    model = ChatOpenAI(
        model="canopy", base_url=f"{url}/v1", api_key="none", use_responses_api=True,
        temperature=0, max_tokens=12,
    )  # fmt: skip
    whole = model.invoke("abc")
    assert whole.text
    assert "".join(piece.text for piece in model.stream("abc")) == whole.text
    again = model.invoke([("user", "abc"), whole, ("user", "more")])
    assert again.usage_metadata["input_tokens"] > whole.usage_metadata["input_tokens"]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id is not supported"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input.0: "),
        ({"input": 3}, "input must be"),
        ({"input": None}, "input must be"),
        ({"input": []}, "messages"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "images"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"include": ["message.output_text.logprobs"]}, "include may hold"),
        ({"reasoning": {"effort": "high"}}, "effort is not supported"),
        ({"truncation": "auto"}, "truncation is not supported"),
        ({"text": {"format": {"type": "xml"}}}, "response_format.type"),
        ({"messages": CHAT}, "messages is no field"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"color": "green"}, "color: unknown field"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(url, fields, text):
    asked = {"model": "canopy", "input": "abc", **fields}
    response = httpx2.post(f"{url}/v1/responses", json=asked, timeout=30)
    assert response.status_code == 400
    assert text in response.json()["error"]["message"]


def test_what_asks_for_nothing_is_accepted(client):
    response = client.responses.create(
        input=CHAT, store=False, include=["reasoning.encrypted_content"], truncation="disabled",
        metadata={"a": "b"}, text={"format": {"type": "text"}, "verbosity": "medium"},
        reasoning={"effort": "none"}, top_logprobs=0, **GREEDY,
    )  # fmt: skip
    assert response.metadata == {"a": "b"}
    with pytest.raises(openai.BadRequestError, match="length is 32768"):
        client.responses.create(input="x" * 40000, stream=True, **GREEDY)
