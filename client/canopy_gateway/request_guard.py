"""Before anything is parsed: who asks, in which format, how much, and whether they are still there.

A client that goes away cancels its request, at any moment: the task that answers it is cancelled,
and what it holds is given back.
"""

import asyncio
import hmac
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from canopy_gateway.errors import APIError
from canopy_gateway.settings import GatewaySettings

_CLOSE = {"Connection": "close"}  # what was not read must not be taken for the next request


class RequestGuard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, settings: GatewaySettings) -> None:
        self._app = app
        self._settings = settings
        self._keys = [key.encode() for key in settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        try:
            headers = Headers(scope=scope)
            scope["path"] = scope["path"].rstrip("/") or "/"  # instead of a redirect
            has_body = scope["method"] not in ("GET", "HEAD", "OPTIONS")
            is_read_of_api = scope["path"].startswith("/v1/") and scope["method"] != "OPTIONS"
            needs_key = has_body or is_read_of_api
            scope.setdefault("state", {})["api_key"] = self._key_of(headers) if needs_key else ""
            body = b""
            if has_body:
                _check_media_type(headers)
                body = await self._read_body(headers, receive)
        except APIError as refusal:
            return await refusal.response()(scope, receive, send)
        except _Gone:
            return None
        await _run_while_connected(self._app, scope, body, receive, send)

    def _key_of(self, headers: Headers) -> str:
        """The key that the client sent, "" where none is asked for. Raises APIError (401)."""
        if not self._keys:
            return ""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        key = given.strip()
        # Every key is compared, in constant time: timing tells nothing about any of them.
        matches = [hmac.compare_digest(key.encode("latin-1"), known) for known in self._keys]
        if scheme.lower() != "bearer" or not any(matches):
            raise APIError(
                401, "send a valid API key as `Authorization: Bearer KEY`", "invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"} | _CLOSE,
            )  # fmt: skip
        return key

    async def _read_body(self, headers: Headers, receive: Receive) -> bytes:
        announced = headers.get("content-length", "0")
        if announced.isdecimal():
            self._check_size(int(announced))
        try:
            async with asyncio.timeout(self._settings.body_timeout_s):
                return await self._read_all(receive)
        except TimeoutError:
            raise APIError(408, "the request did not arrive in time", headers=_CLOSE) from None

    async def _read_all(self, receive: Receive) -> bytes:
        parts: list[bytes] = []
        size, has_more = 0, True
        while has_more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Gone
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            self._check_size(size)
            has_more = message.get("more_body", False)
        return b"".join(parts)

    def _check_size(self, size: int) -> None:
        limit = self._settings.max_body_bytes
        if size > limit:
            raise APIError(
                413, f"the body is larger than {limit} bytes", "body_too_large", headers=_CLOSE
            )


class _Gone(Exception):
    """The client left before its request was whole."""


def _check_media_type(headers: Headers) -> None:
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise APIError(
            415, "send JSON, as `Content-Type: application/json`", "not_json", headers=_CLOSE
        )


async def _run_while_connected(
    app: ASGIApp, scope: Scope, body: bytes, receive: Receive, send: Send
) -> None:
    has_body, has_left = True, asyncio.Event()

    async def replay() -> Message:
        nonlocal has_body
        if has_body:
            has_body = False
            return {"type": "http.request", "body": body, "more_body": False}
        await has_left.wait()
        return {"type": "http.disconnect"}

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        has_left.set()
        answering.cancel()

    answering = asyncio.ensure_future(app(scope, replay, send))
    watching = asyncio.ensure_future(watch())
    try:
        await answering
    except asyncio.CancelledError:
        if not has_left.is_set():  # the gateway itself is being stopped
            answering.cancel()
            raise
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
