"""llama.cpp as a peer: its own server out of the PyPI wheel, asked over HTTP.

It reads the GGUF that our target was converted from. Each kind of speculation is a server of its
own. Its defaults match 12 tokens before they draft 48, which short answers never pay for; two of
the n-gram arms match 3 and draft 8 instead.
"""

import http.client
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.peers.arm import Answer, Arm, CannotRun, ChatPrompt, Stopwatch, answer_at_once
from bench.peers.environment import gguf_of, peers_home, python_with
from bench.peers.process import START_TIMEOUT_S, PeerProcess, all_cores
from canopy.progress import phase_bars

REQUIREMENT = "xllamacpp==2026.10.11549"
ANSWER_TIMEOUT_S = 600.0
_SCRIPT = Path(__file__).with_name("llamacpp_server.py")


@dataclass(frozen=True)
class Speculation:
    """One of llama.cpp's kinds, by its name there; "" is plain decoding."""

    kind: str = ""
    options: dict[str, int] = field(default_factory=dict)


_SHORT = {"size_n": 3, "size_m": 8}
SPECULATIONS = {
    "llamacpp": Speculation(),
    "llamacpp_ngram_simple": Speculation("ngram_simple", _SHORT),
    "llamacpp_ngram_map_k": Speculation("ngram_map_k", _SHORT),
    "llamacpp_ngram_cache": Speculation("ngram_cache"),
}
PLAIN = "llamacpp"
LEFT_OUT = {
    "llamacpp_ngram_mod": "keeps earlier answers: the second repeat of a prompt is a copy",
    "llamacpp_draft": "drafts with a smaller model of the family, and there is none",
}


@contextmanager
def llamacpp_arms(name: str, model: str, slots: int, slot_tokens: int) -> Iterator[list[Arm]]:
    """One arm: a server with `slots` places of `slot_tokens` tokens of prompt and answer each.

    `name` is one of SPECULATIONS, `model` that of a published model or a GGUF file.
    Raises CannotRun.
    """
    with phase_bars() as progress:
        gguf = gguf_of(model, progress)
    settings = {
        "gguf": str(gguf),
        "threads": all_cores(),
        "slots": slots,
        "slot_tokens": slot_tokens,
        "speculation": SPECULATIONS[name].kind,
        "options": SPECULATIONS[name].options,
    }
    python = python_with(REQUIREMENT)
    with PeerProcess(python, _SCRIPT, settings, peers_home() / f"{name}.log") as process:
        address = process.receive(START_TIMEOUT_S)

        def answer(prompts: Sequence[ChatPrompt], num_tokens: int) -> list[Answer]:
            return answer_at_once(
                prompts, lambda prompt: _complete(address, prompt.token_ids, num_tokens)
            )

        yield [Arm(name, answer, process.group, max_concurrency=slots)]


def _complete(address: str, token_ids: Sequence[int], num_tokens: int) -> Answer:
    """One greedy answer that no end of sequence ends."""
    body = {
        "prompt": list(token_ids),
        "n_predict": num_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "cache_prompt": False,
    }
    connection = http.client.HTTPConnection(address, timeout=ANSWER_TIMEOUT_S)
    stopwatch = Stopwatch()
    try:
        connection.request(
            "POST", "/completion", json.dumps(body), {"Content-Type": "application/json"}
        )
        last = _read_events(connection.getresponse(), stopwatch)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise CannotRun(f"the server does not answer: {error}") from error
    finally:
        connection.close()
    return stopwatch.answer(last.get("tokens_predicted", 0))


def _read_events(response: http.client.HTTPResponse, stopwatch: Stopwatch) -> dict[str, Any]:
    """The last event, which sums the answer up. Raises CannotRun for a refusal."""
    if response.status != http.client.OK:
        text = response.read(300).decode("utf-8", "replace")
        raise CannotRun(f"the server refuses with {response.status}: {text}")
    last: dict[str, Any] = {}
    for line in response:
        if line.startswith(b"data: "):
            stopwatch.token()
            last = json.loads(line[6:])
    return last
