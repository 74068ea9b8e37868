"""How many prompt tokens a step may compute while others decode.

A step that computes prompts lasts longer, and every stream waits for it. So as long as anything
decodes, prompts get no more rows than keep the step within a multiple of what it would take without
them; where nothing decodes, they get all.
"""

from collections.abc import Sequence

from canopy.costs.cost_model import DEFAULT_COST_MODEL, CostModel
from canopy.engine.request import EngineSequence

LEAST_ROWS = 16  # fewer would leave a prompt waiting for long, and gain little


class PromptBudget:
    """For one target on one machine."""

    def __init__(
        self,
        max_rows: int,
        max_slowdown: float = 0.0,
        cost_model: CostModel = DEFAULT_COST_MODEL,
    ) -> None:
        """max_rows: of any step. max_slowdown: of a step by its prompts; 0: without bound."""
        self._max_rows = max_rows
        self._max_slowdown = max_slowdown
        self._cost_model = cost_model
        self._known: dict[int, int] = {}  # by sequences that decode

    def rows(self, running: Sequence[EngineSequence]) -> int:
        """Prompt tokens of the next step, over all sequences."""
        num_decoding = sum(sequence.is_prefilled for sequence in running)
        if num_decoding in (0, len(running)) or self._max_slowdown == 0.0:
            return self._max_rows
        if num_decoding not in self._known:
            self._known[num_decoding] = self._most(num_decoding)
        return self._known[num_decoding]

    def _most(self, num_decoding: int) -> int:
        """By bisection: times do not fall with rows."""
        predict = self._cost_model.predict_one_ms
        limit_ms = self._max_slowdown * predict(num_decoding, num_decoding)
        least, most = min(LEAST_ROWS, self._max_rows), self._max_rows
        while least < most:
            middle = (least + most + 1) // 2
            if predict(num_decoding + middle, num_decoding + 1) <= limit_ms:
                least = middle
            else:
                most = middle - 1
        return least
