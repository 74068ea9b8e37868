"""One tool call as a JSON object that comes in pieces: its name, and its arguments as they grow."""

import json

_ARGUMENTS = ("arguments", "parameters")


class CallScanner:
    """Reads {"name": text, "arguments": value}; keys may come in any order."""

    def __init__(self) -> None:
        self.raw = ""  # all that was read
        self.name: str | None = None
        self.is_complete = False
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self._key = ""  # whose value is read; "" between two values
        self._span = ""  # of the key or the value that is read
        self._told = 0  # characters of the arguments that were given out
        self._arguments = ""

    @property
    def is_call(self) -> bool:
        """Whether a complete object names a tool."""
        return self.name is not None

    def feed(self, text: str) -> int:
        """Read up to the end of the object; how many characters that took."""
        for count, character in enumerate(text, 1):
            self._take(character)
            if self.is_complete:
                return count
        return len(text)

    def new_arguments(self) -> str:
        """What came of the arguments since the last call; nothing before the name is known.

        Whitespace at the end waits for what follows it. What is no object, such as a text which
        holds JSON, is given out when it is whole. A call without arguments, or with null, has {}.
        """
        if self.name is None:
            return ""
        if self.is_complete and not self._arguments:
            self._arguments = "{}"
        known = self._arguments or (self._span if self._key in _ARGUMENTS else "")
        known = known.lstrip() if not self._arguments else known
        if not known.startswith("{") and not self._arguments:
            return ""
        new = known.rstrip()[self._told :]
        self._told += len(new)
        return new

    def _take(self, character: str) -> None:
        self.raw += character
        if self._in_string:
            self._span += character
            self._in_string = self._is_escaped or character != '"'
            self._is_escaped = character == "\\" and not self._is_escaped
        elif character == ":" and self._depth == 1 and not self._key:
            self._key, self._span = _loaded(self._span), ""
        elif character in ",}" and self._depth == 1:
            self._end_value()
            self.is_complete = character == "}"
            self._depth -= self.is_complete
        else:
            self._depth += (character in "{[") - (character in "}]")
            self._in_string = character == '"'
            if self._depth > 1 or character not in "{":
                self._span += character

    def _end_value(self) -> None:
        if self._key == "name":
            self.name = _loaded(self._span)
        if self._key in _ARGUMENTS:
            value = self._span.strip()
            self._arguments = _loaded(value) if value.startswith('"') else value
            self._arguments = "" if self._arguments == "null" else self._arguments
        self._key, self._span = "", ""


def _loaded(text: str) -> str:
    """The text that a JSON string holds; "" where it is none."""
    try:
        value = json.loads(text)
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""
