"""Makes the processors of the sequences of one stage."""

from collections.abc import Sequence

from canopy.errors import InvalidRequest
from canopy.grammar.compiler import GrammarCompiler
from canopy.grammar.matcher import GrammarMatcher
from canopy.logits_processors.processor import LogitsProcessor
from canopy.sampling import SamplingParams


class LogitsProcessors:
    """For one target."""

    def __init__(self, vocab_size: int, grammars: GrammarCompiler | None = None) -> None:
        self._vocab_size = vocab_size
        self._grammars = grammars

    def start(
        self, params: SamplingParams, token_ids: Sequence[int], num_emitted: int
    ) -> LogitsProcessor | None:
        """For a sequence whose last `num_emitted` tokens were emitted; None if nothing is asked.

        Raises ValueError for an option that cannot be used with this target.
        """
        if not params.changes_logits:
            return None
        num_prompt = len(token_ids) - num_emitted
        matcher = self._matcher(params.grammar) if params.grammar else None
        processor = LogitsProcessor(params, token_ids[:num_prompt], self._vocab_size, matcher)
        processor.commit(token_ids[num_prompt:])
        return processor

    def _matcher(self, grammar: str) -> GrammarMatcher:
        if self._grammars is None:
            raise ValueError("structured output cannot use the tokenizer of this target")
        try:
            return self._grammars.matcher(grammar)
        except InvalidRequest as error:
            raise ValueError(str(error)) from error
