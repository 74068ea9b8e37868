"""Where a round's tokens end: the first stop token or the cap, whichever comes first."""

from collections.abc import Sequence

from canopy.protocol.messages import Finish
from canopy.sampling import SamplingParams


def truncate(
    token_ids: Sequence[int], num_emitted: int, params: SamplingParams
) -> tuple[list[int], Finish]:
    """The tokens of a round that are emitted, and what ended them.

    num_emitted: tokens emitted before the round. A stop token is emitted itself and ends the
    sequence; at the cap it counts as a stop. None is sampled before `min_tokens`, unless nothing
    else is allowed.
    """
    for index, token_id in enumerate(token_ids):
        if token_id in params.stop_token_ids:
            return list(token_ids[: index + 1]), Finish.STOP
        if num_emitted + index + 1 >= params.max_tokens:
            return list(token_ids[: index + 1]), Finish.LENGTH
    return list(token_ids), Finish.NONE
