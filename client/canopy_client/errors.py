"""What can go wrong, by the code in front of the server's error text.

    ClientError
    ├── InvalidRequest             change the request                  [invalid_argument]
    │   ├── ContextLengthExceeded  the prompt is longer than the context
    │   │                                                    [context_length_exceeded]
    │   └── UnknownModel           the server has no model of that name
    ├── Unavailable                full, draining or unreachable       [unavailable]
    ├── Cancelled                  by this client or by a deadline     [cancelled]
    ├── TimedOut                   no end within the client's time
    └── ServerFailure              anything else

The server drops the status code of a streamed error, so the code is read from the text.
"""

import re


class ClientError(Exception):
    """Base of all errors that this package raises on purpose."""


class InvalidRequest(ClientError):
    """The request can never succeed as it is."""


class ContextLengthExceeded(InvalidRequest):
    """The prompt has more tokens than the context holds."""


class UnknownModel(InvalidRequest):
    """The server does not have the model, or has not loaded it."""


class Unavailable(ClientError):
    """The server is not there, full or draining; the same request may succeed later."""


class Cancelled(ClientError):
    """The request was cancelled, or the server's deadline for it passed."""


class TimedOut(ClientError):
    """The answer did not end within the client's timeout."""


class ServerFailure(ClientError):
    """The server failed, or answered what it should not."""


_BY_CODE: dict[str, type[ClientError]] = {
    "invalid_argument": InvalidRequest,
    "context_length_exceeded": ContextLengthExceeded,
    "unavailable": Unavailable,
    "cancelled": Cancelled,
}


def error_from_text(text: str) -> ClientError:
    """The error that a text such as `[invalid_argument] top_p must be ...` stands for."""
    match = re.match(r"\[(\w+)\] ", text)
    if match is not None:
        kind = _BY_CODE.get(match[1], ServerFailure)
        return kind(text[match.end() :])
    if re.search(r"[Uu]nknown model|no available versions", text):
        return UnknownModel(text)
    return ServerFailure(text)
