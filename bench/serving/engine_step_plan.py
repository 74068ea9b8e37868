"""How much the benchmark `engine_step` measures."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from bench.harness.prompts import Prompt


@dataclass(frozen=True)
class Plan:
    """The same for direct and for served steps."""

    num_sequences: list[int]  # served at once, one measurement each
    num_repeats: int  # after a first one that warms the caches
    max_tokens: int

    @staticmethod
    def default(is_quick: bool) -> "Plan":
        """Enough tokens for several rounds of the deepest tree."""
        return Plan([1, 8], 2, 24) if is_quick else Plan([1, 8, 32], 5, 48)


def prompt_texts(prompts: Sequence[Prompt], count: int, start: int = 0) -> list[str]:
    """`count` prompts from number `start` on; after the last one comes the first."""
    return [prompt.text for prompt in islice(cycle(prompts), start, start + count)]
