"""The way out to one client of the entry model."""

import time
from collections.abc import Callable
from typing import Any

import triton_python_backend_utils as pb_utils

from canopy.errors import Cancelled, CanopyError, InvalidRequest, Unavailable
from canopy.frontend.response_thread import ResponseThread

_LOOK_INTERVAL_S = 0.02  # between two looks at a request's cancellation

_TRITON_CODES: dict[type[CanopyError], Callable[[], Any]] = {
    InvalidRequest: lambda: pb_utils.TritonError.INVALID_ARG,
    Unavailable: lambda: pb_utils.TritonError.UNAVAILABLE,
    Cancelled: lambda: pb_utils.TritonError.CANCELLED,
}


class Reply:
    """Responses and errors of one request; they go by an outbox, in order.

    The last response carries the FINAL flag itself: a cancel between the two can abort the server.
    A response that cannot be made ends the request with an error instead of with silence.
    """

    def __init__(self, sender: Any, response_thread: ResponseThread) -> None:
        self._sender = sender
        self._response_thread = response_thread
        self._looked_s = 0.0
        self._is_cancelled = False
        self._has_ended = False

    def respond(self, tensors: Callable[[], list[Any]], is_last: bool) -> None:
        """One response; its tensors are made on the outbox's thread."""
        self._response_thread.post(lambda: self._respond(tensors, is_last))

    def _respond(self, tensors: Callable[[], list[Any]], is_last: bool) -> None:
        try:
            response = pb_utils.InferenceResponse(output_tensors=tensors())
        except Exception as error:
            self._fail(CanopyError(f"the response could not be made: {error!r}"))
            return
        self._send(response, is_last)

    def fail(self, error: CanopyError) -> None:
        """The error, and the end."""
        self._response_thread.post(lambda: self._fail(error))

    def is_cancelled(self) -> bool:
        """By a call of `cancel`, or on the wire when that was last looked at."""
        now_s = time.monotonic()
        if not self._is_cancelled and now_s - self._looked_s >= _LOOK_INTERVAL_S:
            self._looked_s = now_s
            self._response_thread.post(self._poll_cancellation)
        return self._is_cancelled

    def cancel(self) -> None:
        """As if the client had left."""
        self._is_cancelled = True

    def _poll_cancellation(self) -> None:
        self._is_cancelled |= self._sender.is_cancelled()

    def _fail(self, error: CanopyError) -> None:
        codes = (code() for kind, code in _TRITON_CODES.items() if isinstance(error, kind))
        text = str(error).encode("utf-8", "backslashreplace").decode("utf-8")
        failure = pb_utils.TritonError(text, next(codes, pb_utils.TritonError.INTERNAL))
        self._send(pb_utils.InferenceResponse(error=failure), is_last=True)

    def _send(self, response: Any, is_last: bool) -> None:
        if self._has_ended:
            return
        self._has_ended = is_last
        if is_last:
            self._sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        else:
            self._sender.send(response)
