"""The sampling flags that `generate` and `chat` share, given to a command as one dict."""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from canopy.config import ACCEPTANCE_MODES, POLICIES, ServerConfig

Url = Annotated[
    str,
    typer.Option(
        help="The server: host:port or grpc:// for gRPC, http:// for HTTP.", envvar="CANOPY_URL"
    ),
]
DEFAULT_URL = f"{ServerConfig.host}:{ServerConfig.grpc_port}"

FLAGS: dict[str, Any] = {
    "max_tokens": Annotated[int | None, typer.Option("-n", "--max-tokens")],
    "temperature": Annotated[float | None, typer.Option("-t", "--temperature", help="0: greedy.")],
    "top_k": Annotated[int | None, typer.Option(help="0: off.")],
    "top_p": Annotated[float | None, typer.Option()],
    "min_p": Annotated[float | None, typer.Option()],
    "repetition_penalty": Annotated[float | None, typer.Option(help="1: off.")],
    "presence_penalty": Annotated[float | None, typer.Option(help="0: off.")],
    "frequency_penalty": Annotated[float | None, typer.Option(help="0: off.")],
    "seed": Annotated[int | None, typer.Option(help="The same seed gives the same text.")],
    "stop": Annotated[list[str] | None, typer.Option(help="End before this text; repeatable.")],
    "speculation": Annotated[str | None, typer.Option(help=f"off, {', '.join(POLICIES)}.")],
    "node_budget": Annotated[int | None, typer.Option(help="Most drafted nodes a round.")],
    "acceptance": Annotated[str | None, typer.Option(help=f"{', '.join(ACCEPTANCE_MODES)}.")],
}


def takes_sampling_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Add FLAGS to a command whose parameter `options` then holds those that were given."""

    @functools.wraps(command)
    def run(**given: Any) -> None:
        flags = {name: given.pop(name) for name in FLAGS}
        options = {name: value for name, value in flags.items() if value not in (None, [])}
        command(options=options, **given)

    own = inspect.signature(command, eval_str=True).parameters.values()
    flags = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in FLAGS.items()
    ]
    parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in own if p.name != "options"] + flags
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run
