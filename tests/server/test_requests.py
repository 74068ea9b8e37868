"""What a client sends and gets, on the real server with a tiny model."""

import json

import pytest
from tiny_model import byte_tokenizer
from wire import Stream, ask, post

pytestmark = pytest.mark.server

GREEDY = {"temperature": 0, "ignore_eos": True}
SINGLE_RANK = {"stream": False, "exclude_input_in_output": True}


def test_a_streamed_answer_says_how_it_ended_and_what_speculation_did(server):
    answer = ask(server.grpc_url, "abcabcabcabc", max_tokens=24, **GREEDY)
    assert answer.error is None
    assert answer.num_tokens == 24
    assert [o["finish_reason"] for o in answer.outputs] == [
        *["None"] * (len(answer.outputs) - 1),
        "length",
    ]
    assert {o["num_input_tokens"] for o in answer.outputs} == {12}
    assert answer.report["rounds"] + answer.report["accepted_tokens"] == 24
    assert all("speculation" not in output for output in answer.outputs[:-1])


def test_the_streamed_text_equals_the_whole_text(server):
    streamed = ask(server.grpc_url, "hello", max_tokens=40, **GREEDY)
    whole = ask(server.grpc_url, "hello", max_tokens=40, **SINGLE_RANK, **GREEDY)
    assert len(whole.outputs) == 1
    assert streamed.text == whole.text


def test_an_unstreamed_answer_begins_with_the_prompt_unless_excluded(server):
    answer = ask(server.grpc_url, "hello", max_tokens=4, stream=False, **GREEDY)
    without = ask(server.grpc_url, "hello", max_tokens=4, **SINGLE_RANK, **GREEDY)
    assert answer.text == "hello" + without.text


def test_optional_outputs_come_only_when_asked_for(server):
    flags = dict.fromkeys(
        ("return_finish_reason", "return_num_input_tokens", "return_num_output_tokens"), False
    )
    answer = ask(server.grpc_url, "hello", max_tokens=4, **flags, **GREEDY)
    assert set().union(*answer.outputs) == {"text_output", "speculation"}


def test_a_traced_answer_tells_the_rounds_of_every_piece(server):
    answer = ask(server.grpc_url, "abcabcabcabc", max_tokens=24, trace=True, **GREEDY)
    rounds = [traced for output in answer.outputs for traced in json.loads(output["trace"])]
    assert [traced["round"] for traced in rounds] == list(range(1, answer.report["rounds"] + 1))
    assert sum(len(r["accepted"]) for r in rounds) == answer.report["accepted_tokens"]
    assert sum(len(r["token_ids"]) - 1 for r in rounds) == answer.report["drafted_nodes"]


@pytest.mark.parametrize("text", ["漢字かな交じり文", "🌳👩‍👩‍👧🇩🇪", "def f(x):\n\treturn x\n"])
def test_no_piece_breaks_a_character(server, text):
    options = {"max_tokens": 60, "temperature": 1.5, "seed": 3, "ignore_eos": True}
    answer = ask(server.grpc_url, text * 3, **options)
    assert answer.error is None
    for piece in answer.pieces:
        piece.encode("utf-8")
    whole = ask(server.grpc_url, text * 3, **SINGLE_RANK, **options)
    assert answer.text == whole.text


def test_a_stop_string_is_not_shown_and_counts_as_stop(server):
    text = ask(server.grpc_url, "hello", max_tokens=30, **GREEDY).text
    stop = text[10:13]
    answer = ask(server.grpc_url, "hello", max_tokens=30, stop=[stop], **GREEDY)
    assert answer.text == text[: text.index(stop)]
    assert answer.outputs[-1]["finish_reason"] == "stop"


def test_a_stop_token_ends_the_answer_and_min_tokens_holds_it_back(server):
    # All tokens but one stop, so only the one left can be sampled before min_tokens.
    options = {"max_tokens": 9, "temperature": 0, "stop_token_ids": list(range(1, 256))}
    free = ask(server.grpc_url, "q", **options)
    assert (free.num_tokens, free.outputs[-1]["finish_reason"]) == (1, "stop")
    held = ask(server.grpc_url, "q", min_tokens=5, **options)
    assert (held.num_tokens, held.outputs[-1]["finish_reason"]) == (6, "stop")
    assert held.text == byte_tokenizer().id_to_token(0) * 5


def test_the_same_seed_gives_the_same_text_and_another_seed_another(server):
    options = {"max_tokens": 30, "temperature": 1.0, "ignore_eos": True}
    texts = [ask(server.grpc_url, "hello", seed=seed, **options).text for seed in (7, 7, 8)]
    assert texts[0] == texts[1] != texts[2]


def test_chat_messages_go_through_the_models_template(server):
    messages = [{"role": "user", "content": "hi"}]
    chat = ask(server.grpc_url, None, messages=json.dumps(messages), max_tokens=8, **GREEDY)
    raw = ask(server.grpc_url, "[user] hi\n[assistant] ", max_tokens=8, **GREEDY)
    assert chat.text == raw.text


def test_a_prompt_that_fills_the_context_gives_one_token_and_one_more_is_refused(server):
    assert ask(server.grpc_url, "x" * server.max_context, **GREEDY).num_tokens == 1
    refused = ask(server.grpc_url, "x" * (server.max_context + 1), **GREEDY)
    assert refused.error is not None
    assert refused.error.startswith("[context_length_exceeded] the maximum context length is")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"temperature": -1}, "temperature must be"),
        ({"temperature": "hot"}, "temperature must be"),
        ({"top_p": 0}, "top_p must be"),
        ({"top_k": -5}, "top_k must be"),
        ({"min_p": 1.5}, "min_p must be"),
        ({"seed": -2}, "seed must be"),
        ({"max_tokens": 0}, "max_tokens must be"),
        ({"n": 2}, "n must be 1"),
        ({"stop": [1]}, "stop must be"),
        ({"speculation": "hope"}, "speculation must be"),
        ({"node_budget": 1000}, "node_budget must be"),
        ({"acceptance": "luck"}, "acceptance must be"),
        ({"best_of": 3}, "best_of = 3 is not supported"),
        ({"color": "red"}, "unknown parameter color"),
        ({"logprobs": 21}, "logprobs must be"),
        ({"messages": "{"}, "send one of text_input"),
        ({"exclude_input_in_output": False}, "when streaming"),
    ],
)
def test_a_bad_request_gets_a_clear_error_and_its_neighbour_an_answer(server, options, text):
    with Stream(server.grpc_url) as stream:
        stream.send("hello", request_id="good", max_tokens=8, **GREEDY)
        stream.send("hello", request_id="bad", **options)
        answers = stream.collect(count=2)
    errors = [answer.error for answer in answers.values() if answer.error]
    assert len(errors) == 1
    assert errors[0].startswith("[invalid_argument] ")
    assert text in errors[0]
    assert answers["good"].num_tokens == 8


def test_bytes_that_are_not_text_are_refused(server):
    error = ask(server.grpc_url, b"\xff\xfe").error
    assert error is not None
    assert "not valid UTF-8" in error


def test_http_generate_stream_speaks_server_sent_events(server):
    body = {"text_input": "hello", "stream": True, "max_tokens": 12, **GREEDY}
    status, text = post(f"{server.http_url}/v2/models/canopy/generate_stream", body)
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    expected = ask(server.grpc_url, "hello", max_tokens=12, **GREEDY)
    assert status == 200
    assert "".join(event["text_output"] for event in events) == expected.text


def test_http_generate_takes_parameters_in_every_customary_way(server):
    url = f"{server.http_url}/v2/models/canopy/generate"
    bodies = [
        {"text_input": "hi", "max_tokens": 5, **GREEDY},
        {"text_input": "hi", "parameters": {"max_tokens": 5, **GREEDY}},
        {"text_input": "hi", "sampling_parameters": json.dumps({"max_tokens": "5", **GREEDY})},
    ]
    replies = [post(url, body) for body in bodies]
    assert [status for status, _ in replies] == [200] * 3
    texts = {json.loads(text)["text_output"] for _, text in replies}
    assert len(texts) == 1
    assert texts.pop().startswith("hi")


@pytest.mark.parametrize("where", ["timeout", "parameters"])
def test_the_timeout_of_a_http_request_counts(server, where):
    limit = {"timeout": 1}  # microsecond
    body = {"text_input": "hello", "max_tokens": 64, **GREEDY}
    body |= limit if where == "timeout" else {"parameters": limit}
    status, text = post(f"{server.http_url}/v2/models/canopy/generate", body)
    assert status == 400
    assert json.loads(text)["error"].startswith("[cancelled] ")


def test_tokens_and_logprobs_come_as_the_vllm_backend_tells_them(server):
    flags = {"return_logprobs": True, "return_cumulative_logprob": True, "return_token_ids": True}
    body = {"text_input": "hello", "max_tokens": 5, "exclude_input_in_output": True}
    options = {"parameters": {"logprobs": 2, "prompt_logprobs": 0, **GREEDY}}
    status, text = post(f"{server.http_url}/v2/models/canopy/generate", body | flags | options)
    assert status == 200
    answer = json.loads(text)
    told = json.loads(answer["logprobs"])
    assert [int(next(iter(token))) for token in told] == answer["token_ids"]
    total = sum(next(iter(token.values()))["logprob"] for token in told)
    assert answer["cumulative_logprob"] == pytest.approx(total, abs=1e-4)
    assert len(json.loads(answer["prompt_logprobs"])) == len("hello")
    by_ids = {"max_tokens": 5, "prompt_token_ids": list(byte_tokenizer().encode("hello").ids)}
    again = ask(server.grpc_url, None, **by_ids, **GREEDY)
    assert again.text == answer["text_output"]


def test_flags_of_the_vllm_backend_may_ask_for_nothing(server):
    flags = {"return_logprobs": False, "return_cumulative_logprob": False}
    body = {"text_input": "hello", "max_tokens": 2, "priority": 0, **flags}
    assert post(f"{server.http_url}/v2/models/canopy/generate", body)[0] == 200
    status, text = post(f"{server.http_url}/v2/models/canopy/generate", body | {"priority": 2})
    assert status == 400
    assert "priority = 2 is not supported" in text


@pytest.mark.parametrize(
    "body",
    [
        b'{"text_input": "hi", "id": "\xff"}',
        b'{"text_input": "hi", "parameters": {"\xff": 1}}',
        b'{"text_input": "hi", "\xff": "x"}',
        b'{"text_input": "hi", "speculation": "\xff"}',
        b'{"text_input": "\xff"}',
    ],
)
def test_bytes_that_are_not_text_are_the_clients_fault_wherever_they_stand(server, body):
    status, text = post(f"{server.http_url}/v2/models/canopy/generate", body)
    assert status == 400
    assert "[invalid_argument]" in text


def test_http_errors_carry_a_client_error_status_and_the_code(server):
    url = f"{server.http_url}/v2/models/canopy/generate"
    status, text = post(url, {"text_input": "hi", "max_tokens": 0})
    assert status == 400
    assert json.loads(text)["error"].startswith("[invalid_argument] max_tokens must be")


def test_an_unknown_control_operation_is_refused(server):
    error = ask(server.grpc_url, None, control='{"op": "dance"}').error
    assert error is not None
    assert "unknown control operation" in error
