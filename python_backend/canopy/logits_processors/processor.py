"""The options of one sequence that change logits by the tokens before.

    logit_bias -> repetition, frequency and presence penalty -> bad_words, min_tokens ->
    allowed_token_ids, structured output

Order and meaning are those of `transformers`; frequency and presence penalty, which it lacks, are
OpenAI's and count emitted tokens. A path is the tokens from below the anchor down to a node, so
that a node's history is what was committed and its own path.
"""

from collections.abc import Sequence

import numpy as np

from canopy.grammar.matcher import GrammarMatcher
from canopy.logits_processors.edits import BITS, LogitEdits
from canopy.logits_processors.token_counts import TokenCounts
from canopy.sampling import SamplingParams

Path = Sequence[int]


class LogitsProcessor:
    """Options and history of one sequence."""

    def __init__(
        self,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        vocab_size: int,
        matcher: GrammarMatcher | None = None,
    ) -> None:
        """Raises ValueError for an option with a token outside the vocabulary."""
        self._params = params
        self._num_words = -(-vocab_size // BITS)
        self._matcher = matcher
        self._num_emitted = 0
        self._counts = TokenCounts(prompt_token_ids)
        self._longest = max((len(word) for word in params.bad_words_ids), default=1)
        self._tail = list(prompt_token_ids)[-self._longest :]
        bias = sorted(params.logit_bias)
        self._bias_token_ids = np.array([token_id for token_id, _ in bias], np.int64)
        self._biases = np.array([value for _, value in bias], np.float32)
        self._stops = np.array(params.stop_token_ids, np.int64)
        self._stop_words = words_of(self._stops, self._num_words)
        allowed = np.array(params.allowed_token_ids, np.int64)
        self._allowed = words_of(allowed, self._num_words) if len(allowed) else None
        words = [token_id for word in params.bad_words_ids for token_id in word]
        largest = max([*params.allowed_token_ids, *self._bias_token_ids.tolist(), *words, 0])
        if largest >= vocab_size:
            raise ValueError(f"token {largest} lies outside the vocabulary of {vocab_size}")

    def commit(self, token_ids: Sequence[int]) -> None:
        """Emitted tokens."""
        self._num_emitted += len(token_ids)
        self._counts.commit(token_ids)
        self._tail = [*self._tail, *token_ids][-self._longest :]
        if self._matcher:
            self._matcher.commit(token_ids)

    def forced(self, path: Path) -> list[int]:
        """Tokens that structured output spells out below a path; often none."""
        return self._matcher.forced(path) if self._matcher else []

    def edits(self, paths: Sequence[Path]) -> LogitEdits:
        """What changes in the logits after each path: row i belongs to paths[i]."""
        rows = np.arange(len(paths))
        num_biased = len(self._bias_token_ids)
        mask_rows, masks = self._masks(paths)
        return LogitEdits(
            rows.repeat(num_biased),
            np.tile(self._bias_token_ids, len(paths)),
            np.tile(self._biases, len(paths)),
            *self._penalties(paths),
            *self._bans(paths, mask_rows, masks),
            mask_rows,
            masks.ravel(),
        )

    def _penalties(
        self, paths: Sequence[Path]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Rows, token ids, repetitions and deductions."""
        params = self._params
        if not params.has_penalties:
            none = LogitEdits.none()
            return none.penalty_rows, none.penalty_token_ids, none.repetitions, none.deductions
        found = [self._counts.after(path) for path in paths]
        lengths = [len(token_ids) for token_ids, _ in found]
        counts = np.concatenate([count for _, count in found])
        deductions = params.frequency_penalty * counts + params.presence_penalty * (counts > 0)
        return (
            np.arange(len(paths)).repeat(lengths),
            np.concatenate([token_ids for token_ids, _ in found]),
            np.full(len(counts), params.repetition_penalty, np.float32),
            deductions.astype(np.float32),
        )

    def _bans(
        self, paths: Sequence[Path], mask_rows: np.ndarray, masks: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rows and token ids. A text that can only end may do so before `min_tokens`."""
        only_ends = set(mask_rows[~(masks & ~self._stop_words).any(axis=1)].tolist())
        banned = [self._bad_words(path) for path in paths]
        for row, path in enumerate(paths):
            is_early = self._num_emitted + len(path) < self._params.min_tokens
            if is_early and row not in only_ends:
                banned[row] = np.union1d(banned[row], self._stops)
        lengths = [len(token_ids) for token_ids in banned]
        rows = np.arange(len(paths)).repeat(lengths)
        return rows, np.concatenate([np.zeros(0, np.int64), *banned])

    def _bad_words(self, path: Path) -> np.ndarray:
        """int64 [n] the tokens that would complete one."""
        if not self._params.bad_words_ids:
            return self._stops[:0]
        before = [*self._tail, *path]
        ends = {
            word[-1]
            for word in self._params.bad_words_ids
            if len(word) == 1 or before[-len(word) + 1 :] == list(word[:-1])
        }
        return np.array(sorted(ends), np.int64)

    def _masks(self, paths: Sequence[Path]) -> tuple[np.ndarray, np.ndarray]:
        """Rows int64 [K] and words uint32 [K, W]; none for a path that is not allowed itself."""
        rows = np.arange(len(paths))
        if self._matcher is not None:
            masks = self._matcher.masks(paths)
            rows = np.flatnonzero(masks.any(axis=1))
            masks = masks[rows] if self._allowed is None else masks[rows] & self._allowed
            return rows, masks
        if self._allowed is not None:
            return rows, np.tile(self._allowed, (len(paths), 1))
        return rows[:0], np.zeros((0, self._num_words), np.uint32)


def words_of(token_ids: np.ndarray, num_words: int) -> np.ndarray:
    """uint32 [num_words] with the bits of these tokens, as in LogitEdits."""
    words = np.zeros(num_words, np.uint32)
    np.bitwise_or.at(words, token_ids // BITS, np.uint32(1) << (token_ids % BITS).astype(np.uint32))
    return words
