"""`canopy chat`: a conversation with the server, kept here and sent whole with every step."""

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from canopy.cli.generate import connection, print_stream, summary
from canopy.cli.live import traced
from canopy.cli.options import DEFAULT_URL, Url, takes_sampling_flags

if TYPE_CHECKING:
    from canopy_client import Client, Completion


@takes_sampling_flags
def chat(
    options: dict[str, Any],
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Talk with the model; Ctrl-C cuts an answer short.

    /reset forgets the conversation, /stats tells the numbers of the last answer, /quit ends.

    Example: canopy chat --system "You answer in one sentence." -t 0.7
    """
    with connection(url) as client:
        print(_greeting(client.model_info().name, url), file=sys.stderr)
        conversation = Conversation(client, options, system)
        commands: dict[str, Callable[[], None]] = {
            "/reset": conversation.reset,
            "/stats": conversation.print_stats,
        }
        for line in _lines():
            if line == "/quit":
                return
            if line in commands:
                commands[line]()
            elif line.startswith("/"):
                print(f"Commands: {', '.join(commands)}, /quit")
            elif line:
                conversation.say(line)


class Conversation:
    """The steps so far."""

    def __init__(self, client: "Client", options: dict[str, Any], system: str | None) -> None:
        self._client = client
        self._options = options
        self._opening = [{"role": "system", "content": system}] if system else []
        self._last: Completion | None = None
        self.history = list(self._opening)

    def reset(self) -> None:
        """Forget all but the system message."""
        self.history = list(self._opening)
        self._last = None

    def print_stats(self) -> None:
        """What the last answer cost, and how long the conversation is."""
        if self._last is None:
            print("no answer yet")
            return
        print(f"{summary(self._last)}; {len(self.history)} messages")

    def say(self, text: str) -> None:
        """Stream the answer; what was there when it was cut short is remembered too.

        A step that the server refuses is forgotten. Raises any other ClientError.
        """
        from canopy_client import InvalidRequest

        messages = [*self.history, {"role": "user", "content": text}]
        try:
            with self._client.stream_chat(messages, **traced(self._options)) as stream:
                try:
                    print_stream(stream)
                except KeyboardInterrupt:
                    print()
        except InvalidRequest as error:
            print(f"canopy: {error}", file=sys.stderr)
            return
        self._last = stream.completion
        self.history = [*messages, {"role": "assistant", "content": self._last.text}]


def _greeting(model: str, url: str) -> str:
    return (
        f"Talking with the model {model} at {url}. /quit or Ctrl-D leaves, Ctrl-C cuts an answer "
        "short, /reset forgets, /stats tells the last answer's numbers."
    )


def _lines() -> Iterator[str]:
    """What the user types, until the end of the input."""
    while True:
        try:
            yield input("> ").strip()
        except EOFError:
            return
