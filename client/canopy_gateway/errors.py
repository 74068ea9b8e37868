"""Refusals and failures in the shape that OpenAI's clients read."""

from typing import Any

from canopy_client import (
    Cancelled,
    ClientError,
    ContextLengthExceeded,
    InvalidRequest,
    TimedOut,
    Unavailable,
    UnknownModel,
)
from canopy_gateway.json_text import JsonResponse


class APIError(Exception):
    """A request that is answered with an error.

    `code` is for programs, `param` names the field at fault.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = headers

    @property
    def body(self) -> dict[str, Any]:
        """The JSON to answer with."""
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(
            self.status, "server_error" if self.status >= 500 else "invalid_request_error"
        )
        fields = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": fields}

    def response(self) -> JsonResponse:
        """The whole answer."""
        return JsonResponse(self.body, self.status, self.headers)


def api_error_of(error: ClientError, retry_after_s: int) -> APIError:
    """What the client hears of an error of the server behind."""
    text = str(error)
    if isinstance(error, UnknownModel):
        return APIError(503, f"the server behind does not have the model: {text}", "no_model")
    if isinstance(error, ContextLengthExceeded):
        return APIError(400, text, "context_length_exceeded")
    if isinstance(error, InvalidRequest):
        return APIError(400, text, "invalid_argument")
    if isinstance(error, Unavailable):
        headers = {"Retry-After": str(retry_after_s)}
        return APIError(503, text, "unavailable", headers=headers)
    if isinstance(error, TimedOut):
        return APIError(504, text, "timeout")
    if isinstance(error, Cancelled):
        return APIError(504, f"the answer was given up: {text}", "cancelled")
    return APIError(500, text, "internal")
