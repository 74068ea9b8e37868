"""The first stop token or the cap ends a round, in token order."""

import pytest

from canopy.protocol.messages import Finish
from canopy.sampling import SamplingParams
from canopy.text.truncation import truncate

EOS = 9


@pytest.mark.parametrize(
    ("tokens", "num_emitted", "kept", "finish"),
    [
        ([1, 2], 0, [1, 2], Finish.NONE),
        ([1, EOS, 2, EOS], 0, [1, EOS], Finish.STOP),
        ([EOS], 3, [EOS], Finish.STOP),
        ([1, 2, 3, EOS], 3, [1, 2], Finish.LENGTH),
        ([1, EOS], 3, [1, EOS], Finish.STOP),
        ([1, 2], 4, [1], Finish.LENGTH),
    ],
)
def test_a_round_is_cut_at_its_first_stop_or_at_the_cap(tokens, num_emitted, kept, finish):
    params = SamplingParams(max_tokens=5, stop_token_ids=(8, EOS))
    assert truncate(tokens, num_emitted, params) == (kept, finish)
