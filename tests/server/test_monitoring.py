"""Whatever the dashboard, the alerts and the pages ask for is on a real server's metrics page."""

import json
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from waiting import wait_until
from wire import ask

from canopy.engine.metric_families import PREFIX, read_series
from canopy.engine.metrics import EngineMetrics

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "canopy.json"
PROMTOOL = shutil.which("promtool")
NAME = re.compile(r"\b(?:canopy|nv)_[a-z_]+\b")
GREEDY = {"temperature": 0, "ignore_eos": True}
DRAFTED = GREEDY | {"speculation": "topn", "node_budget": 8}  # whatever drafting costs here


def dashboard_queries() -> Iterator[str]:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel.get("targets", []))
    yield from (variable["definition"] for variable in dashboard["templating"]["list"])


def alert_queries() -> Iterator[str]:
    groups = yaml.safe_load((DEPLOY / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    yield from (rule["expr"] for group in groups for rule in group["rules"])


def page_queries() -> Iterator[str]:
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    asked = text.partition("## What to ask")[2].partition("\n## ")[0]
    yield from re.findall(r"\| `(.+)` \|$", asked, re.MULTILINE)


QUERIES = [*dashboard_queries(), *alert_queries(), *page_queries()]


@pytest.fixture(scope="module")
def page(shared_server) -> str:
    """The page once it tells of a few requests: it is published after their last responses."""

    def num_told() -> float:  # what the page refreshes last of all that only grows
        return shared_server.metrics()["canopy_request_seconds_count"]

    before = settled(shared_server)["canopy_request_seconds_count"]
    for prompt in ("abcabcabc", "hello"):
        assert ask(shared_server.grpc_url, prompt, max_tokens=96, **DRAFTED).error is None
    assert wait_until(lambda: num_told() == before + 2)
    assert shared_server.cache_is_free()
    with urllib.request.urlopen(shared_server.metrics_url, timeout=10) as response:
        return response.read().decode("utf-8")


def names_on(page: str) -> set[str]:
    return {re.split(r"[{ ]", line)[0] for line in page.splitlines() if not line.startswith("#")}


def test_every_metric_that_is_asked_for_exists(page):
    asked = {name for query in QUERIES for name in NAME.findall(query)}
    assert len(asked) > 25
    on_a_gpu_only = {name for name in asked if name.startswith("nv_gpu_")}
    assert asked - on_a_gpu_only <= names_on(page)


def test_every_family_of_the_engine_is_on_the_page(page):
    shown = {line.rsplit(" ", 1)[0] for line in page.splitlines() if line.startswith(PREFIX)}
    wanted = {_line(one.family, dict(one.labels)) for one in read_series(EngineMetrics())}
    assert shown == wanted


def _line(name: str, labels: dict[str, str]) -> str:
    inner = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return f"{name}{{{inner}}}" if inner else name


def settled(server) -> dict[str, float]:
    """The metrics of an idle server, once a publication has passed by without a change."""
    while True:
        before = server.metrics()
        time.sleep(0.5)
        if server.metrics() == before:
            return before


def test_histograms_follow_the_requests(server):
    before = settled(server)
    answer = ask(server.grpc_url, "abcabcabc", max_tokens=24, **GREEDY)
    assert server.cache_is_free()

    def gained(name: str) -> float:
        return server.metrics()[f"canopy_{name}"] - before[f"canopy_{name}"]

    assert wait_until(lambda: gained("request_seconds_count") == 1)
    assert gained("time_to_first_token_seconds_count") == 1
    assert gained('time_to_first_token_seconds_bucket{le="+Inf"}') == 1
    assert gained("inter_token_seconds_count") == answer.num_tokens - 1
    assert gained("acceptance_length_count") == answer.report["rounds"]
    assert gained("request_seconds_sum") >= gained("time_to_first_token_seconds_sum") > 0


def test_accepted_nodes_are_told_by_depth_and_rank(page):
    lines = dict(line.rsplit(" ", 1) for line in page.splitlines() if line.startswith(PREFIX))
    total = float(lines["canopy_accepted_tokens_total"])
    assert total > 0
    for kind in ("depth", "rank"):
        own = [float(v) for k, v in lines.items() if k.startswith(f"canopy_accepted_by_{kind}_")]
        assert sum(own) == total


@pytest.mark.skipif(PROMTOOL is None, reason="promtool (Debian: prometheus) is not installed")
def test_promtool_has_nothing_against_the_files():
    for check, name in (("config", "prometheus.yml"), ("rules", "alerts.yml")):
        command = [str(PROMTOOL), "check", check, str(DEPLOY / name)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(PROMTOOL is None, reason="promtool (Debian: prometheus) is not installed")
def test_promtool_parses_every_query(tmp_path):
    rules = [
        {"record": f"query_{number}", "expr": query.replace("$__rate_interval", "1m")}
        for number, query in enumerate(QUERIES)
        if not query.startswith("label_values")
    ]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    command = [str(PROMTOOL), "check", "rules", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
