"""JSON as it leaves the gateway."""

import json
from typing import Any

from starlette.responses import JSONResponse

# Line ends to Unicode but not to JSON: a reader that splits an event by lines would cut it there.
_LINE_ENDS = {end: f"\\u{ord(end):04x}" for end in ("\x85", "\u2028", "\u2029")}


def encode(value: Any) -> bytes:
    """UTF-8 on one line; half a surrogate pair stays the escape that it came as."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    if not text.isascii():
        for end, escape in _LINE_ENDS.items():
            text = text.replace(end, escape)
    return text.encode("utf-8", "backslashreplace")


class JsonResponse(JSONResponse):
    """A whole answer."""

    def render(self, content: Any) -> bytes:
        """The body."""
        return encode(content)
