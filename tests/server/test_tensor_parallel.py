"""A target sharded over two ranks, behind the real server."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from replay import assert_same_or_tied
from tested_server import TestedServer
from transformers import AutoModelForCausalLM
from waiting import wait_until
from wire import Stream, ask

from canopy.config import CacheConfig, Deployment, LimitsConfig, TargetConfig
from canopy.server.runtime import with_free_ports
from canopy.text.tokenizer import Tokenizer

pytestmark = pytest.mark.server

GREEDY = {"temperature": 0, "ignore_eos": True, "max_tokens": 200}
PROMPT = "abcabc"


@pytest.fixture(scope="module")
def sharded_server(tiny_folder: Path, tmp_path_factory) -> Iterator[TestedServer]:
    deployment = Deployment(
        target=TargetConfig(
            model=str(tiny_folder), dtype="float32", num_threads=1, tensor_parallel_size=2
        ),
        cache=CacheConfig(num_tokens=4096),
        limits=LimitsConfig(max_step_tokens=96),
    )
    with TestedServer(with_free_ports(deployment), tmp_path_factory.mktemp("sharded")) as server:
        yield server
        pids = worker_pids(server)
    assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def worker_pids(server: TestedServer) -> list[int]:
    """Living workers of this server."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and server.owns(int(folder.name)):
            try:
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if b"canopy.verifier.tensor_parallel.worker" in command:
                found.append(int(folder.name))
    return found


def test_a_killed_worker_is_replaced_and_no_stream_breaks(sharded_server, tiny_folder):
    expected = ask(sharded_server.grpc_url, PROMPT, **GREEDY)
    assert expected.error is None
    (worker,) = worker_pids(sharded_server)
    text = ""
    with Stream(sharded_server.grpc_url) as stream:
        stream.send(PROMPT, request_id="only", **GREEDY)
        for number, (_, outputs, error, is_last) in enumerate(stream.responses()):
            assert error is None
            text += outputs.get("text_output", "")
            if number == 0:
                os.kill(worker, signal.SIGKILL)
            if is_last:
                break
    assert_same_or_tied(tiny_folder, PROMPT, GREEDY, expected.text, text)
    (fresh,) = worker_pids(sharded_server)
    assert fresh != worker
    failures = 'canopy_stage_failures_total{stage="verifier"}'
    assert wait_until(lambda: sharded_server.metrics()[failures] == 1)
    assert sharded_server.cache_is_free()


@pytest.mark.parametrize("prompt", [PROMPT, "the river "])
def test_its_text_is_that_of_transformers(sharded_server, tiny_folder, prompt):
    tokenizer, model = Tokenizer(tiny_folder), AutoModelForCausalLM.from_pretrained(tiny_folder)
    tokens = torch.tensor([tokenizer.encode(prompt)])
    length = {"max_new_tokens": 60, "min_new_tokens": 60}
    whole = model.generate(tokens, do_sample=False, eos_token_id=None, **length)[0].tolist()
    plain = tokenizer.decode(whole[tokens.shape[1] :])
    text = ask(sharded_server.grpc_url, prompt, **GREEDY | {"max_tokens": 60}).text
    assert_same_or_tied(tiny_folder, prompt, GREEDY, plain, text)
