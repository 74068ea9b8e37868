"""`canopy generate`, `canopy chat` and `canopy health`: the client at the command line."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from canopy.cli.options import DEFAULT_URL, Url, takes_sampling_flags

if TYPE_CHECKING:
    from canopy_client import Client, Completion, TextStream

EXIT_FAILED, EXIT_UNAVAILABLE, EXIT_INTERRUPTED = 1, 3, 130


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

    Examples: canopy generate "Write a haiku about rivers" ·
    canopy generate --raw "def fibonacci(n):" -n 64 -t 0 --stats
    """
    text = sys.stdin.read() if prompt == "-" else prompt
    with _connection(url) as client:
        start = client.stream if raw else client.stream_chat
        with start(text, **options) as stream:
            completion = _print_stream(stream, is_quiet=as_json)
    if as_json:
        print(json.dumps(asdict(completion), ensure_ascii=False))
    if stats:
        print(_summary(completion), file=sys.stderr)


@takes_sampling_flags
def chat(
    options: dict[str, Any],
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Talk with the model. /reset forgets, /quit ends; Ctrl-C cuts an answer short.

    Example: canopy chat --system "You answer in one sentence." -t 0.7
    """
    opening = [{"role": "system", "content": system}] if system else []
    history = list(opening)
    with _connection(url) as client:
        for line in _lines():
            if line == "/reset":
                history = list(opening)
            elif line == "/quit":
                return
            elif line.startswith("/"):
                print("Commands: /reset, /quit")
            elif line:
                history = _answer(client, [*history, {"role": "user", "content": line}], options)


def health(url: Url = DEFAULT_URL) -> None:
    """Ask the server for one token. Exit code 0 when it answers, 3 when nobody does.

    Example: canopy health --url 127.0.0.1:8001
    """
    with _connection(url) as client:
        found = client.health()
    print(f"alive: Triton server {found.server_version}, one token in {found.latency_ms:.0f} ms")


@contextmanager
def _connection(url: str) -> Iterator["Client"]:
    """A client whose errors end the command with their exit code."""
    from canopy_client import Client, ClientError, Unavailable

    try:
        with Client(url) as client:
            yield client
    except Unavailable as error:
        print(f"canopy: {error}", file=sys.stderr)
        raise typer.Exit(EXIT_UNAVAILABLE) from error
    except ClientError as error:
        print(f"canopy: {error}", file=sys.stderr)
        raise typer.Exit(EXIT_FAILED) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(EXIT_INTERRUPTED) from error


def _lines() -> Iterator[str]:
    """What the user types, until the end of the input."""
    while True:
        try:
            yield input("> ").strip()
        except EOFError:
            return


def _answer(
    client: "Client", messages: list[dict[str, str]], options: dict[str, Any]
) -> list[dict[str, str]]:
    """Stream the answer; the history with it, or with what was there when it was cut short."""
    from canopy_client import InvalidRequest

    try:
        with client.stream_chat(messages, **options) as stream:
            try:
                _print_stream(stream)
            except KeyboardInterrupt:
                print()
    except InvalidRequest as error:
        print(f"canopy: {error}", file=sys.stderr)
        return messages[:-1]
    return [*messages, {"role": "assistant", "content": stream.completion.text}]


def _print_stream(stream: "TextStream", is_quiet: bool = False) -> "Completion":
    for chunk in stream:
        if not is_quiet:
            print(chunk.text, end="", flush=True)
    if not is_quiet:
        print()
    return stream.completion


def _summary(completion: "Completion") -> str:
    """One line: lengths, and the speculation report as the server sent it."""
    report = ", ".join(f"{name} {value}" for name, value in completion.speculation.items())
    return (
        f"{completion.num_input_tokens} tokens in, {completion.num_output_tokens} out "
        f"({completion.finish_reason}); {report}"
    )
