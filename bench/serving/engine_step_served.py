"""A step on the real server, from what the server's own counters say.

    BLS call = a stage's time as the engine sees it, less what the server counts as that stage's
            compute, by call: packing, queue, crossing and unpacking of a plain model's request
    builder_calls = calls of the build stage by step: its prices stand for some steps, in which
            trees are chosen without a BLS call
    send = commit with one response per step and sequence, less commit with one at the end;
            responses leave on a thread of their own, so this is what handing them over costs

Counters give means over a run, its steps of prefill and clean-up included; they are read while
the server is idle. Streamed and whole answers alternate; the first pair warms the caches and is
dropped. What the server counts as compute includes the crossing into the model's process.
"""

import json
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.harness.benchmark import Record, Result
from bench.harness.prompts import Prompt
from bench.harness.server_metrics import scrape_idle
from bench.serving.engine_step_plan import Plan, prompt_texts
from canopy.addresses import open_directly
from canopy.config import Deployment
from canopy.engine.metrics import STAGES
from canopy.metrics_page import MetricsPage
from canopy.progress import progress_bar
from canopy.server.process import ServerProcess
from canopy.server.runtime import with_free_ports

# The plain models behind the stages that are called in every step.
_MODELS = {"draft": "draft", "verify": "verifier"}
_STYLES = {"streamed": True, "whole": False}
_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Run:
    """What the counters gained while one set of requests was answered."""

    before: MetricsPage
    after: MetricsPage

    def gained(self, name: str, **labels: str) -> float:
        return self.after.total(name, **labels) - self.before.total(name, **labels)

    @property
    def num_steps(self) -> float:
        return self.gained("canopy_steps_total")

    def stage_ms(self, stage: str) -> float:
        """Mean of a step."""
        return 1e3 * self.gained("canopy_stage_seconds_total", stage=stage) / self.num_steps

    def bls_call_ms(self, stage: str) -> float:
        """Mean of a call."""
        model = _MODELS[stage]
        compute_s = 1e-6 * self.gained("nv_inference_compute_infer_duration_us", model=model)
        seconds = self.gained("canopy_stage_seconds_total", stage=stage) - compute_s
        num_calls = self.gained("nv_inference_exec_count", model=model)
        return 1e3 * seconds / max(num_calls, 1)

    @property
    def builder_calls(self) -> float:
        """Of a step."""
        return self.gained("nv_inference_exec_count", model="tree_builder") / self.num_steps


Runs = dict[str, list[Run]]  # by style of answer


def measure_served(deployment: Deployment, prompts: Sequence[Prompt], plan: Plan) -> Result:
    """Start a server of `deployment` on free ports, measure, stop it. Raises CannotStart."""
    figures: dict[str, float] = {}
    records: list[Record] = []
    steps = len(plan.num_sequences) * len(_STYLES) * (plan.num_repeats + 1)
    with (
        TemporaryDirectory() as folder,
        ServerProcess(with_free_ports(deployment), Path(folder)) as server,
        progress_bar("served runs", steps) as advance,
    ):
        for count in plan.num_sequences:
            texts = prompt_texts(prompts, count)
            runs = _interleaved_runs(server, texts, plan, advance)
            records += [_record(count, style, runs[style]) for style in _STYLES]
            figures |= _figures(count, runs)
    return Result(figures, {"on the server: ms of a step, and of a BLS call": records})


def _interleaved_runs(
    server: ServerProcess, texts: Sequence[str], plan: Plan, advance: Callable[[], None]
) -> Runs:
    runs: Runs = {style: [] for style in _STYLES}
    for _ in range(plan.num_repeats + 1):
        for style, is_streamed in _STYLES.items():
            before = scrape_idle(server.metrics_url, 1)  # the one that asked whether it is up
            num_finished = int(before.total("canopy_requests_finished_total")) + len(texts)
            _answer_all(server, [_body(text, is_streamed, plan.max_tokens) for text in texts])
            runs[style].append(Run(before, scrape_idle(server.metrics_url, num_finished)))
            advance()
    return {style: repeats[1:] for style, repeats in runs.items()}


def _body(text: str, is_streamed: bool, max_tokens: int) -> bytes:
    options = {"temperature": 0, "ignore_eos": True, "max_tokens": max_tokens}
    return json.dumps(
        {
            "messages": json.dumps([{"role": "user", "content": text}]),
            "stream": is_streamed,
            "sampling_parameters": json.dumps(options),
        }
    ).encode()


def _answer_all(server: ServerProcess, bodies: Sequence[bytes]) -> None:
    """All at once, each on a connection of its own, read to the end."""

    def answer(body: bytes) -> None:
        url = f"{server.http_url}/v2/models/canopy/generate_stream"
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with open_directly(request, timeout=_TIMEOUT_S) as response:
            response.read()

    with ThreadPoolExecutor(len(bodies)) as pool:
        list(pool.map(answer, bodies))


def _medians(runs: Sequence[Run]) -> dict[str, float]:
    """Milliseconds; the names of `engine_step`, and a BLS call for each stage."""
    medians = {f"{s}_ms": median(run.stage_ms(s) for run in runs) for s in STAGES}
    medians["step_ms"] = medians.pop("total_ms")
    medians |= {f"{s}_bls_call_ms": median(run.bls_call_ms(s) for run in runs) for s in _MODELS}
    return medians


def _record(num_sequences: int, style: str, runs: Sequence[Run]) -> Record:
    num_steps = int(sum(run.num_steps for run in runs))
    return {
        "sequences": num_sequences,
        "answers": style,
        **_medians(runs),
        "builder_calls": median(run.builder_calls for run in runs),
        "overhead_ms": median(_overhead_ms(run) for run in runs),
        "steps": num_steps,
    }


def _overhead_ms(run: Run) -> float:
    return run.stage_ms("total") - run.stage_ms("draft") - run.stage_ms("verify")


def _figures(num_sequences: int, runs: Runs) -> dict[str, float]:
    """`send_ms` is what one response costs: the paired difference, by sequence."""
    streamed, whole = runs["streamed"], runs["whole"]
    call_ms = [run.bls_call_ms(stage) for run in streamed for stage in _MODELS]
    send_ms = median(
        (a.stage_ms("commit") - b.stage_ms("commit")) / num_sequences
        for a, b in zip(streamed, whole, strict=True)
    )
    return {
        f"served_step_ms_{num_sequences}": median(run.stage_ms("total") for run in streamed),
        f"served_overhead_ms_{num_sequences}": median(_overhead_ms(run) for run in streamed),
        f"bls_call_ms_{num_sequences}": median(call_ms),
        f"send_ms_{num_sequences}": send_ms,
    }
