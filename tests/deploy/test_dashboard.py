"""The dashboard is laid out, and reaches its data source the way the compose file provides it."""

import itertools
import json
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
GRAFANA = ROOT / "deploy" / "grafana"
DASHBOARD = json.loads((GRAFANA / "dashboards" / "canopy.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def read_yaml(path: Path) -> dict:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_no_two_panels_overlap_or_share_a_number():
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    for one, other in itertools.combinations([p["gridPos"] for p in DASHBOARD["panels"]], 2):
        apart_x = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        apart_y = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart_x or apart_y
    assert all(p["gridPos"]["x"] + p["gridPos"]["w"] <= 24 for p in DASHBOARD["panels"])


def test_every_query_follows_the_chosen_instances():
    for panel in PANELS:
        for target in panel["targets"]:
            assert target["expr"].count('instance=~"$instance"') == target["expr"].count("{"), (
                panel["title"]
            )


def test_panels_ask_the_data_source_that_is_provided():
    (source,) = read_yaml(GRAFANA / "provisioning" / "datasources" / "prometheus.yml")[
        "datasources"
    ]
    assert {panel["datasource"]["uid"] for panel in PANELS} == {source["uid"]}
    services = read_yaml(ROOT / "docker-compose.yml")["services"]
    host, port = source["url"].removeprefix("http://").split(":")
    assert services[host]["ports"] == [f"127.0.0.1:{port}:{port}"]


def test_dashboards_are_mounted_where_the_provider_looks():
    (provider,) = read_yaml(GRAFANA / "provisioning" / "dashboards" / "canopy.yml")["providers"]
    mounts = read_yaml(ROOT / "docker-compose.yml")["services"]["grafana"]["volumes"]
    assert f"./deploy/grafana/dashboards:{provider['options']['path']}:ro" in mounts


def test_prometheus_scrapes_the_server_of_the_compose_file():
    config = read_yaml(ROOT / "deploy" / "prometheus.yml")
    (job,) = config["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    host, port = target.split(":")
    services = read_yaml(ROOT / "docker-compose.yml")["services"]
    assert port in services[host]["expose"]
    mounts = [mount.split(":")[1] for mount in services["prometheus"]["volumes"]]
    for name in ("prometheus.yml", *config["rule_files"]):
        assert f"/etc/prometheus/{name}" in mounts
