import pytest

from canopy.errors import InvalidRequest
from canopy.frontend.neutral import PROTOCOL_PARAMETERS, VLLM_PARAMETERS, without_neutral
from canopy.frontend.sampling_options import (
    ClientParameters,
    parse_parameters,
    parse_timeout_us,
    with_json_read,
)


def test_numbers_may_come_as_strings():
    given = parse_parameters(
        {"temperature": "0.5", "max_tokens": "7", "seed": "18446744073709551615"}
    )
    assert (given.temperature, given.max_tokens, given.seed) == (0.5, 7, 2**64 - 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", "warm"),
        ("temperature", float("nan")),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.01),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", 2),
        ("typical_p", 0),
        ("repetition_penalty", 0),
        ("presence_penalty", 2.5),
        ("presence_penalty", False),
        ("frequency_penalty", -3),
        ("logit_bias", [1]),
        ("logit_bias", {"a": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"1": 101}),
        ("bad_words", "word"),
        ("bad_words", [""]),
        ("allowed_token_ids", [1.5]),
        ("seed", -2),
        ("seed", 2**64),
        ("max_tokens", 0),
        ("max_tokens", "many"),
        ("min_tokens", -1),
        ("n", 2),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", 5),
        ("stop", ["x"] * 33),
        ("stop_token_ids", 5),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", ["a"]),
        ("stop_token_ids", "[1]"),
        ("ignore_eos", 1),
        ("speculation", "maybe"),
        ("speculation", ["topn"]),
        ("node_budget", 257),
        ("acceptance", "hope"),
    ],
)
def test_values_out_of_range_are_refused_by_name(name, value):
    with pytest.raises(InvalidRequest, match=rf"\[invalid_argument\] {name} must be"):
        parse_parameters({name: value})


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(InvalidRequest, match=r"unknown parameter color.*known are temperature"):
        parse_parameters({"color": 2})


@pytest.mark.parametrize("name", sorted(VLLM_PARAMETERS))
def test_vllms_defaults_are_accepted_and_its_other_values_refused(name):
    for value in (None, *VLLM_PARAMETERS[name]):
        assert parse_parameters({name: value}) == ClientParameters()
        if not isinstance(value, list | dict):
            assert parse_parameters({name: None if value is None else str(value)})
    with pytest.raises(InvalidRequest, match=f"{name} = 'something' is not supported"):
        parse_parameters({name: "something"})


@pytest.mark.parametrize(
    ("name", "value"),
    [("length_penalty", False), ("best_of", True), ("best_of", 2)],
)
def test_a_number_is_no_truth_value(name, value):
    with pytest.raises(InvalidRequest, match=f"{name} = {value} is not supported"):
        parse_parameters({name: value})


@pytest.mark.parametrize("name", ["top_k", "max_tokens", "min_tokens"])
@pytest.mark.parametrize("value", [2**31, 2**63, 10**30, "9999999999"])
def test_a_number_that_is_too_large_is_refused_for_being_too_large(name, value):
    with pytest.raises(InvalidRequest, match=rf"{name} must be an integer from \d to 2147483647"):
        parse_parameters({name: value})


def test_seed_minus_one_is_no_seed():
    assert parse_parameters({"seed": -1}).seed is None
    assert parse_parameters({"seed": "-1"}).seed is None


def test_inputs_among_the_parameters_are_told_where_they_belong():
    with pytest.raises(InvalidRequest, match="messages must be sent as input"):
        parse_parameters({"messages": [{"role": "user", "content": "hi"}]})


def test_requests_that_ask_for_an_order_are_refused():
    assert without_neutral({"priority": 0, "sequence_id": 0}, PROTOCOL_PARAMETERS) == {}
    with pytest.raises(InvalidRequest, match="priority = 3 is not supported"):
        without_neutral({"priority": 3}, PROTOCOL_PARAMETERS)


@pytest.mark.parametrize("value", [-1, "soon", 1.5, True])
def test_a_timeout_is_a_number_of_microseconds(value):
    assert parse_timeout_us(1_000_000) == parse_timeout_us("1000000") == 1_000_000
    with pytest.raises(InvalidRequest, match="timeout must be a whole number of microseconds"):
        parse_timeout_us(value)


def test_lists_may_come_as_json_text_where_no_list_can_come():
    given = with_json_read(
        {"stop": '["a", "b"]', "stop_token_ids": "[1, 2]", "speculation": "[off]"}
    )
    assert given == {"stop": ["a", "b"], "stop_token_ids": [1, 2], "speculation": "[off]"}
    assert with_json_read({"stop": "[not a list"}) == {"stop": "[not a list"}


def test_a_string_that_looks_like_a_list_is_a_string_where_a_list_could_come():
    assert parse_parameters({"stop": '["a", "b"]'}).stop == ('["a", "b"]',)


def test_null_means_the_default():
    assert parse_parameters({"seed": None, "stop": None}) == parse_parameters({})


@pytest.mark.parametrize("value", [0, -1, "-1"])
def test_top_k_can_be_switched_off_in_both_customary_ways(value):
    assert parse_parameters({"top_k": value}).top_k == 0


def test_a_bias_is_told_by_token_id_and_zero_asks_for_nothing():
    given = parse_parameters({"logit_bias": {"50": -100, "7": 1.5, "9": 0}})
    assert given.logit_bias == ((7, 1.5), (50, -100.0))
    assert with_json_read({"logit_bias": '{"7": 1}', "bad_words": '["a"]'}) == {
        "logit_bias": {"7": 1},
        "bad_words": ["a"],
    }


@pytest.mark.parametrize(
    "asks_for_nothing",
    [
        {"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1},
        {"logit_bias": {}, "bad_words": [], "allowed_token_ids": [], "typical_p": 1},
    ],
)
def test_what_asks_for_nothing_changes_nothing(asks_for_nothing):
    assert parse_parameters(asks_for_nothing) == ClientParameters()
