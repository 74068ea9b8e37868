"""deploy/kubernetes.yml: what must be over before what begins."""

from pathlib import Path
from typing import Any

import yaml

from canopy.deployment_file import load_deployment

ROOT = Path(__file__).parents[2]


def pod() -> dict[str, Any]:
    documents = yaml.safe_load_all((ROOT / "deploy/kubernetes.yml").read_text(encoding="utf-8"))
    deployment = next(document for document in documents if document["kind"] == "Deployment")
    return deployment["spec"]["template"]["spec"]


def container(name: str) -> dict[str, Any]:
    return next(c for c in pod()["containers"] if c["name"] == name)


def pre_stop_s(name: str) -> int:
    program, seconds = container(name)["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep"
    return int(seconds)


def test_the_server_admits_requests_until_the_gateway_takes_none():
    command = container("gateway")["command"]
    drain_s = int(command[command.index("--drain") + 1])
    assert pre_stop_s("triton") > pre_stop_s("gateway") + drain_s


def test_the_pod_is_given_the_time_that_its_server_takes_to_drain():
    command = container("triton")["command"]
    deployment = load_deployment(ROOT / command[command.index("--config") + 1])
    needed_s = pre_stop_s("triton") + deployment.server.drain_timeout_s
    assert pod()["terminationGracePeriodSeconds"] > needed_s
