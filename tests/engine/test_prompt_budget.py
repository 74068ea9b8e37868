"""Prompts lengthen a step within bounds while others decode, and are computed whole otherwise."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy.costs.cost_model import CostModel
from canopy.engine.prompt_budget import LEAST_ROWS, PromptBudget

MAX_ROWS = 512
MODEL = CostModel((1, 8), (1, 16, 64, 512), ((4.0, 13.0, 45.0, 330.0), (5.0, 14.0, 46.0, 331.0)))


def running(num_decoding: int, num_prompts: int) -> list[SimpleNamespace]:
    states = [True] * num_decoding + [False] * num_prompts
    return [SimpleNamespace(is_prefilled=state) for state in states]


@given(num_decoding=st.integers(1, 40), slowdown=st.floats(1.1, 50.0))
def test_the_step_stays_within_its_bound_and_no_row_more_would(num_decoding, slowdown):
    budget = PromptBudget(MAX_ROWS, slowdown, MODEL)
    rows = budget.rows(running(num_decoding, 2))
    assert LEAST_ROWS <= rows <= MAX_ROWS
    limit_ms = slowdown * MODEL.predict_one_ms(num_decoding, num_decoding)
    if rows > LEAST_ROWS:
        assert MODEL.predict_one_ms(num_decoding + rows, num_decoding + 1) <= limit_ms
    if rows < MAX_ROWS:
        assert MODEL.predict_one_ms(num_decoding + rows + 1, num_decoding + 1) > limit_ms


def test_where_nothing_decodes_or_nothing_is_read_there_is_no_bound():
    budget = PromptBudget(MAX_ROWS, 3.0, MODEL)
    assert budget.rows(running(0, 3)) == budget.rows(running(4, 0)) == MAX_ROWS
    assert budget.rows(running(1, 1)) < MAX_ROWS
    assert PromptBudget(MAX_ROWS, 0.0, MODEL).rows(running(1, 1)) == MAX_ROWS


@pytest.mark.parametrize("max_rows", [1, 7])
def test_a_small_step_stays_small(max_rows):
    assert PromptBudget(max_rows, 1.5, MODEL).rows(running(9, 1)) == max_rows
