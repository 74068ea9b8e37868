"""Decodes a few prompts, has everything verified that the drafter offers, and keeps outcomes."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from canopy.config import Deployment
from canopy.costs.profile import GREEDY, SAMPLED, SAMPLED_TEMPERATURE, Profile
from canopy.drafter.stage import make_drafter
from canopy.engine.loop import Engine
from canopy.engine.output import Delta
from canopy.engine.request import GenerationRequest
from canopy.engine.stages import Stages
from canopy.errors import CanopyError
from canopy.frontend.client_request import ClientRequest
from canopy.frontend.limits import engine_limits, model_limits
from canopy.frontend.request_parser import RequestParser
from canopy.model_store.folders import model_folder
from canopy.profiling.outcome_recorder import OutcomeRecorder, Outcomes
from canopy.protocol.stages import Verifier
from canopy.text.tokenizer import Tokenizer

_NUM_RUNNING = 4
_NODE_BUDGET = 24
_MAX_TOKENS = 96
_PROMPTS = (
    "Write a Python function that reverses a list, then explain it line by line.",
    "List five facts about the Moon and repeat each of them in one short sentence.",
    "Copy this text twice: the quick brown fox jumps over the lazy dog near the river bank.",
    "What is the difference between a virus and a bacterium?",
    'Turn this into JSON with the keys name and age: "Ann is 31 and Bob is 27 years old."',
    "Explain step by step how to compute 17 * 24.",
    "Write a short story about a lighthouse keeper who finds a letter.",
    "Translate into French: Good morning, how are you? I am well, thank you.",
)
_MANY = 1 << 10
_LEAST_S = 1.0  # for both kinds of sampling together
SAMPLINGS: dict[str, dict[str, Any]] = {
    GREEDY: {"temperature": 0.0},
    SAMPLED: {"temperature": SAMPLED_TEMPERATURE, "acceptance": "coupled", "seed": 1},
}


@dataclass(frozen=True)
class Recording:
    """What was seen under one kind of sampling, and the time of drafting for one sequence."""

    outcomes: Outcomes
    draft_ms: float


class _NullSink:
    """`engine.output.Sink` of an answer that nobody reads."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end

    def send(self, delta: Delta) -> None:
        if delta.is_last:
            self._on_end()

    def fail(self, error: CanopyError) -> None:
        self._on_end()

    def is_cancelled(self) -> bool:
        return False


def record(
    deployment: Deployment,
    verifier: Verifier,
    end_s: float,
    on_progress: Callable[[float], None] = lambda share: None,
) -> dict[str, Recording]:
    """Decode greedily, then at random, each until the prompts or half of the time is used up.

    end_s: by the monotonic clock; loading the drafter is part of the time. By the name of the
    sampling in SAMPLINGS. Raises InvalidDeployment.
    """
    drafter = make_drafter(deployment, Profile())
    recordings: dict[str, Recording] = {}
    for number, (name, sampling) in enumerate(SAMPLINGS.items()):
        recorder = OutcomeRecorder(verifier)
        limits = replace(
            engine_limits(deployment, Profile()),
            max_running=_NUM_RUNNING,
            max_waiting=_MANY,
            max_prompt_slowdown=0.0,
        )
        engine = Engine(Stages(drafter, recorder, recorder), limits, lambda token_ids: "")
        show = _part_of(on_progress, number / len(SAMPLINGS), 1.0 / len(SAMPLINGS))
        requests = _requests(deployment, sampling)
        seconds = max(end_s - time.monotonic(), _LEAST_S) / (len(SAMPLINGS) - number)
        _decode(engine, requests, seconds, show)
        metrics = engine.metrics
        draft_ms = 1e3 * metrics.stage_seconds["draft"] / max(metrics.num_rounds, 1)
        recordings[name] = Recording(recorder.outcomes, draft_ms)
    return recordings


def _part_of(
    on_progress: Callable[[float], None], start: float, length: float
) -> Callable[[float], None]:
    return lambda share: on_progress(start + length * share)


def _decode(
    engine: Engine,
    requests: Sequence[GenerationRequest],
    seconds: float,
    on_progress: Callable[[float], None],
) -> None:
    ended: list[bool] = []
    for request in requests:
        engine.submit(request, _NullSink(lambda: ended.append(True)))
    start, by_time = time.monotonic(), 0.0
    while engine.has_work and by_time < 1.0:
        engine.step()
        by_time = (time.monotonic() - start) / seconds
        on_progress(min(max(by_time, len(ended) / len(requests)), 1.0))
    engine.stop()
    engine.run()
    engine.step()  # tells the stages that the rest is given up


def _requests(deployment: Deployment, sampling: dict[str, Any]) -> list[GenerationRequest]:
    folder = model_folder(deployment.target.model)
    tokenizer = Tokenizer(folder)
    parser = RequestParser(deployment, model_limits(folder, tokenizer), tokenizer)
    shape = {"speculation": "topn", "node_budget": _NODE_BUDGET, "max_tokens": _MAX_TOKENS}
    return [
        parser.parse(ClientRequest(messages=_chat(prompt), request_parameters=shape | sampling))
        for prompt in _PROMPTS
    ]


def _chat(prompt: str) -> bytes:
    return json.dumps([{"role": "user", "content": prompt}]).encode()
