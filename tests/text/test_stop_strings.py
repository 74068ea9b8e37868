import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy.text.stop_strings import StopStrings


def run(text: str, stops: tuple[str, ...], size: int = 1) -> tuple[str, bool]:
    """Push `text` in pieces of `size`; returns all that was shown and whether it stopped."""
    matcher, shown = StopStrings(stops), ""
    for start in range(0, len(text), size):
        piece, stopped = matcher.push(text[start : start + size])
        shown += piece
        if stopped:
            return shown, True
    return shown + matcher.flush(), False


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_stop_string_across_pieces_ends_the_text_before_it(size):
    assert run("one\n\ntwo", ("\n\n",), size) == ("one", True)


@pytest.mark.parametrize("size", [1, 2, 100])
def test_the_earliest_stop_string_wins(size):
    assert run("ab END cd STOP", ("STOP", "END"), size) == ("ab ", True)


def test_a_beginning_that_comes_to_nothing_is_shown():
    assert run("a ST", ("STOP",)) == ("a ST", False)
    assert run("STSTOx", ("STOP",)) == ("STSTOx", False)


def test_text_is_not_held_back_longer_than_needed():
    assert StopStrings(("STOP",)).push("hello ST") == ("hello ", False)


@given(st.text(alphabet="abc"), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
def test_pieces_of_one_agree_with_a_search_in_the_whole_text(text, stops):
    found = [text.find(stop) + len(stop) for stop in stops if stop in text]
    shown, stopped = run(text, tuple(stops))
    assert stopped == bool(found)
    if stopped:
        # Token by token, the stop string that is complete first ends the text.
        end = min(found)
        begins = [end - len(s) for s in stops if text[:end].endswith(s)]
        assert shown == text[: min(begins)]
    else:
        assert shown == text


@given(
    st.text(alphabet="abc"),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    st.integers(0, 8),
)
def test_a_stop_string_counts_where_it_is_complete_once_stopping_is_allowed(text, stops, first):
    matcher, shown, stopped = StopStrings(tuple(stops)), "", False
    for index, character in enumerate(text):
        piece, stopped = matcher.push(character, may_stop=index >= first)
        shown += piece
        if stopped:
            break
    ends = [n for n in range(first + 1, len(text) + 1) if text[:n].endswith(tuple(stops))]
    assert stopped == bool(ends)
    if stopped:
        begins = [ends[0] - len(s) for s in stops if text[: ends[0]].endswith(s)]
        assert shown == text[: min(begins)]
    else:
        assert shown + matcher.flush() == text
