import json
from dataclasses import replace

import pytest

from bench import __main__ as door
from bench.harness.benchmark import Benchmark, Result
from bench.registry import BENCHMARKS

RESULT = Result({"tau": 2.5}, {"a table": [{"policy": "chain", "tau": 2.5}]})


@pytest.fixture
def seen_options(monkeypatch):
    """Registers the benchmark `echo`, which keeps the options that it is given."""
    seen = []

    def run(options):
        seen.append(options)
        return RESULT

    monkeypatch.setitem(BENCHMARKS, "echo", Benchmark("echo", "keeps its options", run))
    return seen


def exit_status(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        door.main(arguments)
    return end.value.code


def test_help_lists_every_benchmark_with_its_description(capsys):
    assert exit_status("--help") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert {"acceptance", "engine_step"} <= set(BENCHMARKS)
    for benchmark in BENCHMARKS.values():
        assert f"{benchmark.name} {benchmark.description}" in text


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["acceptance", "--policies", "chain,nonsense"],
        ["acceptance", "--limit", "0"],
        ["acceptance", "--modes", "greedy"],
        ["engine_step", "--sequences", "1,x"],
    ],
)
def test_what_is_not_on_the_list_is_refused(arguments, capsys):
    assert exit_status(*arguments) == 2
    assert "usage: python -m bench" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "reason"),
    [("--prompts", "cannot be read"), ("--json", "no folder"), ("--deployment", "no deployment")],
)
def test_an_absent_file_is_a_clear_error(option, reason, tmp_path, seen_options, capsys):
    assert door.main(["echo", option, str(tmp_path / "absent" / "file")]) == 2
    assert reason in capsys.readouterr().err
    assert not seen_options


def test_a_piped_record_stays_on_one_line_however_wide(monkeypatch, capsys):
    record = {f"column_{number}": 1.0 + number for number in range(60)}
    result = Result({"tau": 2.5}, {"wide": [record]})
    monkeypatch.setitem(BENCHMARKS, "wide", Benchmark("wide", "is wide", lambda _: result))
    assert door.main(["wide"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum("column_0" in line and "column_59" in line for line in lines) == 1
    assert sum("1.000" in line and "60.000" in line for line in lines) == 1
    assert max(map(len, lines)) < 2000


def test_the_result_is_printed_and_written_with_the_machine(tmp_path, seen_options, capsys):
    path = tmp_path / "result.json"
    assert door.main(["echo", "--json", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "a table" in printed
    assert "2.500" in printed
    written = json.loads(path.read_text(encoding="utf-8"))
    assert set(written) == {"name", "figures", "details", "machine"}
    assert written["name"] == "echo"
    assert written["figures"] == RESULT.figures
    assert written["details"] == RESULT.details
    assert {"cpu", "cores", "versions"} <= set(written["machine"])
    assert "/" not in json.dumps(written["machine"])


def test_quick_takes_one_prompt_of_each_category(seen_options):
    assert door.main(["echo", "--quick"]) == 0
    assert door.main(["echo", "--limit", "20"]) == 0
    quick, limited = seen_options
    assert quick.is_quick
    assert len({prompt.category for prompt in quick.prompts}) == len(quick.prompts) == 9
    assert not limited.is_quick
    assert len(limited.prompts) == 20


@pytest.mark.parametrize(
    ("reads_profile", "options", "is_measured"),
    [(True, [], True), (True, ["--quick"], False), (False, [], False)],
)
def test_what_trees_cost_is_known_before_trees_are_raced(
    monkeypatch, seen_options, reads_profile, options, is_measured
):
    measured = []
    monkeypatch.setattr(door, "measure_if_outdated", lambda *asked: measured.append(asked))
    echo = replace(BENCHMARKS["echo"], reads_profile=reads_profile)
    monkeypatch.setitem(BENCHMARKS, "echo", echo)
    assert door.main(["echo", *options]) == 0
    assert len(seen_options) == 1
    assert measured == ([(None, seen_options[0].deployment)] if is_measured else [])
