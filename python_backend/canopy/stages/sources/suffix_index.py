"""Which tokens followed each n-gram of a growing sequence, for n from 1 to `max_match`.

An entry is found by a hash chained backwards over the n-gram's tokens. Two n-grams that share a
hash would only make a worse proposal; with 61 bits they practically never do.
"""

from collections.abc import Iterator, Sequence


class SuffixIndex:
    """Grows by one token in O(max_match), whatever the length of the sequence."""

    def __init__(self, max_match: int) -> None:
        self.max_match = max_match
        self.num_tokens = 0
        # Most n-grams occur once: a lone follower stands without a list around it.
        self._followers: dict[int, int | list[int]] = {}
        self._tail: list[int] = []

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append tokens to the sequence."""
        for token in token_ids:
            for key in _suffix_keys(self._tail):
                self._note(key, token)
            self._tail = [*self._tail, token][-self.max_match :]
        self.num_tokens += len(token_ids)

    def suffix(self, path: Sequence[int]) -> list[int]:
        """The last tokens, `max_match` at most, of the sequence followed by `path`."""
        return [*self._tail, *path][-self.max_match :]

    def followers(self, suffix: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
        """(n, tokens that followed the last n tokens of `suffix`, oldest first), longest n first.

        The first n is the longest match; every shorter one follows, down to 1.
        """
        keys = _suffix_keys(suffix)
        for length in range(len(keys), 0, -1):
            found = self._followers.get(keys[length - 1])
            if found is not None:
                yield length, found if isinstance(found, list) else [found]

    def _note(self, key: int, token: int) -> None:
        known = self._followers.get(key)
        if known is None:
            self._followers[key] = token
        elif isinstance(known, list):
            known.append(token)
        else:
            self._followers[key] = [known, token]


def _suffix_keys(suffix: Sequence[int]) -> list[int]:
    """Keys of the last 1, 2, ... tokens."""
    keys, key = [], 0
    for token in reversed(suffix):
        key = hash((key, token))
        keys.append(key)
    return keys
