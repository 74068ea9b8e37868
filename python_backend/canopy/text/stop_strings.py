"""Stop strings over streamed text: the earliest match ends it, and nothing of it is shown."""


class StopStrings:
    """Holds back text that may turn out to be the beginning of a stop string."""

    def __init__(self, stop_strings: tuple[str, ...]) -> None:
        self._stop_strings = stop_strings
        self._held = ""

    def push(self, text: str, may_stop: bool = True) -> tuple[str, bool]:
        """Returns (text that is safe to show, whether a stop string was met).

        A stop string counts where it is complete within `text` and `may_stop`; it may begin in
        what was held back. After a match the held text is gone: it began with the stop string.
        """
        num_held = len(self._held)
        self._held += text
        starts = [self._find(stop, num_held) for stop in self._stop_strings] if may_stop else []
        found = [start for start in starts if start >= 0]
        if found:
            shown, self._held = self._held[: min(found)], ""
            return shown, True
        split = len(self._held) - self._longest_open_prefix()
        shown, self._held = self._held[:split], self._held[split:]
        return shown, False

    def _find(self, stop: str, num_held: int) -> int:
        """Where the first `stop` begins that ends beyond `num_held` characters; -1: nowhere."""
        return self._held.find(stop, max(num_held - len(stop) + 1, 0))

    def flush(self) -> str:
        """What was held back, for an end without a match."""
        shown, self._held = self._held, ""
        return shown

    def _longest_open_prefix(self) -> int:
        """Length of the longest end of the held text that begins some stop string."""
        longest = max((len(stop) for stop in self._stop_strings), default=0)
        for length in range(min(longest - 1, len(self._held)), 0, -1):
            ending = self._held[-length:]
            if any(stop.startswith(ending) for stop in self._stop_strings):
                return length
        return 0
