"""Our own client beside perf_analyzer: one stream that asks again and again during its run."""

import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from canopy_client import Client, ClientError


@dataclass(frozen=True)
class ProbeResult:
    """Medians over the probe's answers; every one of them was got while others were served."""

    num_answers: int
    first_token_s: float
    inter_token_s: float
    tokens_per_s: float


@dataclass
class Probe:
    """As a context manager it asks inside and has its result afterwards."""

    grpc_url: str
    messages: Sequence[str]
    parameters: Mapping[str, Any]
    _answers: list[tuple[float, float, float]] = field(default_factory=list)
    _errors: list[ClientError] = field(default_factory=list)

    def __enter__(self) -> "Probe":
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="probe", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def result(self) -> ProbeResult:
        """Raises the error that the probe met, if any."""
        if self._errors:
            raise self._errors[0]
        first, inter, rate = zip(*self._answers, strict=True)
        return ProbeResult(len(first), median(first), median(inter), median(rate))

    def _run(self) -> None:
        try:
            with Client(self.grpc_url) as client:
                for text in itertools.cycle(self.messages):
                    self._ask(client, text)
                    if self._stop.is_set():
                        return
        except ClientError as error:
            self._errors.append(error)

    def _ask(self, client: Client, text: str) -> None:
        start_s, arrivals = time.perf_counter(), []
        with client.stream_chat(text, **self.parameters) as stream:
            for chunk in stream:
                arrivals.append((time.perf_counter(), chunk.num_tokens))
        num_tokens = sum(num for _, num in arrivals)
        first_s, last_s = arrivals[0][0], arrivals[-1][0]
        later = max(num_tokens - arrivals[0][1], 1)
        self._answers.append(
            (first_s - start_s, (last_s - first_s) / later, num_tokens / (last_s - start_s))
        )
