"""The engine loop over direct stages, in this process: the server's loop without the server."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from canopy.config import Deployment
from canopy.drafter.stage import make_drafter
from canopy.engine.loop import Engine
from canopy.engine.metrics import EngineMetrics
from canopy.engine.output import Delta
from canopy.engine.request import GenerationRequest
from canopy.engine.stages import Stages
from canopy.errors import CanopyError
from canopy.frontend.client_request import ClientRequest
from canopy.frontend.limits import engine_limits, model_limits
from canopy.frontend.request_parser import RequestParser
from canopy.frontend.sampling_options import ClientParameters
from canopy.grammar.target import target_grammars
from canopy.model_store.folders import model_folder
from canopy.protocol.stages import Verifier
from canopy.text.tokenizer import Tokenizer
from canopy.tree_builder.stage import make_tree_builder
from canopy.verifier.construction import make_verifier

_NO_LIMIT = 1 << 30


@dataclass(frozen=True)
class Answer:
    """What one request gave back."""

    text: str
    num_tokens: int
    finish_reason: str
    report: dict[str, Any]  # engine.request.SpeculationCounts.report


class CollectingSink:
    """`engine.output.Sink` that keeps everything; calls `on_end` once."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self.deltas: list[Delta] = []
        self._error: CanopyError | None = None

    def send(self, delta: Delta) -> None:
        """Keep a piece."""
        self.deltas.append(delta)
        if delta.is_last:
            self._on_end()

    def fail(self, error: CanopyError) -> None:
        """Keep the error for `answer`."""
        self._error = error
        self._on_end()

    def is_cancelled(self) -> bool:
        """Benchmarks wait for every answer."""
        return False

    def answer(self) -> Answer:
        """The whole answer. Raises the error that the request ended with."""
        if self._error is not None:
            raise self._error
        last = self.deltas[-1]
        return Answer(
            text="".join(delta.text for delta in self.deltas),
            num_tokens=sum(delta.num_tokens for delta in self.deltas),
            finish_reason=last.finish_reason or "",
            report=last.report or {},
        )


class LocalEngine:
    """An engine for one deployment; its caches stay warm from one `run` to the next."""

    def __init__(self, deployment: Deployment, verifier: Verifier | None = None) -> None:
        """verifier: instead of the deployment's own target."""
        folder = model_folder(deployment.target.model)
        tokenizer = Tokenizer(folder)
        # What a benchmark does not name is off, whatever the makers of its model recommend.
        limits = replace(model_limits(folder, tokenizer), defaults=ClientParameters())
        self._parser = RequestParser(deployment, limits, tokenizer, target_grammars(folder))
        stages = Stages(
            make_drafter(deployment),
            make_tree_builder(deployment),
            verifier or make_verifier(deployment),
        )
        queue = replace(engine_limits(deployment), max_waiting=_NO_LIMIT)
        self._engine = Engine(stages, queue, tokenizer.decode)

    @property
    def metrics(self) -> EngineMetrics:
        return self._engine.metrics

    def chat_request(self, prompt: str, **parameters: Any) -> GenerationRequest:
        """One user turn with sampling parameters as clients name them. Raises InvalidRequest."""
        messages = json.dumps([{"role": "user", "content": prompt}]).encode()
        client = ClientRequest(messages=messages, request_parameters=parameters)
        return replace(self._parser.parse(client), timeout_s=math.inf)

    def run(
        self,
        requests: Sequence[GenerationRequest],
        on_end: Callable[[], None] = lambda: None,
        after_step: Callable[[], None] = lambda: None,
    ) -> list[Answer]:
        """Serve all requests together, as many at once as the deployment allows.

        `on_end` is called after each answer. Raises the error of the first request that failed.
        """
        return [sink.answer() for sink in self._served(requests, on_end, after_step)]

    def run_for_pieces(self, requests: Sequence[GenerationRequest]) -> list[list[Delta]]:
        """Serve all requests together; every piece of each answer."""
        return [sink.deltas for sink in self._served(requests)]

    def _served(
        self,
        requests: Sequence[GenerationRequest],
        on_end: Callable[[], None] = lambda: None,
        after_step: Callable[[], None] = lambda: None,
    ) -> list[CollectingSink]:
        sinks = [CollectingSink(on_end) for _ in requests]
        for request, sink in zip(requests, sinks, strict=True):
            self._engine.submit(request, sink)
        while self._engine.has_work:
            self._engine.step()
            after_step()
        return sinks
