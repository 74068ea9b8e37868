"""What the real server says of itself: with a full queue, a dead stage, a hung one."""

import os
import signal

import pytest
from stubs import kill_stub, stubs
from waiting import wait_until
from wire import Stream

from canopy_client import Client, Health

pytestmark = pytest.mark.server

ENDLESS = {"temperature": 0, "ignore_eos": True, "max_tokens": 400}


def health(server) -> Health:
    with Client(server.grpc_url) as client:
        return client.health()


def becomes(server, status: str, timeout_s: float = 30.0) -> bool:
    return wait_until(lambda: health(server).status == status, timeout_s)


def test_a_full_queue_is_alive_and_says_so_without_standing_in_it(small_server):
    limit = small_server.max_running + small_server.max_waiting
    with Stream(small_server.grpc_url) as stream:
        for index in range(limit):
            stream.send("abc", request_id=str(index), **ENDLESS)
        assert becomes(small_server, "busy")
        found = health(small_server)
        assert (found.is_alive, found.is_ready) == (True, False)
        assert found.num_running + found.num_waiting > 0
        answers = stream.collect(limit, timeout_s=120)
    assert {answer.error for answer in answers.values()} == {None}
    assert becomes(small_server, "ready")


def test_a_stage_that_dies_while_nothing_runs_shows_and_comes_back(server):
    assert becomes(server, "ready")
    kill_stub(server, "tree_builder")
    assert wait_until(lambda: health(server).stages["tree_builder"] == "loading", timeout_s=30)
    assert health(server).is_ready  # decoding is plain meanwhile
    assert wait_until(lambda: health(server).stages["tree_builder"] == "ready", timeout_s=60)


def test_a_hung_stage_shows_and_is_replaced(server):
    assert becomes(server, "ready")
    (pid,) = stubs(server, "verifier")
    os.kill(pid, signal.SIGSTOP)
    assert wait_until(lambda: not health(server).is_ready, timeout_s=30)
    assert health(server).is_alive
    assert becomes(server, "ready", timeout_s=120)
    assert pid not in stubs(server, "verifier")
