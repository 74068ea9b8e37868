"""Ranks in other processes for the tests of this folder."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from canopy.config import TargetConfig
from canopy.verifier.tensor_parallel.decoder import ShardedDecoder, load_sharded

HERE = Path(__file__).parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_running(pid: int) -> bool:
    """Neither gone nor a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


class LoopingRanks:
    """Ranks 1 and 2, whose Python starts once."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._processes = [
            subprocess.Popen(
                [sys.executable, str(HERE / "looping_worker.py")],
                stdin=subprocess.PIPE,
                env=environment,
                text=True,
            )
            for _ in range(2)
        ]

    def load(
        self, model: Path, num_ranks: int, folder: Path, *options: str, dtype: str = "float32"
    ) -> ShardedDecoder:
        """Rank 0's decoder of a new life; caches go to `folder` at its end."""
        port = free_port()
        self._start(num_ranks, port, folder, options)
        return load_sharded(
            TargetConfig(
                model=str(model),
                dtype=dtype,
                num_threads=1,
                tensor_parallel_size=num_ranks,
                rendezvous=f"127.0.0.1:{port}",
            )
        )

    def _start(self, num_ranks: int, port: int, folder: Path, options: Sequence[str]) -> None:
        for rank, process in enumerate(self._processes[: num_ranks - 1], 1):
            arguments = ["--rendezvous", f"127.0.0.1:{port}", "--rank", str(rank)]
            arguments += ["--num-ranks", str(num_ranks), *options]
            life = {"arguments": arguments, "path": str(folder / f"{rank}.pt")}
            process.stdin.write(json.dumps(life) + "\n")
            process.stdin.flush()

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@dataclass
class Life:
    """One sharded model, from its loading to its end."""

    decoder: ShardedDecoder
    folder: Path
    num_ranks: int

    @staticmethod
    def of(
        ranks: LoopingRanks, model: Path, num_ranks: int, folder: Path, dtype: str = "float32"
    ) -> "Life":
        return Life(ranks.load(model, num_ranks, folder, dtype=dtype), folder, num_ranks)

    def end(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values that ranks 1.. held."""
        self.decoder.group.close()
        paths = [self.folder / f"{rank}.pt" for rank in range(1, self.num_ranks)]
        assert within(20, lambda: all(path.exists() for path in paths))
        time.sleep(0.1)
        return [torch.load(path) for path in paths]
