import json
from dataclasses import replace

import numpy as np
import pytest

from canopy.config import CacheConfig, Deployment, DrafterConfig, LimitsConfig, TreeConfig
from canopy.errors import ContextLengthExceeded, InvalidRequest
from canopy.frontend.client_request import ClientRequest
from canopy.frontend.request_parser import RequestParser
from canopy.frontend.sampling_options import ClientParameters
from canopy.frontend.sampling_params import ModelLimits
from canopy.sampling import Acceptance, PolicyName
from canopy.text.tokenizer import Tokenizer

CONTEXT = 40
MODEL = ModelLimits(max_context_length=CONTEXT, vocab_size=257, eos_token_ids=(256,))


@pytest.fixture(scope="module")
def tokenizer(tiny_folder) -> Tokenizer:
    return Tokenizer(tiny_folder)


@pytest.fixture
def parser(tokenizer) -> RequestParser:
    return RequestParser(Deployment(), MODEL, tokenizer)


def with_parameters(**parameters: object) -> ClientRequest:
    return ClientRequest(text_input=b"hello", request_parameters=parameters)


def test_a_prompt_that_fills_the_context_works_and_one_token_more_is_refused(parser):
    request = parser.parse(ClientRequest(text_input=b"x" * CONTEXT))
    assert len(request.prompt_token_ids) == CONTEXT
    assert request.params.max_tokens == 1
    with pytest.raises(ContextLengthExceeded, match=r"length is 40 tokens, .* has 41"):
        parser.parse(ClientRequest(text_input=b"x" * (CONTEXT + 1)))


def test_max_tokens_is_capped_by_what_the_context_leaves(parser):
    assert parser.parse(with_parameters(max_tokens=1000)).params.max_tokens == CONTEXT - 5 + 1
    assert parser.parse(with_parameters(max_tokens=3)).params.max_tokens == 3


def test_a_chat_runs_to_the_end_of_the_context_unless_a_limit_is_set(tokenizer):
    chat = ClientRequest(messages=b'[{"role": "user", "content": "x"}]')
    room = CONTEXT - len("[user] x\n[assistant] ") + 1

    def max_tokens(client: ClientRequest, **limits: int) -> int:
        parser = RequestParser(Deployment(limits=LimitsConfig(**limits)), MODEL, tokenizer)
        return parser.parse(client).params.max_tokens

    assert max_tokens(chat, default_max_tokens=4) == room
    assert max_tokens(chat, default_chat_max_tokens=3) == 3
    assert max_tokens(chat, default_chat_max_tokens=1000) == room
    assert max_tokens(ClientRequest(text_input=b"x"), default_max_tokens=4) == 4


def test_what_a_request_leaves_open_is_the_models_law_and_told(tokenizer):
    defaults = ClientParameters(temperature=0.2, top_p=0.9, top_k=5)
    parser = RequestParser(Deployment(), replace(MODEL, defaults=defaults), tokenizer)
    params = parser.parse(with_parameters(top_k=None)).params
    assert (params.temperature, params.top_p, params.top_k) == (0.2, 0.9, 5)
    params = parser.parse(with_parameters(temperature=1, top_p=1, top_k=0)).params
    assert (params.temperature, params.top_p, params.top_k) == (1.0, 1.0, 0)
    told = parser.describe()
    assert told["max_context_length"] == CONTEXT
    assert told["defaults"] == {
        "temperature": 0.2,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.0,
        "typical_p": 1.0,
        "repetition_penalty": 1.0,
        "max_tokens": CONTEXT,
        "chat_max_tokens": CONTEXT,
    }


def test_a_small_cache_limits_the_context(tokenizer):
    deployment = Deployment(cache=CacheConfig(num_tokens=32, block_size=16))
    assert RequestParser(deployment, MODEL, tokenizer).max_context_length == 32


def test_a_deployment_may_lower_the_context(tokenizer):
    deployment = Deployment(limits=LimitsConfig(max_context_length=10))
    assert RequestParser(deployment, MODEL, tokenizer).max_context_length == 10


def test_messages_are_rendered_with_the_models_template(parser, tokenizer):
    messages = [{"role": "user", "content": [{"type": "text", "text": "hé"}]}]
    request = parser.parse(ClientRequest(messages=json.dumps(messages).encode()))
    assert tokenizer.decode(request.prompt_token_ids.tolist()) == "[user] hé\n[assistant] "
    assert not request.prepend_prompt


@pytest.mark.parametrize(
    ("client", "text"),
    [
        (ClientRequest(), "send one of text_input"),
        (ClientRequest(text_input=b"a", messages=b"[]"), "send one of text_input"),
        (ClientRequest(text_input=b""), "the prompt is empty"),
        (ClientRequest(text_input=b"\xff"), "not valid UTF-8"),
        (ClientRequest(messages=b"{"), "messages is not valid JSON"),
        (ClientRequest(messages=b"[]"), "non-empty JSON list"),
        (ClientRequest(messages=b'[{"role": "king", "content": "x"}]'), "role must be one of"),
        (ClientRequest(messages=b'[{"role": "user"}]'), "content must be a string"),
        (ClientRequest(messages=b'[{"role": "user", "content": null}]'), "content must be"),
        (ClientRequest(messages=b'[{"role": "user", "color": 1}]'), "unknown field color"),
        (ClientRequest(messages=b'[{"role": "user", "content": "\\ud83d"}]'), "surrogate pair"),
        (ClientRequest(messages=b'[{"role": "user", "content": "\xff"}]'), "not valid JSON"),
        (ClientRequest(text_input=b"a", sampling_parameters=b'{"\xff": 1}'), "not valid JSON"),
        (ClientRequest(text_input=b"a", sampling_parameters=b'{"\\udc00": 1}'), "surrogate pair"),
        (ClientRequest(messages=b'[{"role": "user", "content": [1]}]'), "content parts"),
        (ClientRequest(text_input=b"a", sampling_parameters=b"nope"), "not valid JSON"),
        (ClientRequest(text_input=b"a", sampling_parameters=b"[]"), "must be a JSON object"),
        (
            ClientRequest(text_input=b"a", stream=True, exclude_input_in_output=False),
            "when streaming",
        ),
        (
            ClientRequest(
                text_input=b"a",
                sampling_parameters=b'{"seed": 1}',
                request_parameters={"seed": 2},
            ),
            "seed sent twice",
        ),
        (with_parameters(min_tokens=100), "min_tokens = 100 exceeds"),
        (with_parameters(allow_special_tokens=False), "goes with messages alone"),
        (with_parameters(stop_token_ids="[400]"), "outside the vocabulary"),
        (with_parameters(temperature=1, acceptance="greedy"), "goes with temperature = 0"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_reason(parser, client, text):
    with pytest.raises(InvalidRequest, match=text):
        parser.parse(client)


def test_a_prompt_over_the_byte_limit_is_refused_before_it_is_encoded(tokenizer):
    parser = RequestParser(Deployment(limits=LimitsConfig(max_prompt_bytes=8)), MODEL, tokenizer)
    with pytest.raises(InvalidRequest, match="9 bytes, at most 8"):
        parser.parse(ClientRequest(text_input=b"x" * 9))


def test_the_prompt_is_prepended_as_the_vllm_backend_does(parser):
    plain = parser.parse(ClientRequest(text_input=b"a"))
    excluded = parser.parse(ClientRequest(text_input=b"a", exclude_input_in_output=True))
    streamed = parser.parse(ClientRequest(text_input=b"a", stream=True))
    flags = [r.prepend_prompt for r in (plain, excluded, streamed)]
    assert flags == [True, False, False]


@pytest.mark.parametrize("allowed", [True, False])
def test_a_special_token_within_a_message_counts_where_it_is_allowed(parser, allowed):
    messages = json.dumps([{"role": "user", "content": "a<|end|>b"}]).encode()
    given = {"allow_special_tokens": allowed}
    request = parser.parse(ClientRequest(messages=messages, request_parameters=given))
    assert (256 in request.prompt_token_ids) == allowed


def test_lists_are_read_from_text_in_request_parameters_alone(parser):
    text = json.dumps({"stop": '["a"]'}).encode()
    as_json = parser.parse(ClientRequest(text_input=b"hello", sampling_parameters=text))
    assert as_json.stop_strings == ('["a"]',)
    assert parser.parse(with_parameters(stop='["a"]')).stop_strings == ("a",)


def test_a_top_k_beyond_the_vocabulary_is_none(parser):
    top_ks = [parser.parse(with_parameters(top_k=k)).params.top_k for k in (256, 257, 2**31 - 1)]
    assert top_ks == [256, 0, 0]


def test_an_empty_step_of_the_assistant_may_come_without_content(parser, tokenizer):
    messages = [{"role": "assistant", "content": None, "name": None}]
    request = parser.parse(ClientRequest(messages=json.dumps(messages).encode()))
    assert tokenizer.decode(request.prompt_token_ids.tolist()).startswith("[assistant] \n")


def test_temperature_zero_is_greedy_under_every_acceptance(parser):
    given = with_parameters(temperature=0, acceptance="rejection")
    assert parser.parse(given).params.acceptance is Acceptance.GREEDY
    assert parser.parse(with_parameters()).params.acceptance is Acceptance.COUPLED


def test_speculation_is_the_deployments_unless_the_request_says_otherwise(tokenizer):
    parser = RequestParser(Deployment(tree=TreeConfig(policy="chain")), MODEL, tokenizer)
    policies = [
        parser.parse(with_parameters(**given)).params.policy
        for given in ({}, {"speculation": "topn"}, {"speculation": "off"}, {"node_budget": 0})
    ]
    assert policies == [PolicyName.CHAIN, PolicyName.TOPN, PolicyName.OFF, PolicyName.OFF]


def test_a_policy_cannot_be_had_without_a_drafter(tokenizer):
    deployment = Deployment(drafter=DrafterConfig(source="none"))
    parser = RequestParser(deployment, MODEL, tokenizer)
    assert parser.parse(with_parameters()).params.policy is PolicyName.OFF
    with pytest.raises(InvalidRequest, match="no drafter"):
        parser.parse(with_parameters(speculation="chain"))


def test_eos_stops_unless_ignored_and_own_stop_tokens_always_do(parser):
    stops = [
        parser.parse(with_parameters(stop_token_ids="[7, 256]", ignore_eos=ignore)).params
        for ignore in (False, True)
    ]
    assert [set(params.stop_token_ids) for params in stops] == [{256, 7}, {7, 256}]
    assert parser.parse(with_parameters(ignore_eos=True)).params.stop_token_ids == ()


def test_requests_without_a_seed_get_different_ones(parser):
    seeds = {parser.parse(with_parameters()).params.seed for _ in range(4)}
    assert len(seeds) == 4


def test_the_shorter_timeout_counts(parser):
    assert parser.parse(ClientRequest(text_input=b"a", timeout_us=2_000_000)).timeout_s == 2.0
    assert (
        parser.parse(ClientRequest(text_input=b"a")).timeout_s == LimitsConfig().request_timeout_s
    )


def test_prompt_ids_are_int32(parser):
    assert parser.parse(ClientRequest(text_input="漢".encode())).prompt_token_ids.dtype == np.int32


@pytest.mark.parametrize("arguments", ["", "{}"])
def test_a_call_in_the_history_may_have_no_arguments(parser, arguments):
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = json.dumps([{"role": "assistant", "tool_calls": [call]}]).encode()
    with pytest.raises(ContextLengthExceeded):  # rendered, with more than 40 bytes
        parser.parse(ClientRequest(messages=messages))


def test_a_prompt_that_is_too_long_whatever_its_tokens_is_not_tokenized(tokenizer, monkeypatch):
    parser = RequestParser(Deployment(), MODEL, tokenizer)
    longest = tokenizer.longest_token_bytes
    too_long = "x" * (CONTEXT * longest + 1)
    monkeypatch.setattr(tokenizer, "_ids", lambda *_args, **_more: pytest.fail("tokenized"))
    chat = json.dumps([{"role": "user", "content": too_long}]).encode()
    for client in (ClientRequest(text_input=too_long.encode()), ClientRequest(messages=chat)):
        with pytest.raises(ContextLengthExceeded, match=r"40 tokens, the prompt has at least"):
            parser.parse(client)
    parser = RequestParser(Deployment(limits=LimitsConfig(max_prompt_bytes=9)), MODEL, tokenizer)
    for name in ("text_input", "messages", "sampling_parameters"):
        with pytest.raises(InvalidRequest, match=f"{name} has 10 bytes, at most 9"):
            parser.check_sizes(ClientRequest(**{name: bytes(10)}))
