"""Tool calls and reasoning in an answer, however the text is cut into pieces."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_gateway.tools.events import CallArguments, CallStart, Content, Reasoning
from canopy_gateway.tools.formats import FORMATS, REQUIRED, CallParser, NamedCall
from canopy_gateway.tools.reasoning import PlainAnswer, ReasoningParser


def parser_of(form: str, tools=("f", "g"), max_calls: int | None = None) -> CallParser:
    return CallParser(FORMATS[form], tools, max_calls)


def read(parser, text: str, cuts=()) -> tuple[str, str, list[tuple[str, str]]]:
    """Reasoning, content and calls of a text that comes in pieces."""
    reasoning, content, calls = "", "", []
    edges = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    events = [e for a, b in pairwise(edges) for e in parser.feed(text[a:b])]
    for event in [*events, *parser.end()]:
        if isinstance(event, Content):
            content += event.text
        elif isinstance(event, Reasoning):
            reasoning += event.text
        elif isinstance(event, CallStart):
            assert event.index == len(calls)
            calls.append((event.name, ""))
        else:
            assert isinstance(event, CallArguments)
            assert event.index == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + event.text)
    return reasoning, content, calls


ARGUMENTS = st.dictionaries(
    st.text(max_size=4),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=6),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=4,
    ),
    max_size=3,
)
CALLS = st.lists(st.tuples(st.text("abc_", min_size=1, max_size=5), ARGUMENTS), max_size=3)


def spelled(form: str, calls, indent) -> str:
    key = "parameters" if form == "llama3" else "arguments"
    texts = [json.dumps({"name": n, key: a}, indent=indent, ensure_ascii=False) for n, a in calls]
    if form == "hermes":
        return "".join(f"<tool_call>\n{text}\n</tool_call>\n" for text in texts)
    if form == "llama3":
        return "; ".join(texts)
    return f"[TOOL_CALLS][{', '.join(texts)}]"


@settings(max_examples=150, deadline=None)
@given(
    form=st.sampled_from(sorted(FORMATS)),
    calls=CALLS,
    indent=st.sampled_from([None, 2]),
    cuts=st.lists(st.integers(0, 300), max_size=40),
)
def test_calls_come_back_as_they_were_written(form, calls, indent, cuts):
    if not calls:
        return
    _, content, found = read(
        parser_of(form, [name for name, _ in calls]), spelled(form, calls, indent), cuts
    )
    assert content.strip() == ""
    assert [name for name, _ in found] == [name for name, _ in calls]
    assert [json.loads(text) for _, text in found] == [arguments for _, arguments in calls]


@settings(max_examples=80, deadline=None)
@given(
    form=st.sampled_from(sorted(FORMATS)),
    text=st.lists(
        st.sampled_from(
            ["<tool_call>", "</tool_call>", "{", "}", "a", " ", "\n", ":", "<to", "[", "]"]
        ),
        max_size=12,
    ).map("".join),
    cuts=st.lists(st.integers(0, 40), max_size=10),
)
def test_text_without_a_call_is_content_to_the_letter(form, text, cuts):
    """Whatever it looks like; whitespace before what seemed to be a call aside."""
    _, content, calls = read(parser_of(form), text, cuts)
    assert calls == []
    assert "".join(content.split()) == "".join(text.split())


@pytest.mark.parametrize(
    ("form", "text", "content", "names"),
    [
        ("hermes", 'Let me look. <tool_call>{"name": "f", "arguments": {}}</tool_call>', 13, ["f"]),
        ("hermes", "a < b and <tool_ is no mark", 27, []),
        ("hermes", '<tool_call>{"title": "no call"}', 31, []),
        ("llama3", '<|python_tag|>{"name": "f", "parameters": {}}', 0, ["f"]),
        ("llama3", '{"answer": 42}', 14, []),
        ("llama3", 'see {"name": "f", "parameters": {}}', 35, []),
        ("mistral", '[{"name": "f", "arguments": {}}]', 0, ["f"]),
        ("mistral", "[1, 2] is a list", 16, []),
        ("llama3", '{"name": "Ada", "age": 36}', 26, []),
        ("mistral", '[{"name": "Ada"}, {"name": "f"}]', 32, []),
        ("hermes", '<tool_call>{"name": "unknown"}</tool_call>', 0, ["unknown"]),
    ],
)
def test_what_is_a_call_and_what_is_none(form, text, content, names):
    for cuts in ((), range(len(text))):
        _, shown, calls = read(parser_of(form), text, cuts)
        assert [name for name, _ in calls] == names
        assert len(shown) == content


def test_arguments_may_come_before_the_name_or_as_a_text():
    text = '<tool_call>{"arguments": {"x": [1]}, "name": "f"}</tool_call>'
    assert read(parser_of("hermes"), text, range(99))[2] == [("f", '{"x": [1]}')]
    quoted = '<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>'
    assert read(parser_of("hermes"), quoted, range(99))[2] == [("f", '{"x": 1}')]


@pytest.mark.parametrize("rest", ["", ', "arguments": null', ', "arguments": ""'])
def test_a_call_without_arguments_has_none_of_them(rest):
    text = f'<tool_call>{{"name": "f"{rest}}}</tool_call>'
    for cuts in ((), range(len(text))):
        assert read(parser_of("hermes"), text, cuts)[2] == [("f", "{}")]


def test_a_call_that_is_cut_short_keeps_what_came_of_it():
    text = '<tool_call>{"name": "f", "arguments": {"x": "lon'
    assert read(parser_of("hermes"), text)[2] == [("f", '{"x": "lon')]


def test_further_calls_are_left_out_where_one_is_wanted():
    text = spelled("hermes", [("f", {}), ("g", {"x": 1})], None)
    assert read(parser_of("hermes", max_calls=1), text, range(99))[2] == [("f", "{}")]


def test_required_and_named_answers_are_calls_alone():
    text = '[{"name": "f", "parameters": {"x": 1}}, {"name": "g", "parameters": {}}]'
    assert read(CallParser(REQUIRED, ["f", "g"]), text, range(99)) == (
        "",
        "",
        [("f", '{"x": 1}'), ("g", "{}")],
    )
    assert read(NamedCall("f"), '{"x": 1}', range(9)) == ("", "", [("f", '{"x": 1}')])


@pytest.mark.parametrize(
    ("text", "is_open", "expected"),
    [
        ("<think>so\n</think>\n\nyes", False, ("so\n", "yes")),
        ("so\n</think>\n\nyes", True, ("so\n", "yes")),
        ("<think>\nso</think>yes", True, ("\nso", "yes")),
        ("yes </think>", False, ("", "yes </think>")),
        ("<think>never ends <", False, ("never ends <", "")),
        ("<thin", False, ("", "<thin")),
        ("", True, ("", "")),
    ],
)
def test_reasoning_is_told_from_the_answer(text, is_open, expected):
    for cuts in ((), range(len(text))):
        assert read(ReasoningParser(PlainAnswer(), is_open), text, cuts)[:2] == expected


def test_calls_follow_reasoning():
    text = '<think>hm</think><tool_call>{"name": "f", "arguments": {}}</tool_call>'
    parser = ReasoningParser(parser_of("hermes"), is_open=False)
    assert read(parser, text, range(99)) == ("hm", "", [("f", "{}")])
