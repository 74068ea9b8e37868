"""The command `canopy-gateway`: the gateway in the foreground."""

import logging
from dataclasses import replace
from typing import Annotated

import typer
import uvicorn

from canopy_client import Tls
from canopy_gateway.app import create_app
from canopy_gateway.settings import GatewaySettings

DEFAULTS = GatewaySettings()
GRACE_S = 30  # answers under way may finish this long after SIGTERM


def _option(name: str, text: str) -> typer.models.OptionInfo:
    return typer.Option(f"--{name}", envvar=f"CANOPY_GATEWAY_{_upper(name)}", help=text)


def _upper(name: str) -> str:
    return name.replace("-", "_").upper()


Host = Annotated[str, _option("host", "Address to listen on.")]
Port = Annotated[int, _option("port", "Port to listen on.")]
Server = Annotated[
    str, _option("server", "The Triton server: host:port (gRPC), grpcs://, http:// or https://.")
]
Model = Annotated[str, _option("model", "The model's name on the server.")]
ServedNames = Annotated[
    list[str] | None,
    _option("served-name", "What clients call the model; repeatable. Default: as the server."),
]
ApiKeys = Annotated[
    list[str] | None,
    _option("api-key", "Ask for one of these; repeatable. Better in the environment."),
]
MaxBodyBytes = Annotated[int, _option("max-body-bytes", "Larger requests get 413.")]
MaxPromptBytes = Annotated[int, _option("max-prompt-bytes", "Longer texts get 400.")]
MaxConcurrent = Annotated[int, _option("max-concurrent", "Answers at once; beyond, 429.")]
MaxChoices = Annotated[int, _option("max-choices", "Most answers of one request (n).")]
RequestTimeout = Annotated[float, _option("request-timeout", "Seconds; a longer answer gets 504.")]
CaFile = Annotated[
    str | None, _option("ca-file", "PEM file of who signed the server's certificate.")
]


def run(
    host: Host = "127.0.0.1",
    port: Port = 8080,
    server: Server = DEFAULTS.server_url,
    model: Model = DEFAULTS.model,
    served_name: ServedNames = None,
    api_key: ApiKeys = None,
    max_body_bytes: MaxBodyBytes = DEFAULTS.max_body_bytes,
    max_prompt_bytes: MaxPromptBytes = DEFAULTS.max_prompt_bytes,
    max_concurrent: MaxConcurrent = DEFAULTS.max_concurrent,
    max_choices: MaxChoices = DEFAULTS.max_choices,
    request_timeout: RequestTimeout = DEFAULTS.request_timeout_s,
    ca_file: CaFile = None,
) -> None:
    """Serve an OpenAI-compatible API in front of a Canopy server.

    Every option can also come from the environment, a list separated by spaces.

    Example: canopy-gateway --host 0.0.0.0 --port 8080 --server 127.0.0.1:8001
    """
    settings = replace(
        DEFAULTS,
        server_url=server,
        model=model,
        served_names=_given(served_name),
        api_keys=_given(api_key),
        max_body_bytes=max_body_bytes,
        max_prompt_bytes=max_prompt_bytes,
        max_concurrent=max_concurrent,
        max_choices=max_choices,
        request_timeout_s=request_timeout,
        tls=Tls(ca_file=ca_file),
    )
    _serve(settings, host, port)


def _given(values: list[str] | None) -> tuple[str, ...]:
    """Without the empty ones, which an empty variable of the environment brings."""
    return tuple(value for value in values or () if value)


def _serve(settings: GatewaySettings, host: str, port: int) -> None:
    logging.basicConfig(level=logging.INFO)
    uvicorn.run(
        create_app(settings),
        host=host,
        port=port,
        timeout_graceful_shutdown=GRACE_S,
        server_header=False,
        log_config=None,
    )


def main() -> None:
    """The entry point."""
    typer.run(run)


if __name__ == "__main__":
    main()
