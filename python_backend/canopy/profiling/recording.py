"""Decodes a few prompts, has everything verified that the drafter offers, and keeps outcomes."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from canopy.config import Deployment
from canopy.engine.loop import Engine, Stages
from canopy.engine.output import Delta
from canopy.engine.request import GenerationRequest
from canopy.entry.limits import engine_limits, model_limits
from canopy.entry.parsing import ClientRequest, RequestParser
from canopy.errors import CanopyError
from canopy.models.config import ModelConfig
from canopy.policy.profile import Profile
from canopy.profiling.outcomes import OutcomeRecorder, Outcomes
from canopy.serve.models import model_folder
from canopy.stages.drafting import make_drafter
from canopy.stages.protocol import Verifier
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
_LAWS = ({"temperature": 0.0}, {"temperature": 0.8, "acceptance": "coupled"})


@dataclass(frozen=True)
class Recording:
    """What was seen, and the time that drafting for one sequence took."""

    outcomes: Outcomes
    draft_ms: float


class _Unheard:
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
    seconds: float,
    on_progress: Callable[[float], None] = lambda share: None,
) -> Recording:
    """Decode until the prompts or the time is used up. Raises InvalidDeployment."""
    recorder, requests = OutcomeRecorder(verifier), _requests(deployment)
    limits = replace(engine_limits(deployment), max_running=_NUM_RUNNING, max_waiting=len(requests))
    stages = Stages(make_drafter(deployment, Profile()), recorder, recorder)
    engine = Engine(stages, limits, lambda token_ids: "")
    num_ended = 0

    def count() -> None:
        nonlocal num_ended
        num_ended += 1

    for request in requests:
        engine.submit(request, _Unheard(count))
    start = time.monotonic()
    while engine.has_work and time.monotonic() - start < seconds:
        engine.turn()
        on_progress(max((time.monotonic() - start) / seconds, num_ended / len(requests)))
    engine.stop()
    engine.run()
    engine.turn()  # tells the stages that the rest is given up
    metrics = engine.metrics
    draft_ms = 1e3 * metrics.stage_seconds["draft"] / max(metrics.num_rounds, 1)
    return Recording(recorder.outcomes, draft_ms)


def _requests(deployment: Deployment) -> list[GenerationRequest]:
    """Each prompt once by the most probable tokens and once at random."""
    folder = model_folder(deployment.target.model)
    limits = model_limits(ModelConfig.from_folder(folder))
    tokenizer = Tokenizer(folder)
    parser = RequestParser(deployment, limits, tokenizer)
    shape = {"speculation": "topn", "node_budget": _NODE_BUDGET, "max_tokens": _MAX_TOKENS}
    return [
        parser.parse(ClientRequest(messages=_chat(prompt), request_parameters=shape | law))
        for prompt in _PROMPTS
        for law in _LAWS
    ]


def _chat(prompt: str) -> bytes:
    return json.dumps([{"role": "user", "content": prompt}]).encode()
