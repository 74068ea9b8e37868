"""What is copied is what a slow search finds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_kernels.ngram.prompt_lookup import COPY_WINDOW, LONGEST_COPIED_MATCH, prompt_lookup


def searched(text, num):
    """The definition, by trying every length and place."""
    for length in range(LONGEST_COPIED_MATCH, 0, -1):
        for end in range(len(text) - 1, length - 1, -1):
            if text[end - length : end] == text[-length:]:
                following = list(text[end:])
                while len(following) < num:
                    following += text[end:]
                return length, following[:num]
    return 0, [0] * num


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 6))
def test_the_latest_of_the_longest_matches_goes_on(text, num):
    length, following = prompt_lookup(np.array(text), num)
    assert (length, following.tolist()) == searched(text, num)


@pytest.mark.parametrize(("gap", "expected"), [(COPY_WINDOW - 3, 2), (COPY_WINDOW, 0)])
def test_only_the_last_tokens_are_searched(gap, expected):
    text = [1, 2, 9, *range(10, 7 + gap), 1, 2]
    assert prompt_lookup(np.array(text), 2)[0] == expected
