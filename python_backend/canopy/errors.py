"""Errors a user can meet, each with the machine-readable code that its text carries.

    CanopyError
    ├── InvalidRequest   the request can never succeed as it is: change it        invalid_argument
    │   └── ContextLengthExceeded  its prompt is longer than the context   context_length_exceeded
    ├── Unavailable      the server cannot take it now: retry later               unavailable
    ├── Cancelled        the client gave up or the deadline passed                cancelled
    ├── StageFailed      a pipeline stage died or answered with an error          internal
    │   └── ServerStopping  because the server ends it                            internal
    ├── InvalidDeployment  the deployment file or a model folder is wrong         invalid_deployment
    └── CannotStart      the server cannot start, or stopped while it did         cannot_start

The Triton server drops the status code of a decoupled response, so `str(error)` starts with
`[code] `, and clients read it back from there.
"""


class CanopyError(Exception):
    """Base of all errors that carry a code; `str()` gives `[code] message`."""

    code = "internal"

    def __str__(self) -> str:
        return f"[{self.code}] {super().__str__()}"


class InvalidRequest(CanopyError):
    """The request is malformed or out of range; sending it again will not help."""

    code = "invalid_argument"


class ContextLengthExceeded(InvalidRequest):
    """The prompt has more tokens than the context holds."""

    code = "context_length_exceeded"


class Unavailable(CanopyError):
    """The server is full, draining or not ready; the same request may succeed later."""

    code = "unavailable"


class Cancelled(CanopyError):
    """The client cancelled the request or its deadline passed."""

    code = "cancelled"


class StageFailed(CanopyError):
    """A stage of the pipeline could not answer; `stage` names it."""

    def __init__(self, stage: str, message: str) -> None:
        super().__init__(f"{stage}: {message}")
        self.stage = stage


class ServerStopping(StageFailed):
    """The server ends its stages; what runs ends as Unavailable."""


class InvalidDeployment(CanopyError):
    """The deployment file, or a model folder that it names, cannot be used."""

    code = "invalid_deployment"


class CannotStart(CanopyError):
    """The server cannot start, or stopped while it did; the text says what to do."""

    code = "cannot_start"
