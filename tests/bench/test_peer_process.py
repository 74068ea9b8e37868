"""A peer's process, and what a process group holds and uses."""

import os
import sys
from pathlib import Path

import pytest

from bench.peers.arm import CannotRun
from bench.peers.process import PeerProcess, peer_environment
from bench.peers.process_group import MachineLoad, group_memory, parse_mappings
from canopy.server.runtime import THREAD_VARIABLES

ECHO = """
import json, sys
print(json.dumps(json.loads(sys.argv[1])["greeting"]), flush=True)
for line in sys.stdin:
    if json.loads(line) == {"op": "fail"}:
        sys.exit("the last words")
    print(line, end="", flush=True)
"""


@pytest.fixture
def echo(tmp_path):
    script = tmp_path / "echo.py"
    script.write_text(ECHO, encoding="utf-8")
    settings = {"greeting": "hello"}
    return PeerProcess(Path(sys.executable), script, settings, tmp_path / "echo.log")


def test_a_peer_process_is_spoken_to_and_gone_afterwards(echo):
    with echo as process:
        assert process.receive(20.0) == "hello"
        process.send({"op": "echo"})
        assert process.receive(20.0) == {"op": "echo"}
        group = process.group
        assert group_memory(group).rss_mb > 1.0
    assert group_memory(group).rss_mb == 0.0


def test_the_last_words_of_a_peer_are_the_reason(echo):
    with echo as process:
        process.receive(20.0)
        process.send({"op": "fail"})
        with pytest.raises(CannotRun, match="exit status 1: the last words"):
            process.receive(20.0)


def test_a_silent_peer_is_given_up(echo):
    with echo as process:
        process.receive(20.0)
        with pytest.raises(CannotRun, match="no answer within"):
            process.receive(0.01)


def test_peers_have_no_thread_settings_of_our_server():
    assert set(THREAD_VARIABLES) <= set(os.environ)
    assert not set(THREAD_VARIABLES) & set(peer_environment())


SMAPS = """1000-2000 r--p 00000000 fe:00 77   /lib/one name
Size:                 40 kB
Rss:                  40 kB
Anonymous:             0 kB
2000-3000 rw-p 00001000 fe:00 77   /lib/one name
Rss:                  10 kB
Anonymous:            10 kB
VmFlags: rd wr mr
3000-4000 rw-p 00000000 00:00 0
Rss:                   5 kB
Anonymous:             5 kB
"""


def test_pages_of_files_are_told_from_a_processs_own():
    mappings = parse_mappings(SMAPS)
    assert mappings.rss_kb == 55
    assert mappings.anonymous_kb == 15
    assert +mappings.files_kb == {"fe:00 77": 40}


def test_a_process_alone_needs_what_is_resident():
    memory = group_memory(os.getpgid(0))
    assert 0 < memory.resident_mb <= memory.rss_mb


def test_our_own_work_is_not_elsewhere():
    load = MachineLoad([os.getpgid(0)])
    assert load.cores_elsewhere() >= 0.0
