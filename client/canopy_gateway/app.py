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
from canopy_gateway.errors import APIError, api_error_of
from canopy_gateway.handlers import CompletionHandler, connect
from canopy_gateway.health import HealthCheck
from canopy_gateway.json_text import JsonResponse
from canopy_gateway.page import add_page
from canopy_gateway.request_guard import RequestGuard
from canopy_gateway.responses import model_card
from canopy_gateway.responses_api.request import ResponsesRequest
from canopy_gateway.schema import ChatRequest, CompletionRequest
from canopy_gateway.settings import GatewaySettings
from canopy_gateway.tokenization import DetokenizeRequest, TokenizeRequest

_READ = ["GET", "HEAD"]


def create_app(settings: GatewaySettings) -> FastAPI:
    """One gateway; it connects to its server when it starts."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with connect(settings) as client:
            app.state.completer = CompletionHandler(client, settings)
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
    app.add_middleware(RequestGuard, settings=settings)
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

    @app.post("/v1/responses")
    async def respond(body: ResponsesRequest, request: Request) -> Response:
        return await app.state.completer.respond(body, request.state.api_key)

    @app.post("/v1/completions")
    async def complete(body: CompletionRequest, request: Request) -> Response:
        return await app.state.completer.complete(body, request.state.api_key)

    @app.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> Response:
        return await app.state.completer.tokenize(body)

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> Response:
        return await app.state.completer.detokenize(body)

    @app.api_route("/v1/models", methods=_READ)
    async def models() -> Response:
        served = await app.state.completer.describe()
        cards = [model_card(name, started, served) for name in settings.names]
        return JsonResponse({"object": "list", "data": cards})

    @app.api_route("/v1/models/{name:path}", methods=_READ)
    async def model(name: str) -> Response:
        if name not in settings.names:
            raise APIError(404, f"there is no model {name[:80]!r}", "model_not_found", "model")
        return JsonResponse(model_card(name, started, await app.state.completer.describe()))

    @app.api_route("/health/live", methods=_READ)
    async def live() -> Response:
        return JsonResponse({"status": "alive"})

    @app.api_route("/health", methods=_READ)
    async def health() -> Response:
        if app.state.is_draining:
            return JsonResponse({"status": "draining"}, 503)
        status, found = await app.state.health.status()
        return JsonResponse(found, status)


def _add_error_handlers(app: FastAPI, settings: GatewaySettings) -> None:
    def to_client_error(
        translate: Callable[[Exception], APIError],
    ) -> Callable[[Request, Exception], Awaitable[Response]]:
        async def handle(request: Request, error: Exception) -> Response:
            return translate(error).response()

        return handle

    def of_client(error: Exception) -> APIError:
        assert isinstance(error, ClientError)
        return api_error_of(error, settings.retry_after_s)

    app.add_exception_handler(APIError, to_client_error(lambda e: e))  # type: ignore[arg-type,return-value]
    app.add_exception_handler(ClientError, to_client_error(of_client))
    app.add_exception_handler(RequestValidationError, to_client_error(_of_validation))
    app.add_exception_handler(RecursionError, to_client_error(_of_recursion))
    app.add_exception_handler(HTTPException, to_client_error(_of_http))
    app.add_exception_handler(Exception, to_client_error(_of_anything))


def _of_validation(error: Exception) -> APIError:
    """The first fault, in words; OpenAI answers 400 and not 422."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return APIError(400, f"the body is not valid JSON: {first['ctx']['error']}", "invalid_json")
    place = ".".join(str(part) for part in first["loc"][1:])
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        message = "unknown field"
    if first["type"] == "unsupported":
        field = first["ctx"]["field"]
        return APIError(400, message, "unsupported", f"{place}.{field}" if place else field)
    return APIError(
        400, f"{place}: {message}" if place else message, "invalid_field", place or None
    )


def _of_recursion(error: Exception) -> APIError:
    """Nothing but a body takes the gateway that deep."""
    return APIError(400, "the body is nested too deeply", "invalid_json")


def _of_http(error: Exception) -> APIError:
    """No such path, or not this method."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers) if error.headers else None
    return APIError(error.status_code, str(error.detail), headers=headers)


def _of_anything(error: Exception) -> APIError:
    """A fault of the gateway: its text may hold what is none of the client's business."""
    return APIError(500, "the gateway failed", "internal")
