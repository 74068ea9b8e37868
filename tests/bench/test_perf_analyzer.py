"""What perf_analyzer writes becomes a table; the real one runs where it is installed already."""

import argparse
import json
import xml.etree.ElementTree as ElementTree

import pytest
from toy_service import WORD_S, write_toy_repository

from bench.harness.benchmark import Options
from bench.harness.plots import Panel, plot_panels
from bench.harness.prompts import Prompt
from bench.peers.arm import CannotRun
from bench.serving.perf_analyzer import Plan, goodput, record_of
from bench.serving.perf_analyzer_probe import Probe, ProbeResult
from bench.serving.perf_analyzer_tool import (
    Load,
    Outcome,
    PerfAnalyzer,
    SentRequest,
    binary,
    input_data,
    parse_export,
    parse_summary,
)
from canopy.config import Deployment
from canopy.server.process import ServerProcess
from canopy.server.runtime import with_free_ports

S = 1_000_000_000  # the export counts nanoseconds


def exported(sent: int, *received: int) -> dict:
    return {
        "timestamp": sent,
        "request_inputs": {},
        "response_timestamps": list(received),
        "response_outputs": [
            {"text_output": "a", "num_output_tokens": 1 + (index > 0)}
            for index, _ in enumerate(received)
        ],
    }


EXPORT = {
    "experiments": [
        {
            "experiment": {"mode": "concurrency", "value": 2},
            "requests": [
                exported(12 * S, 13 * S, 15 * S),
                exported(10 * S, 11 * S, 12 * S, 14 * S),
                exported(20 * S, 21 * S, 25 * S),
            ],
            "window_boundaries": [10 * S, 25 * S],
        }
    ],
    "version": "2.51.0",
}
SUMMARY = (
    "Concurrency,Inferences/Second,Client Send,p50 latency,p90 latency,p95 latency,p99 latency\n"
    "2,0.2,5,4000000,4900000,5000000,5000000\n"
)


def test_requests_of_an_export_come_in_the_order_sent():
    requests = parse_export(EXPORT)
    assert [one.sent_s for one in requests] == pytest.approx([10, 12, 20])
    assert requests[0].num_tokens == [1, 2, 2]
    with pytest.raises(KeyError):
        parse_export({"experiments": [{"requests": [{"timestamp": 1}]}]})


def test_tokens_after_the_last_sending_count_only_if_all_were_sent_at_once():
    requests = parse_export(EXPORT)
    assert goodput(requests) == pytest.approx((5 + 3) / (20 - 10))
    at_once = [SentRequest(0.0, [1.0, 10.0], [1, 9]), SentRequest(0.1, [1.0, 10.0], [1, 9])]
    assert goodput(at_once) == pytest.approx(20 / 10.0)


def test_a_record_tells_first_tokens_from_whole_answers():
    outcome = Outcome(parse_export(EXPORT), parse_summary(SUMMARY))
    probe = ProbeResult(3, first_token_s=0.5, inter_token_s=0.1, tokens_per_s=9.0)
    record = record_of("chain", Load("closed", 2, 3), outcome, probe)
    assert record["first_token_ms_p50"] == pytest.approx(1000)
    assert record["answer_ms_p99"] == pytest.approx(5000, rel=0.02)
    # (12-11 + 14-12) / 4, (15-13) / 2, (25-21) / 2
    assert record["inter_token_ms_p50"] == pytest.approx(1000)
    assert record["pa_p50_ms"] == 4000
    assert (record["own_first_token_ms"], record["own_inter_token_ms"]) == (500, 100)


def test_an_empty_summary_is_told():
    with pytest.raises(CannotRun, match="no summary"):
        parse_summary(SUMMARY.splitlines()[0])


def test_inputs_carry_the_chat_and_the_same_law_for_all():
    data = input_data(["one", 'tw"o'], {"max_tokens": 3})["data"]
    assert [json.loads(entry["messages"][0])[0]["content"] for entry in data] == ["one", 'tw"o']
    assert {entry["sampling_parameters"][0] for entry in data} == {'{"max_tokens": 3}'}


def test_loads_are_said_as_the_tool_wants_them():
    closed = Load("closed", 4, 24).options
    assert closed[:2] == ["--concurrency-range", "4"]
    assert closed[-2:] == ["--request-count", "24"]
    assert "--request-rate-range 0.5 --request-distribution poisson" in " ".join(
        Load("open", 0.5, 12).options
    )


def test_no_load_has_fewer_requests_than_streams():
    given = argparse.Namespace(concurrency=[1, 64], rates=[0.1], server=None, plot=None)
    options = Options(Deployment(), [Prompt("a", "b")], True, given)
    loads = Plan.of(options).loads
    assert [(one.kind, one.value) for one in loads] == [
        ("closed", 1),
        ("closed", 64),
        ("open", 0.1),
    ]
    assert all(one.num_requests >= max(one.value, 12) for one in loads)


def test_panels_are_drawn(tmp_path):
    records = [{"arm": arm, "value": v, "y": v} for arm in ("ar", "chain") for v in (1, 2)]
    plot_panels([Panel(records, "streams", "tokens", ("y",))] * 4, tmp_path / "p.svg")
    drawn = ElementTree.parse(tmp_path / "p.svg").getroot()
    assert len([e for e in drawn.iter() if e.get("id", "").startswith("axes_")]) == 4


@pytest.mark.server
@pytest.mark.skipif(
    not binary().exists(), reason="perf_analyzer is installed by `python -m bench perf_analyzer`"
)
@pytest.mark.parametrize("load", [Load("closed", 2, 6), Load("open", 5.0, 6)], ids=lambda o: o.kind)
def test_the_real_tool_times_every_response_of_a_stream(tmp_path, load):
    repository = write_toy_repository(tmp_path / "models")
    inputs, folder = tmp_path / "inputs.json", tmp_path / "out"
    inputs.write_text(json.dumps(input_data(["one two three", "four five six"], {})))
    folder.mkdir()
    process = ServerProcess(with_free_ports(Deployment()), tmp_path / "run", repository)
    with process as server, Probe(server.grpc_url, ["a b c d"], {}) as probe:
        outcome = PerfAnalyzer().run(server.grpc_url, "canopy", inputs, load, folder)
    assert len(outcome.requests) == load.num_requests
    assert all(one.num_tokens == [1, 1, 1] for one in outcome.requests)
    record = record_of("toy", load, outcome, probe.result)
    assert record["first_token_ms_p50"] >= 1e3 * WORD_S
    assert record["answer_ms_p50"] >= 3e3 * WORD_S
    assert record["own_inter_token_ms"] >= 0.9e3 * WORD_S
    # Its own "latency" is that of the whole answer.
    assert record["pa_p50_ms"] >= 3e3 * WORD_S
