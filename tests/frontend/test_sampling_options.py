import pytest

from canopy.errors import InvalidRequest
from canopy.frontend.sampling_options import parse_parameters


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
        ("seed", -1),
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
    with pytest.raises(InvalidRequest, match=r"unknown parameter best_of.*known are temperature"):
        parse_parameters({"best_of": 2})


def test_lists_may_come_as_json_text_because_request_parameters_carry_no_lists():
    given = parse_parameters({"stop": '["a", "b"]', "stop_token_ids": "[1, 2]"})
    assert (given.stop, given.stop_token_ids) == (("a", "b"), (1, 2))
    assert parse_parameters({"stop": "[not a list"}).stop == ("[not a list",)


def test_null_means_the_default():
    assert parse_parameters({"seed": None, "stop": None}) == parse_parameters({})


@pytest.mark.parametrize("value", [0, -1, "-1"])
def test_top_k_can_be_switched_off_in_both_customary_ways(value):
    assert parse_parameters({"top_k": value}).top_k == 0
