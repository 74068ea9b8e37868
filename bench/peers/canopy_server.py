"""Our own server as a peer: the real one, over gRPC, speculating and not, by request."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.peers.arm import (
    Answer,
    Arm,
    CannotRun,
    ChatPrompt,
    Stopwatch,
    answer_at_once,
)
from canopy.config import Deployment
from canopy.server.process import ServerProcess
from canopy.server.runtime import with_free_ports
from canopy_client import Client, ClientError

SPECULATING = "canopy"  # by the deployment's own policy
PLAIN = "canopy_ar"
_PARAMETERS: dict[str, dict[str, Any]] = {SPECULATING: {}, PLAIN: {"speculation": "off"}}


@contextmanager
def canopy_arms(deployment: Deployment) -> Iterator[list[Arm]]:
    """Both arms on one server. Prompts are not reused, as no peer reuses them.

    Raises CannotStart.
    """
    deployment = replace(deployment, cache=replace(deployment.cache, prefix_reuse=False))
    with (
        TemporaryDirectory() as folder,
        ServerProcess(with_free_ports(deployment), Path(folder)) as server,
        Client(server.grpc_url) as client,
    ):
        yield [_arm(name, server, client) for name in _PARAMETERS]


def _arm(name: str, server: ServerProcess, client: Client) -> Arm:
    def answer(prompts: Sequence[ChatPrompt], num_tokens: int) -> list[Answer]:
        return answer_at_once(
            prompts, lambda prompt: _ask(client, prompt, num_tokens, _PARAMETERS[name])
        )

    return Arm(name, answer, server.pid or 0)


def _ask(client: Client, prompt: ChatPrompt, num_tokens: int, parameters: dict[str, Any]) -> Answer:
    """The least number of tokens rules the end of sequence out, as the peers' options do."""
    stopwatch = Stopwatch()
    try:
        with client.stream_chat(
            prompt.text,
            temperature=0.0,
            min_tokens=num_tokens,
            max_tokens=num_tokens,
            **parameters,
        ) as stream:
            for chunk in stream:
                if chunk.num_tokens:
                    stopwatch.token()
            answer = stopwatch.answer(stream.completion.num_output_tokens)
    except ClientError as error:
        raise CannotRun(f"the server does not answer: {error}") from error
    if (num_read := stream.completion.num_input_tokens) != len(prompt.token_ids):
        raise CannotRun(f"a prompt of {len(prompt.token_ids)} tokens was read as {num_read}")
    return answer
