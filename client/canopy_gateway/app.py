"""The application: routes, and how errors become answers."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from canopy_client import ClientError
from canopy_gateway.errors import Refusal, refusal_of
from canopy_gateway.handlers import Completer, connect
from canopy_gateway.health import HealthCheck
from canopy_gateway.json_text import JsonResponse
from canopy_gateway.page import add_page
from canopy_gateway.request_guard import Door
from canopy_gateway.responses import model_card
from canopy_gateway.schema import ChatRequest, CompletionRequest
from canopy_gateway.settings import GatewaySettings

_READ = ["GET", "HEAD"]


def create_app(settings: GatewaySettings) -> FastAPI:
    """One gateway; it connects to its server when it starts."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with connect(settings) as client:
            app.state.completer = Completer(client, settings)
            app.state.health = HealthCheck(client, settings)
            yield

    # The interactive pages load scripts from elsewhere; /openapi.json stays. A redirect would name
    # the host that the client claims to ask.
    app = FastAPI(
        title="Canopy", lifespan=lifespan, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.state.is_draining = False
    _add_routes(app, settings)
    add_page(app)
    _add_error_handlers(app, settings)
    app.add_middleware(Door, settings=settings)
    if settings.allowed_origins:  # outside the door: a preflight carries no key
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_methods=["GET", "HEAD", "POST"],
            allow_headers=["*"],
            expose_headers=["Retry-After", "X-Request-Id"],
        )
    return app


def _add_routes(app: FastAPI, settings: GatewaySettings) -> None:
    started = int(time.time())

    @app.post("/v1/chat/completions")
    async def chat(body: ChatRequest, request: Request) -> Response:
        return await app.state.completer.chat(body, request.state.api_key)

    @app.post("/v1/completions")
    async def complete(body: CompletionRequest, request: Request) -> Response:
        return await app.state.completer.complete(body, request.state.api_key)

    @app.api_route("/v1/models", methods=_READ)
    async def models() -> Response:
        served = await app.state.completer.describe()
        cards = [model_card(name, started, served) for name in settings.names]
        return JsonResponse({"object": "list", "data": cards})

    @app.api_route("/v1/models/{name:path}", methods=_READ)
    async def model(name: str) -> Response:
        if name not in settings.names:
            raise Refusal(404, f"there is no model {name[:80]!r}", "model_not_found", "model")
        return JsonResponse(model_card(name, started, await app.state.completer.describe()))

    @app.api_route("/health", methods=_READ)
    async def health() -> Response:
        if app.state.is_draining:
            return JsonResponse({"status": "draining"}, 503)
        status, found = await app.state.health.status()
        return JsonResponse(found, status)


def _add_error_handlers(app: FastAPI, settings: GatewaySettings) -> None:
    def translated(
        translate: Callable[[Exception], Refusal],
    ) -> Callable[[Request, Exception], Awaitable[Response]]:
        async def handle(request: Request, error: Exception) -> Response:
            return translate(error).response()

        return handle

    def of_client(error: Exception) -> Refusal:
        assert isinstance(error, ClientError)
        return refusal_of(error, settings.retry_after_s)

    app.add_exception_handler(Refusal, translated(lambda e: e))  # type: ignore[arg-type,return-value]
    app.add_exception_handler(ClientError, translated(of_client))
    app.add_exception_handler(RequestValidationError, translated(_of_validation))
    app.add_exception_handler(HTTPException, translated(_of_http))
    app.add_exception_handler(Exception, translated(_of_anything))


def _of_validation(error: Exception) -> Refusal:
    """The first fault, in words; OpenAI answers 400 and not 422."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return Refusal(400, f"the body is not valid JSON: {first['ctx']['error']}", "invalid_json")
    place = ".".join(str(part) for part in first["loc"][1:])
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        message = "unknown field"
    if first["type"] == "unsupported":
        field = first["ctx"]["field"]
        return Refusal(400, message, "unsupported", f"{place}.{field}" if place else field)
    return Refusal(400, f"{place}: {message}" if place else message, "invalid_field", place or None)


def _of_http(error: Exception) -> Refusal:
    """No such path, or not this method."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers) if error.headers else None
    return Refusal(error.status_code, str(error.detail), headers=headers)


def _of_anything(error: Exception) -> Refusal:
    """A fault of the gateway: its text may hold what is none of the client's business."""
    return Refusal(500, "the gateway failed", "internal")
