"""Compiles grammars for one vocabulary, and keeps the last ones that were asked for."""

import threading
from collections import OrderedDict
from collections.abc import Sequence

import llguidance

from canopy.errors import InvalidDeployment, InvalidRequest
from canopy.grammar.matcher import GrammarMatcher

# Work of building the lexer, of one mask, and sizes: what exceeds them is refused, not waited for.
LIMITS = llguidance.LLParserLimits(
    initial_lexer_fuel=5_000_000,
    step_lexer_fuel=1_000_000,
    step_max_items=50_000,
    max_lexer_states=50_000,
    max_grammar_size=200_000,
    verbose_errors=False,
)
MAX_CACHED = 64
_MAX_REASON = 300


class GrammarCompiler:
    """Thread-safe. Compilation releases the GIL, so that other threads go on."""

    def __init__(self, vocabulary: llguidance.LLTokenizer, max_cached: int = MAX_CACHED) -> None:
        self._vocabulary = vocabulary
        self._max_cached = max_cached
        self._compiled: OrderedDict[str, llguidance.LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def matcher(self, grammar: str) -> GrammarMatcher:
        """A matcher before the first token.

        grammar: of `structured_output.grammar_of`. Raises InvalidRequest that says what the
        library cannot read or enforce, or that a limit was reached.
        """
        with self._lock:
            compiled = self._compiled.get(grammar)
            if compiled is not None:
                self._compiled.move_to_end(grammar)
        if compiled is None:
            compiled = self._compile(grammar)
        return GrammarMatcher(compiled.deep_copy(), self._vocabulary.vocab_size)

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to a text."""
        return bytes(self._vocabulary.decode_bytes([token_id]))

    def _compile(self, grammar: str) -> llguidance.LLMatcher:
        compiled = llguidance.LLMatcher(self._vocabulary, grammar, log_level=0, limits=LIMITS)
        if reason := compiled.get_error():
            shown = reason.strip()[:_MAX_REASON]
            raise InvalidRequest(f"structured_outputs cannot be used: {shown}")
        with self._lock:
            self._compiled[grammar] = compiled
            while len(self._compiled) > self._max_cached:
                self._compiled.popitem(last=False)
        return compiled


def make_vocabulary(
    tokenizer: str, vocab_size: int, eos_token_ids: Sequence[int]
) -> llguidance.LLTokenizer:
    """The bytes of every token id.

    tokenizer: content of a tokenizer.json. vocab_size: width of the logits. eos_token_ids: at
    least one; a text that matches may end with any of them. Raises InvalidDeployment for a
    tokenizer whose tokens are not bytes.
    """
    if not eos_token_ids:
        raise InvalidDeployment("structured output needs a model with an end-of-sequence token")
    try:
        return llguidance.LLTokenizer(tokenizer, n_vocab=vocab_size, eos_token=list(eos_token_ids))
    except Exception as error:  # the library raises nothing narrower
        raise InvalidDeployment(f"structured output cannot use this tokenizer: {error}") from error
