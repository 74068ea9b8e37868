"""The command `canopy-gateway`: the gateway in the foreground."""

import inspect
import logging
from dataclasses import Field, fields
from typing import Annotated, Any, get_type_hints

import typer

from canopy_gateway.server import GatewayServer
from canopy_gateway.settings import GatewaySettings

_TYPES = get_type_hints(GatewaySettings)


def _option(name: str, text: str) -> typer.models.OptionInfo:
    environment = f"CANOPY_GATEWAY_{name.replace('-', '_').upper()}"
    return typer.Option(f"--{name}", envvar=environment, help=text)


def _parameter(setting: Field[Any]) -> inspect.Parameter:
    """The option of a setting; a repeatable one is None where it was not given."""
    option = _option(setting.metadata["option"], setting.metadata["help"])
    is_list = _TYPES[setting.name] == tuple[str, ...]
    return inspect.Parameter(
        setting.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None if is_list else setting.default,
        annotation=Annotated[list[str] | None if is_list else _TYPES[setting.name], option],
    )


Host = Annotated[str, _option("host", "Address to listen on.")]
Port = Annotated[int, _option("port", "Port to listen on.")]


def run(host: Host = "127.0.0.1", port: Port = 8080, **given: Any) -> None:
    """Serve an OpenAI-compatible API in front of a Canopy server.

    Every option can also come from the environment, a list separated by spaces.

    Example: canopy-gateway --host 0.0.0.0 --port 8080 --server 127.0.0.1:8001
    """
    lists = {name for name, kind in _TYPES.items() if kind == tuple[str, ...]}
    values: dict[str, Any] = {
        name: _given(value) if name in lists else value for name, value in given.items()
    }
    logging.basicConfig(level=logging.INFO)
    GatewayServer(GatewaySettings(**values), host, port).run()


def _given(values: list[str] | None) -> tuple[str, ...]:
    """Without the empty ones, which an empty variable of the environment brings."""
    return tuple(value for value in values or () if value)


def main() -> None:
    """The entry point."""
    first = list(inspect.signature(run).parameters.values())[:2]
    settings = [_parameter(setting) for setting in fields(GatewaySettings)]
    run.__signature__ = inspect.Signature([*first, *settings])  # type: ignore[attr-defined]
    typer.run(run)


if __name__ == "__main__":
    main()
