"""The page at `/`: a chat that shows every round's draft tree. Static files, none from elsewhere.

It speaks to /v1/chat/completions like any other client, with `trace` set.
"""

from pathlib import Path

from fastapi import FastAPI
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

STATIC = Path(__file__).parent / "static"
# A browser asks whether a file has changed before it uses its copy.
_FRESH = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


class _FreshFiles(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(_FRESH)
        return response


def add_page(app: FastAPI) -> None:
    """Serve the page; its addresses are relative, so a proxy may put it under a path."""

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def index() -> Response:
        headers = {**_FRESH, "Content-Security-Policy": _POLICY, "Referrer-Policy": "no-referrer"}
        return FileResponse(STATIC / "index.html", headers=headers)

    app.mount("/static", _FreshFiles(directory=STATIC))
