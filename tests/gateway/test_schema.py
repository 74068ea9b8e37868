"""What a request's fields mean before any server is asked."""

from typing import Any

import pytest
from pydantic import ValidationError

from canopy_gateway.neutral import IGNORED_FIELDS, NEUTRAL_VALUES
from canopy_gateway.schema import ChatRequest, CompletionRequest

CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
COMPLETION = {"model": "m", "prompt": "x"}
HALF = "\ud83d"  # of a surrogate pair


def chat(**fields: Any) -> ChatRequest:
    return ChatRequest.model_validate(CHAT | fields)


def complete(**fields: Any) -> CompletionRequest:
    return CompletionRequest.model_validate(COMPLETION | fields)


def message(**fields: Any) -> dict[str, Any]:
    """What the server is sent for one message."""
    return chat(messages=[fields]).messages[0].for_server()


@pytest.mark.parametrize("name", sorted(ChatRequest.model_fields.keys() - CHAT.keys()))
def test_null_means_absent_for_every_offered_field(name):
    assert chat(**{name: None}) == chat()


@pytest.mark.parametrize("name", sorted(NEUTRAL_VALUES))
def test_a_field_that_is_not_offered_may_ask_for_nothing_and_for_nothing_else(name):
    for value in (None, *NEUTRAL_VALUES[name]):
        assert chat(**{name: value}) == chat()
        assert complete(**{name: value}) == complete()
    with pytest.raises(ValidationError, match=f"{name} is not supported"):
        chat(**{name: "something"})


@pytest.mark.parametrize(
    ("name", "value"),
    [("use_beam_search", 0), ("length_penalty", True), ("priority", False)],
)
def test_a_number_is_no_truth_value(name, value):
    with pytest.raises(ValidationError, match=f"{name} is not supported"):
        complete(**{name: value})


@pytest.mark.parametrize("name", sorted(IGNORED_FIELDS))
def test_what_cannot_change_the_answer_may_hold_anything(name):
    assert chat(**{name: {"a": ["b"]}}) == chat()


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_both_names_of_the_limit_count_for_chats_and_completions(name):
    assert chat(**{name: 5}).options() == complete(**{name: 5}).options() == {"max_tokens": 5}


def test_a_whole_float_is_an_integer():
    floats = {"max_tokens": 8.0, "top_k": 40.0, "n": 2.0, "seed": 3.0, "stop_token_ids": [5.0]}
    whole = {name: [5] if name == "stop_token_ids" else int(v) for name, v in floats.items()}
    assert chat(**floats) == chat(**whole)
    for wrong in (1.5, True, "2", float("inf"), float("nan")):
        with pytest.raises(ValidationError):
            chat(n=wrong)


@pytest.mark.parametrize("seed", [-1, -1.0, None])
def test_seed_minus_one_is_no_seed(seed):
    assert chat(seed=seed).seed is None
    assert chat(seed=-2).seed == -2


def test_stop_is_a_string_or_a_list_and_empty_means_absent():
    assert chat(stop="ab").options() == chat(stop=["ab"]).options() == {"stop": ["ab"]}
    assert chat(stop="").options() == chat(stop=[]).options() == {}


@pytest.mark.parametrize("options", [None, {}, {"include_usage": None}, {"include_usage": False}])
def test_stream_options_that_ask_for_nothing_need_no_stream(options):
    assert not chat(stream_options=options).stream
    with pytest.raises(ValidationError, match="goes with stream = true"):
        chat(stream_options={"include_usage": True})


def test_history_keeps_its_text_and_loses_what_providers_put_beside_it():
    bare = {"role": "assistant", "content": "hi"}
    decorated = bare | {
        "id": "msg_1",
        "annotations": [{"type": "url_citation"}],
        "cache_control": {"type": "ephemeral"},
        "provider_specific_fields": {"a": 1},
        "speculation": {"rounds": 3},
        "reasoning_content": "",
        "refusal": None,
        "tool_calls": [],
        "function_call": None,
        "audio": None,
    }
    part = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}, "id": "1"}
    assert message(**decorated) == message(**bare | {"content": [part]}) == bare


@pytest.mark.parametrize("fields", [{}, {"content": None}, {"content": []}])
def test_a_turn_of_the_assistant_may_be_empty_and_no_other(fields):
    assert message(role="assistant", **fields) == {"role": "assistant", "content": ""}
    if fields != {"content": []}:
        with pytest.raises(ValidationError, match="content"):
            message(role="user", **fields)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "images cannot be read"),
        ({"content": [{"type": "input_audio"}]}, "audio cannot be read"),
        ({"content": [{"type": "text", "text": 5}]}, "content parts must be"),
        ({"content": ["text"]}, "content parts must be"),
        ({"content": [{"type": ["text"]}]}, "content parts must be"),
        ({"content": [{"type": "text", "text": "x", "color": 1}]}, "no field color"),
        ({"content": 5}, "a string or a list of text parts"),
        ({"content": "x", "reasoning": "because"}, "reasoning is not supported"),
        ({"content": "x", "tool_calls": [{"id": "1"}]}, "tool_calls.0.function"),
        ({"content": "x", "color": 1}, "color"),
    ],
)
def test_a_message_that_cannot_be_honoured_is_refused(fields, text):
    with pytest.raises(ValidationError, match=text):
        message(role="user", **fields)


@pytest.mark.parametrize(
    ("prompt", "read"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2.0], [[1, 2]]), ([[1], [2]], [[1], [2]])],
)
def test_a_prompt_is_a_text_or_its_tokens_or_several(prompt, read):
    assert CompletionRequest.model_validate({"model": "m", "prompt": prompt}).prompt == read


@pytest.mark.parametrize("prompt", [[], ["a", 1], [[1.5]], {"a": 1}, 3])
def test_a_prompt_of_another_form_is_refused(prompt):
    with pytest.raises(ValidationError, match="prompt"):
        CompletionRequest.model_validate({"model": "m", "prompt": prompt})


@pytest.mark.parametrize("prompt", [5, {}, [], [None]])
def test_other_prompts_are_refused(prompt):
    with pytest.raises(ValidationError, match="prompt"):
        complete(prompt=prompt)


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": HALF}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": HALF}]}]},
        {"messages": [{"role": "user", "content": "x", "name": HALF}]},
        {"model": HALF},
        {"stop": HALF},
        {"stop": ["a", HALF]},
        {"speculation": HALF},
    ],
)
def test_half_a_surrogate_pair_is_refused_wherever_text_goes(fields):
    with pytest.raises(ValidationError, match="surrogate pair"):
        chat(**fields)
