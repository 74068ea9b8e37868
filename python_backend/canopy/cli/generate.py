"""`canopy generate` and `canopy health`: one question to the server at the command line."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from canopy.cli.live import Meter, live_line, traced
from canopy.cli.options import DEFAULT_URL, Url, takes_sampling_flags

if TYPE_CHECKING:
    from canopy_client import Client, Completion, TextStream

EXIT_FAILED, EXIT_MISUSED, EXIT_UNAVAILABLE, EXIT_INTERRUPTED = 1, 2, 3, 130


@takes_sampling_flags
def generate(
    options: dict[str, Any],
    prompt: Annotated[str, typer.Argument(help='The prompt; "-" reads it from standard input.')],
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt as it stands: no chat template.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object when the answer is whole.")
    ] = False,
    stats: Annotated[
        bool, typer.Option("--stats", help="Say on standard error what speculation did.")
    ] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Answer one prompt, streaming the text. Ctrl-C cancels.

    Examples: canopy generate "Name three rivers." ·
    canopy generate --raw "def fibonacci(n):" -n 64 -t 0 --stats
    """
    text = sys.stdin.read() if prompt == "-" else prompt
    with connection(url) as client:
        start = client.stream if raw else client.stream_chat
        with start(text, **(options if as_json else traced(options))) as stream:
            completion = read_quietly(stream) if as_json else print_stream(stream)
    if as_json:
        print(json.dumps(asdict(completion), ensure_ascii=False))
    if stats:
        print(summary(completion), file=sys.stderr)


def health(
    url: Url = DEFAULT_URL,
    ready: Annotated[
        bool, typer.Option("--ready", help="Succeed only if a request would be taken up now.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Ask the server how it is: ready, busy, loading, silent, stopping or broken.

    Exit code 0 while it is alive: a full queue is alive, and so is a stage that is loaded again.
    Exit code 3 when nobody answers, and with --ready when a request would not be taken up.

    Examples: canopy health --url 127.0.0.1:8001 · canopy health --ready
    """
    with connection(url) as client:
        found = client.health()
    if as_json:
        print(json.dumps(asdict(found)))
    else:
        reason = f" ({found.reason})" if found.reason else ""
        print(
            f"{found.status}{reason}: Triton server {found.server_version}, answered in "
            f"{found.latency_ms:.0f} ms, {found.num_running} running, {found.num_waiting} waiting"
        )
    if not (found.is_ready if ready else found.is_alive):
        raise typer.Exit(EXIT_UNAVAILABLE)


@contextmanager
def connection(url: str) -> Iterator["Client"]:
    """A client whose errors end the command with their exit code."""
    from canopy_client import Client, ClientError, Unavailable

    try:
        client = Client(url)
    except ValueError as error:
        print(f"canopy: {error}", file=sys.stderr)
        raise typer.Exit(EXIT_MISUSED) from error
    try:
        with client:
            yield client
    except Unavailable as error:
        print(f"canopy: {error}", file=sys.stderr)
        raise typer.Exit(EXIT_UNAVAILABLE) from error
    except ClientError as error:
        print(f"canopy: {error}", file=sys.stderr)
        raise typer.Exit(EXIT_FAILED) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(EXIT_INTERRUPTED) from error


def read_quietly(stream: "TextStream") -> "Completion":
    """The whole answer."""
    for _ in stream:
        pass
    return stream.completion


def print_stream(stream: "TextStream") -> "Completion":
    """Print the answer as it comes; on a terminal, with its numbers in the last row."""
    meter = Meter()
    with live_line() as show:
        for chunk in stream:
            print(chunk.text, end="", flush=True)
            meter.add(chunk, time.monotonic())
            show(meter.line())
        print()
    return stream.completion


def summary(completion: "Completion") -> str:
    """One line: lengths, and the speculation report as the server sent it."""
    report = ", ".join(f"{name} {value}" for name, value in completion.speculation.items())
    return (
        f"{completion.num_input_tokens} tokens in, {completion.num_output_tokens} out "
        f"({completion.finish_reason or 'cut short'}); {report or 'no report'}"
    )
