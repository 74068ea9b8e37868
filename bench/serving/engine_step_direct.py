"""A step with direct calls: medians over the steps in which every sequence decodes.

Plain decoding and speculation alternate on the same prompts, other ones each time, so that a
drift of the machine meets both; the speedup is the median of their paired ratios of tokens per
second.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from bench.harness.benchmark import Record, Result
from bench.harness.local_engine import LocalEngine
from bench.harness.prompts import Prompt
from bench.serving.engine_step_plan import Plan, prompt_texts
from canopy.config import Deployment
from canopy.engine.metrics import STAGES, EngineMetrics
from canopy.progress import progress_bar

VARIANTS: dict[str, dict[str, Any]] = {"plain": {"speculation": "off"}, "speculation": {}}


@dataclass(frozen=True)
class TimedStep:
    """One pass of the engine loop."""

    seconds: dict[str, float]  # by stage, see engine.metrics.STAGES
    num_decoded: int  # sequences that gained tokens
    num_emitted: int

    @property
    def overhead_seconds(self) -> float:
        return self.seconds["total"] - self.seconds["draft"] - self.seconds["verify"]


class StepRecorder:
    """Called after every step; keeps what the step added to the engine's totals."""

    def __init__(self, metrics: EngineMetrics) -> None:
        self.steps: list[TimedStep] = []
        self._metrics = metrics
        self._before = self._totals()

    def __call__(self) -> None:
        now, before = self._totals(), self._before
        self._before = now
        seconds = {stage: now.seconds[stage] - before.seconds[stage] for stage in STAGES}
        self.steps.append(
            TimedStep(
                seconds, now.num_decoded - before.num_decoded, now.num_emitted - before.num_emitted
            )
        )

    def _totals(self) -> TimedStep:
        metrics = self._metrics
        return TimedStep(
            dict(metrics.stage_seconds), metrics.num_rounds, metrics.num_emitted_tokens
        )

    def steady(self, num_sequences: int) -> list[TimedStep]:
        """Steps at whose start all sequences were decoding, and to the end of which they did."""
        return [
            step
            for before, step in pairwise(self.steps)
            if before.num_decoded == step.num_decoded == num_sequences
        ]


def measure_direct(deployment: Deployment, prompts: Sequence[Prompt], plan: Plan) -> Result:
    """Plain decoding against speculation, interleaved, at every number of sequences."""
    engine = LocalEngine(deployment)
    figures: dict[str, float] = {}
    records: list[Record] = []
    steps = len(plan.num_sequences) * len(VARIANTS) * (plan.num_repeats + 1)
    with progress_bar("direct runs", steps) as advance:
        for count in plan.num_sequences:
            batches = [
                prompt_texts(prompts, count, start=repeat * count)
                for repeat in range(plan.num_repeats + 1)
            ]
            runs = _interleaved_runs(engine, batches, plan.max_tokens, advance)
            records += [_record(count, name, _flat(steps)) for name, steps in runs.items()]
            figures |= _figures(count, runs)
    return Result(figures, {"direct stages: median ms of a step": records})


def _interleaved_runs(
    engine: LocalEngine,
    batches: Sequence[Sequence[str]],
    max_tokens: int,
    advance: Callable[[], None],
) -> dict[str, list[list[TimedStep]]]:
    """Steady steps by variant and batch; the first batch warms up and is dropped."""
    runs: dict[str, list[list[TimedStep]]] = {name: [] for name in VARIANTS}
    for texts in batches:
        for name, parameters in VARIANTS.items():
            recorder = StepRecorder(engine.metrics)
            requests = [
                engine.chat_request(
                    text, temperature=0, ignore_eos=True, max_tokens=max_tokens, **parameters
                )
                for text in texts
            ]
            engine.run(requests, after_step=recorder)
            runs[name].append(recorder.steady(len(texts)))
            advance()
    return {name: steps[1:] for name, steps in runs.items()}


def _flat(repeats: Sequence[Sequence[TimedStep]]) -> list[TimedStep]:
    return [step for steps in repeats for step in steps]


def _medians(steps: Sequence[TimedStep]) -> dict[str, float]:
    """Milliseconds by stage; "step" is the whole, "overhead" what is not draft or verify."""
    medians = {stage: 1e3 * median(step.seconds[stage] for step in steps) for stage in STAGES}
    medians["step"] = medians.pop("total")
    medians["overhead"] = 1e3 * median(step.overhead_seconds for step in steps)
    return medians


def _record(num_sequences: int, variant: str, steps: Sequence[TimedStep]) -> Record:
    return {
        "sequences": num_sequences,
        "decoding": variant,
        **{f"{name}_ms": value for name, value in _medians(steps).items()},
        "tokens_per_sequence": sum(t.num_emitted for t in steps) / (num_sequences * len(steps)),
        "steps": len(steps),
    }


def _figures(num_sequences: int, runs: dict[str, list[list[TimedStep]]]) -> dict[str, float]:
    figures = {
        f"{name}_ms_{num_sequences}": value
        for name, value in _medians(_flat(runs["speculation"])).items()
    }
    figures[f"plain_step_ms_{num_sequences}"] = _medians(_flat(runs["plain"]))["step"]
    figures[f"speedup_{num_sequences}"] = median(
        _tokens_per_second(fast) / _tokens_per_second(plain)
        for fast, plain in zip(runs["speculation"], runs["plain"], strict=True)
    )
    return figures


def _tokens_per_second(steps: Sequence[TimedStep]) -> float:
    """By the median step, so that a stall of the machine does not decide."""
    tokens_per_step = sum(t.num_emitted for t in steps) / len(steps)
    return tokens_per_step / median(t.seconds["total"] for t in steps)
