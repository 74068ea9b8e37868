"""NVIDIA's perf_analyzer: where it comes from, how it is called, and what it wrote.

    tritonclient 2.51 --pip install --target--> bin/perf_analyzer    (older than the project's own)
    libraries that it lacks ------------------> lib/                 (links into the server's wheel)

On a decoupled model its latency is that of a whole answer, though it says "first response"; its
export has the time of every response, and first-token and inter-token times are taken from there.
"""

import csv
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers.arm import CannotRun
from bench.peers.environment import peers_home

REQUIREMENT = "tritonclient==2.51.0"  # the newest whose binary runs with the libraries of Debian 12
_LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}
_TIMEOUT_S = 1800.0


@dataclass(frozen=True)
class Load:
    """Closed: so many requests are always under way. Open: so many are sent every second, at
    random moments (Poisson), whatever has been answered."""

    kind: str  # "closed" or "open"
    value: float
    num_requests: int

    @property
    def options(self) -> list[str]:
        """As perf_analyzer wants it said."""
        count = ["--request-count", str(self.num_requests)]
        if self.kind == "closed":
            # A thread walks through the prompts by itself: with one each they do not ask alike.
            threads = ["--max-threads", f"{self.value:g}"]
            return ["--concurrency-range", f"{self.value:g}", *threads, *count]
        poisson = ["--request-distribution", "poisson"]
        return ["--request-rate-range", f"{self.value:g}", *poisson, *count]


@dataclass(frozen=True)
class SentRequest:
    """One request of the export; times in seconds on one clock."""

    sent_s: float
    received_s: list[float]  # of every response
    num_tokens: list[int]  # of every response


@dataclass(frozen=True)
class Outcome:
    """What one run gave: the requests, and perf_analyzer's own summary."""

    requests: list[SentRequest]
    summary: dict[str, float]


def binary() -> Path:
    """Where it is, or would be installed: beside the peers."""
    return peers_home() / "perf_analyzer" / "packages" / "bin" / "perf_analyzer"


class PerfAnalyzer:
    """The binary, installed on first use. Raises CannotRun."""

    def __init__(self) -> None:
        self._binary = binary()
        packages = self._binary.parents[1]
        if not self._binary.exists():
            _install(packages)
        libraries = _link_libraries(packages.with_name("lib"))
        self._environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries)}

    def run(self, grpc_url: str, model: str, inputs: Path, load: Load, folder: Path) -> Outcome:
        """Load a server and wait for the end; what is written goes into an empty `folder`."""
        export, summary = folder / "export.json", folder / "summary.csv"
        files = ["--input-data", str(inputs), "--profile-export-file", str(export)]
        server = ["-m", model, "-i", "grpc", "--streaming", "-u", grpc_url]
        command = [str(self._binary), *server, *files, "-f", str(summary), *load.options]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, env=self._environment, timeout=_TIMEOUT_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CannotRun(f"perf_analyzer: {error}") from error
        if done.returncode != 0:
            said = (done.stderr + done.stdout).partition("Usage: ")[0].strip().splitlines()[-5:]
            raise CannotRun(f"perf_analyzer failed ({done.returncode}): {' '.join(said)}")
        return Outcome(
            parse_export(json.loads(export.read_text(encoding="utf-8"))),
            parse_summary(summary.read_text(encoding="utf-8")),
        )


def input_data(messages: Sequence[str], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The file of --input-data: every prompt as a chat, with the same sampling parameters."""
    return {
        "data": [
            {
                "messages": [json.dumps([{"role": "user", "content": text}])],
                "stream": [True],
                "return_num_output_tokens": [True],
                "sampling_parameters": [json.dumps(dict(parameters))],
            }
            for text in messages
        ]
    }


def parse_export(export: dict[str, Any]) -> list[SentRequest]:
    """The requests of a profile export, in the order sent. Raises KeyError on another format."""
    requests = [one for part in export["experiments"] for one in part["requests"]]
    sent = [
        SentRequest(
            1e-9 * one["timestamp"],
            [1e-9 * at for at in one["response_timestamps"]],
            [int(output["num_output_tokens"]) for output in one["response_outputs"]],
        )
        for one in requests
    ]
    return sorted(sent, key=lambda one: one.sent_s)


def parse_summary(text: str) -> dict[str, float]:
    """The numbers of the first line of the CSV by the names in its head."""
    head, *lines = csv.reader(text.splitlines())
    if not lines:
        raise CannotRun("perf_analyzer wrote no summary")
    return {name: float(value) for name, value in zip(head, lines[0], strict=False) if value}


def _install(folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--quiet"]
    command += ["--target", str(folder), REQUIREMENT]
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
        raise CannotRun(f"pip could not install {REQUIREMENT}")


def _link_libraries(folder: Path) -> Path:
    """Two libraries that Debian may lack and the wheel of the server carries."""
    spec = importlib.util.find_spec("pytriton")
    if spec is None or spec.origin is None:
        raise CannotRun("nvidia-pytriton, whose libraries perf_analyzer needs, is not installed")
    carried = Path(spec.origin).parents[1] / "nvidia_pytriton.libs"
    folder.mkdir(parents=True, exist_ok=True)
    for name, pattern in _LIBRARIES.items():
        found = next(carried.glob(pattern), None)
        if found is None:
            raise CannotRun(f"{carried} has no {pattern}")
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(found)
    return folder
