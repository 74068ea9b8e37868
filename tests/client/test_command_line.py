"""The command `canopy` as a user meets it."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest
from toy_service import ENDLESS, becomes_idle
from typer.testing import CliRunner

from canopy.cli import app
from canopy.cli.chat import Conversation
from canopy.cli.live import Meter
from canopy_client import Chunk, Completion, Health

CANOPY = Path(sys.executable).with_name("canopy")


def run(*arguments: str, typed: str = ""):
    return CliRunner().invoke(app, arguments, input=typed)


@pytest.fixture
def url(toy_server):
    return f"--url={toy_server.grpc_url}"


@pytest.mark.parametrize(
    "command", ["serve", "generate", "chat", "health", "fetch-model", "worker"]
)
def test_help_shows_an_example(command):
    result = run(command, "--help")
    assert result.exit_code == 0
    assert f"canopy {command}" in result.output.replace("\n", " ")


def test_help_imports_nothing_heavy():
    program = (
        "import sys; from canopy.cli import app; "
        "print({'torch', 'numba', 'grpc', 'transformers', 'numpy'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout.strip() == "set()"


@pytest.mark.server
def test_generate_prints_the_text_alone(url):
    result = run("generate", "one two three", url)
    assert (result.exit_code, result.stdout) == (0, "one two three \n")


@pytest.mark.server
def test_given_flags_travel_zero_included_and_others_do_not(url):
    flags = ["-t", "0", "--seed", "0", "--stop", "a", "--stop", "b", "--speculation", "off"]
    result = run("generate", "--json", "--raw", "x", url, *flags)
    sent = json.loads(result.stdout)["speculation"]
    assert sent == {"temperature": 0, "seed": 0, "stop": ["a", "b"], "speculation": "off"}


@pytest.mark.server
def test_a_prompt_may_come_from_standard_input(url):
    assert run("generate", "-", url, typed="from a pipe").stdout == "from a pipe \n"


@pytest.mark.server
def test_statistics_go_to_standard_error(url):
    result = run("generate", "one two", url, "--stats", "--seed", "5")
    assert result.stdout == "one two \n"
    assert result.stderr == "7 tokens in, 2 out (length); seed 5\n"


@pytest.mark.server
def test_a_refused_request_ends_with_its_reason(url):
    result = run("generate", "[invalid_argument] seed must be small", url)
    assert (result.exit_code, result.stderr) == (1, "canopy: seed must be small\n")


@pytest.mark.server
def test_health_tells_the_server_from_nobody(url):
    assert run("health", url).exit_code == 0
    assert run("health", url, "--ready").exit_code == 0
    nobody = run("health", "--url=127.0.0.1:1")
    assert nobody.exit_code == 3
    assert "cannot be reached" in nobody.stderr


@pytest.mark.parametrize(
    ("found", "codes"),
    [
        ({}, [0, 0]),
        ({"is_ready": False, "status": "busy", "reason": "the queue is full"}, [0, 3]),
        ({"is_ready": False, "is_alive": False, "status": "broken", "reason": "?"}, [3, 3]),
    ],
)
def test_a_full_queue_is_alive_and_not_ready(monkeypatch, found, codes):
    monkeypatch.setattr("canopy_client.Client.health", lambda self: Health("2.0", 1.0, **found))
    results = [run("health", *flags) for flags in ([], ["--ready"])]
    assert [result.exit_code for result in results] == codes
    assert results[0].stdout.startswith(found.get("status", "ready"))


@pytest.mark.server
def test_health_for_scripts(url):
    found = json.loads(run("health", url, "--json").stdout)
    assert found["server_version"].startswith("2.")
    assert found["latency_ms"] > 0


@pytest.mark.server
def test_every_command_speaks_http_too(toy_server):
    url = f"--url={toy_server.http_url}"
    assert run("generate", "one two", url).stdout == "one two \n"
    listed = run("models", url).stdout
    assert "canopy  version 1  READY" in listed
    assert "serving toy, context of 99 tokens" in listed
    assert "temperature 0.2, top_p 0.9" in listed
    misspelt = run("generate", "one two", "--url=ftp://x")
    assert (misspelt.exit_code, misspelt.stderr[:14]) == (2, "canopy: ftp://")


def test_models_of_this_machine_are_told_ready_or_not(tmp_path, monkeypatch):
    monkeypatch.setenv("CANOPY_HOME", str(tmp_path))
    (listed,) = json.loads(run("models", "--json").stdout)["models"]
    assert listed["name"] == "smollm2-135m-instruct"
    assert listed["folder"].startswith(str(tmp_path))
    assert listed["fault"]
    assert listed["fault"] in run("models").stdout


@pytest.mark.server
def test_a_chat_goes_on_after_a_refusal_and_knows_its_commands(url):
    lines = ["hello you", "[invalid_argument] no", "/reset", "/what", "again", "/quit", "never"]
    result = run("chat", url, typed="\n".join(lines))
    assert result.exit_code == 0
    assert result.stdout == "> hello you \n> > > Commands: /reset, /stats, /quit\n> again \n> "
    assert result.stderr.startswith(
        f"Talking with the model canopy at {url.partition('=')[2]}. /quit"
    )


@pytest.mark.server
def test_chat_tells_the_numbers_of_the_last_answer(url):
    lines = ["/stats", "hello you", "/stats", "/reset", "/stats"]
    answers = run("chat", url, "--seed", "5", typed="\n".join(lines)).stdout.split("> ")
    assert answers[1] == answers[5] == "no answer yet\n"
    assert answers[3] == "7 tokens in, 2 out (length); seed 5; 2 messages\n"


def test_a_chat_sends_its_history_and_forgets_it_when_told():
    sent = []

    class Recording:
        def stream_chat(self, messages, **options):
            sent.append([message["content"] for message in messages])
            return Answered(f"answer {len(sent)}")

    conversation = Conversation(Recording(), {}, "be brief")
    conversation.say("one")
    conversation.say("two")
    conversation.reset()
    conversation.say("three")
    assert sent == [
        ["be brief", "one"],
        ["be brief", "one", "answer 1", "two"],
        ["be brief", "three"],
    ]


class Answered(AbstractContextManager):
    """A stream that has ended."""

    def __init__(self, text: str) -> None:
        self.completion = Completion(text, "stop", 1, 1, {})

    def __iter__(self):
        return iter(())

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.server
def test_a_terminal_shows_the_numbers_in_its_last_row(toy_server):
    reply = in_terminal([CANOPY, "generate", "word " * 40, f"--url={toy_server.grpc_url}"])
    assert reply.count("word ") >= 40
    assert "\x1b[1;23r" in reply  # the last of 24 rows is left out of the scrolling
    shown = re.findall(r"(\d+) tokens · ([\d.]+) tokens/s", reply)
    assert 1 < int(shown[-1][0]) <= 40
    assert float(shown[-1][1]) > 0
    assert reply.rindex("\x1b[r") > reply.rindex("tokens/s")


def in_terminal(command: list) -> str:
    """Everything a command prints on a terminal of 24 rows."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("LINES", "COLUMNS")}
    with subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=follower, env=environment
    ) as process:
        os.close(follower)
        output = b""
        with suppress(OSError):  # the end of a terminal
            while data := os.read(leader, 4096):
                output += data
        assert process.wait(timeout=10) == 0
    os.close(leader)
    return output.decode()


def test_the_meter_counts_rounds_where_they_are_traced():
    meter = Meter()
    drafted = {"token_ids": [1, 2, 3, 4], "accepted": [1, 3]}
    meter.add(Chunk("a", 1, 5, None, None, False), 10.0)
    meter.add(Chunk("b", 3, 5, None, None, False, [drafted]), 10.5)
    meter.add(Chunk("c", 2, 5, None, None, False, [drafted | {"accepted": []}]), 11.0)
    assert meter.line() == ("6 tokens · 5.0 tokens/s · acceptance length 2.00 · tree of 3.0 nodes")


def listen_to_ctrl_c() -> None:
    """A shell starts background jobs deaf to it, and the tests may be one."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.server
def test_ctrl_c_cancels_the_request(url, toy_server):
    command = [CANOPY, "generate", ENDLESS, url]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, preexec_fn=listen_to_ctrl_c
    ) as process:
        assert process.stdout.read(5) == "word "
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    assert becomes_idle(toy_server.server)


@pytest.mark.parametrize(
    ("text", "message"),
    [("[tree]\nbudget = 3", "unknown key tree.budget"), ("[oak]", "unknown table [oak]")],
)
def test_serve_refuses_a_deployment_it_does_not_understand(tmp_path, text, message):
    (tmp_path / "d.toml").write_text(text)
    result = subprocess.run(
        [CANOPY, "serve", "--config", tmp_path / "d.toml"], capture_output=True, text=True
    )
    assert result.returncode == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_bench_runs_a_benchmark_of_the_checkout(tmp_path):
    def canopy_bench(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [CANOPY, "bench", *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)

    assert "acceptance length" in canopy_bench("--help").stdout
    refused = canopy_bench("acceptance", "--prompts", "none.jsonl")
    assert refused.returncode == 2
    assert "none.jsonl" in refused.stderr
