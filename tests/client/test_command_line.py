"""The command `canopy` as a user meets it."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from toy_service import becomes_idle
from typer.testing import CliRunner

from canopy.cli import app

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
    nobody = run("health", "--url=127.0.0.1:1")
    assert nobody.exit_code == 3
    assert "cannot be reached" in nobody.stderr


@pytest.mark.server
def test_a_chat_goes_on_after_a_refusal_and_knows_its_commands(url):
    lines = ["hello you", "[invalid_argument] no", "/reset", "/what", "again", "/quit", "never"]
    result = run("chat", url, typed="\n".join(lines))
    assert result.exit_code == 0
    assert result.stdout == "> hello you \n> > > Commands: /reset, /quit\n> again \n> "


@pytest.mark.server
def test_ctrl_c_cancels_the_request(url, toy_server):
    command = [CANOPY, "generate", "word " * 400, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.read(5) == "word "
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=10) == 130
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
