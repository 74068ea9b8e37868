"""A rank that dies, hangs or never comes is reported, and no process is left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from ranks import is_running, within
from tiny_model import write_tiny_model
from verify_driver import Driver

from canopy.config import TargetConfig
from canopy.errors import InvalidDeployment, StageFailed
from canopy.sampling import SamplingParams
from canopy.verifier.tensor_parallel import layers
from canopy.verifier.tensor_parallel.decoder import ShardedDecoder, load_sharded

NOTICED_S = 30.0
HANG_S = 3.0


def target_of(folder: Path, num_ranks: int) -> TargetConfig:
    return TargetConfig(
        model=str(folder),
        dtype="float32",
        num_threads=1,
        tensor_parallel_size=num_ranks,
        worker_timeout_s=HANG_S,
    )


def assert_over(decoder: ShardedDecoder, pids: list[int]) -> None:
    with pytest.raises(StageFailed, match="verifier: "):
        decoder.new_cache(4, 4)
    assert within(NOTICED_S, lambda: not any(map(is_running, pids)))


def test_a_killed_worker_is_noticed_by_the_next_step(tiny_folder):
    decoder = load_sharded(target_of(tiny_folder, 3))
    decoder.new_cache(4, 4)
    pids = decoder.group.workers.pids
    os.kill(pids[1], signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(StageFailed, match="rank 2 ended with -9"):
        decoder.new_cache(4, 4)
    assert time.monotonic() - start < NOTICED_S
    assert_over(decoder, pids)


def test_a_killed_worker_is_noticed_while_nothing_is_asked(tiny_folder):
    decoder = load_sharded(target_of(tiny_folder, 2))
    pids = decoder.group.workers.pids
    time.sleep(HANG_S + 1)  # the pulse alone keeps the ranks together
    decoder.new_cache(4, 4)
    os.kill(pids[0], signal.SIGKILL)
    assert within(NOTICED_S, lambda: "ended with -9" in decoder.group.failure)
    assert_over(decoder, pids)


def test_a_hanging_worker_is_noticed_after_the_timeout(tiny_folder):
    decoder = load_sharded(target_of(tiny_folder, 2))
    pids = decoder.group.workers.pids
    os.kill(pids[0], signal.SIGSTOP)
    assert within(HANG_S + NOTICED_S, lambda: "hangs" in decoder.group.failure)
    assert_over(decoder, pids)


class BrokenCollective:
    """What an abort leaves of an asynchronous all-reduce: garbage, a lost rank, and no error."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def __call__(self, tensor: torch.Tensor) -> None:
        os.kill(self._pid, signal.SIGKILL)
        tensor.fill_(1e3)


def test_what_a_broken_collective_left_behind_reaches_no_text(tiny_folder, monkeypatch):
    decoder = load_sharded(target_of(tiny_folder, 2))
    driver = Driver(decoder=decoder)
    client = driver.add([5, 6, 7], SamplingParams(temperature=0.0, max_tokens=8))
    driver.step()
    emitted, sequence = list(client.emitted), driver.verifier._sequences[client.id]
    known, committed = list(sequence.token_ids), driver.verifier.blocks.num_committed(client.id)
    pids = decoder.group.workers.pids
    collectives = SimpleNamespace(all_reduce=BrokenCollective(pids[0]), gather=lambda *_: None)
    monkeypatch.setattr(layers, "dist", collectives)
    with pytest.raises(StageFailed, match="rank 1 ended with -9"):
        driver.step()
    assert client.emitted == emitted
    assert sequence.token_ids == known
    assert driver.verifier.blocks.num_committed(client.id) == committed
    assert_over(decoder, pids)


def test_a_failure_waits_for_no_collective_that_is_under_way(tiny_folder, monkeypatch):
    """Leaving a group in order would wait for them, and everybody for whoever does so."""
    decoder = load_sharded(target_of(tiny_folder, 2))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: time.sleep(60))
    pids = decoder.group.workers.pids
    os.kill(pids[0], signal.SIGKILL)
    assert within(NOTICED_S, lambda: "ended with -9" in decoder.group.failure)
    start = time.monotonic()
    assert_over(decoder, pids)
    assert time.monotonic() - start < NOTICED_S


def test_workers_end_with_a_rank_0_that_is_killed(tiny_folder):
    program = (
        "import json, sys, time\n"
        "from canopy.config import TargetConfig\n"
        "from canopy.verifier.tensor_parallel.decoder import load_sharded\n"
        "decoder = load_sharded(TargetConfig(**json.loads(sys.argv[1])))\n"
        "print(json.dumps(decoder.group.workers.pids), flush=True)\n"
        "time.sleep(60)\n"
    )
    target = {"model": str(tiny_folder), "dtype": "float32", "tensor_parallel_size": 2}
    command = [sys.executable, "-c", program, json.dumps(target)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as rank_0:
        pids = json.loads(rank_0.stdout.readline())
        assert all(map(is_running, pids))
        rank_0.kill()
    assert within(NOTICED_S, lambda: not any(map(is_running, pids)))


def test_a_rank_that_loads_another_model_is_refused(ranks, tiny_folder, tmp_path):
    other = write_tiny_model(tmp_path / "other", max_context=64)
    with pytest.raises(InvalidDeployment, match="rank 1 loaded another model"):
        ranks.load(tiny_folder, 2, tmp_path, "--model", str(other))


def test_a_rank_without_the_model_says_so(ranks, tiny_folder, tmp_path):
    with pytest.raises(InvalidDeployment, match=r"rank 1: .*nowhere"):
        ranks.load(tiny_folder, 2, tmp_path, "--model", str(tmp_path / "nowhere"))
