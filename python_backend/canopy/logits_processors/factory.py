"""Makes the processors of the sequences of one stage."""

from collections.abc import Sequence

from canopy.logits_processors.processor import LogitsProcessor
from canopy.sampling import SamplingParams


class LogitsProcessors:
    """For one target."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def start(
        self, params: SamplingParams, token_ids: Sequence[int], num_emitted: int
    ) -> LogitsProcessor | None:
        """For a sequence whose last `num_emitted` tokens were emitted; None if nothing is asked.

        Raises ValueError for an option that names a token outside the vocabulary.
        """
        if not params.changes_logits:
            return None
        num_prompt = len(token_ids) - num_emitted
        processor = LogitsProcessor(params, token_ids[:num_prompt], self._vocab_size)
        processor.commit(token_ids[num_prompt:])
        return processor
