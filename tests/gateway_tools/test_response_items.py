"""Items of the Responses API: an answer's, however its text is cut, and a history's."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_client import Chunk, Completion
from canopy_gateway.errors import APIError
from canopy_gateway.responses import Head
from canopy_gateway.responses_api.answer import ResponseAnswer
from canopy_gateway.responses_api.input_items import messages_of
from canopy_gateway.responses_api.request import ResponsesRequest
from canopy_gateway.tools.formats import FORMATS, CallParser
from canopy_gateway.tools.reasoning import ReasoningParser

REQUEST = ResponsesRequest.model_validate({"model": "m", "input": "x"})
TEXT = (
    '<think>hm</think>\n\nI look. <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>\n'
    '<tool_call>{"name": "g", "arguments": {}}</tool_call>'
)


def answer() -> ResponseAnswer:
    parser = ReasoningParser(CallParser(FORMATS["hermes"], ["f", "g"]), is_open=False)
    return ResponseAnswer(REQUEST, Head("resp_1", 0, "m"), parser)


def events_of(texts: list[str], finish_reason: str) -> list[dict]:
    growing = answer()
    events = list(growing.begin())
    for number, text in enumerate(texts):
        is_last = number == len(texts) - 1
        chunk = Chunk(text, 1, 3, finish_reason if is_last else None, None, is_last)
        events += growing.feed(chunk)
    return [*events, *growing.end(Completion("".join(texts), finish_reason, 3, len(texts), {}))]


def rebuilt(events: list[dict]) -> list[dict]:
    """The items, by the deltas alone."""
    items = []
    for event in events:
        if event["type"] == "response.output_item.added":
            items.append({"type": event["item"]["type"], "text": ""})
        if event["type"].endswith(".delta"):
            items[event["output_index"]]["text"] += event["delta"]
    return items


def text_of(item: dict) -> str:
    return item["arguments"] if "arguments" in item else item["content"][0]["text"]


@settings(max_examples=60, deadline=None)
@given(cuts=st.sets(st.integers(1, len(TEXT) - 1)), end=st.integers(1, len(TEXT)))
def test_the_events_of_an_answer_are_its_items_however_it_is_cut(cuts, end):
    edges = [0, *sorted(cut for cut in cuts if cut < end), end]
    texts = [TEXT[start:stop] for start, stop in pairwise(edges)]
    events = events_of(texts, "length")
    whole = events_of([TEXT[:end]], "length")[-1]["response"]
    told = events[-1]["response"]
    assert [(i["type"], text_of(i)) for i in told["output"]] == [
        (i["type"], text_of(i)) for i in whole["output"]
    ]
    assert rebuilt(events) == [{"type": i["type"], "text": text_of(i)} for i in told["output"]]
    done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert done == told["output"]
    assert [item["status"] for item in done[:-1]] == ["completed"] * (len(done) - 1)
    assert told["output"][-1:] == [] or told["output"][-1]["status"] == "incomplete"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_an_answer_holds_reasoning_text_and_calls_in_their_order():
    told = events_of(list(TEXT), "stop")[-1]
    assert told["type"] == "response.completed"
    output = told["response"]["output"]
    assert [(item["type"], text_of(item)) for item in output] == [
        ("reasoning", "hm"),
        ("message", "I look. "),
        ("function_call", '{"x": 1}'),
        ("function_call", "{}"),
    ]
    assert told["response"]["usage"]["output_tokens_details"]["reasoning_tokens"] == len("hm")
    messages = messages_of(output, None)
    assert [m.keys() - {"role"} for m in messages] == [
        {"reasoning_content", "content", "id", "status", "tool_calls"}
    ]
    assert [json.loads(c["function"]["arguments"]) for c in messages[0]["tool_calls"]] == [
        {"x": 1},
        {},
    ]


def test_every_turn_of_a_history_is_one_message():
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    messages = messages_of(
        [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            call,
            call | {"call_id": "d"},
            {"type": "function_call_output", "call_id": "c", "output": "1"},
            {"type": "function_call_output", "call_id": "d", "output": "2"},
            {"type": "message", "role": "assistant", "content": "b"},
            {"type": "message", "role": "assistant", "content": "c"},
        ],
        "be brief",
    )
    roles = [message["role"] for message in messages]
    assert roles == ["system", "user", "assistant", "tool", "tool", "assistant", "assistant"]
    assert [c["id"] for c in messages[2]["tool_calls"]] == ["c", "d"]
    assert messages[1]["content"] == [{"type": "text", "text": "a"}]


def test_an_answer_that_breaks_off_says_so():
    [event] = answer().failed(APIError(503, "the verifier restarts"))
    assert (event["type"], event["response"]["status"]) == ("response.failed", "failed")
    assert event["response"]["error"]["message"] == "the verifier restarts"


@pytest.mark.parametrize("item", [None, 3, {"type": 3}, {"type": "web_search_call"}, []])
def test_what_is_no_item_of_a_chat_is_named(item):
    with pytest.raises(ValueError, match=r"input\.1: items must be"):
        messages_of([{"role": "user", "content": "a"}, item], None)


def test_the_schema_of_a_request_has_its_own_fields():
    schema = ResponsesRequest.model_json_schema()
    assert schema["required"] == ["model", "input"]
    assert {"input", "text", "max_output_tokens"} <= schema["properties"].keys()
    assert not {"messages", "echoed", "n"} & schema["properties"].keys()
