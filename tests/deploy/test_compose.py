"""docker-compose.yml as docker-compose itself reads it, and the Dockerfile's layers."""

import ast
import importlib.util
import re
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from canopy.deployment_file import load_deployment

ROOT = Path(__file__).parents[2]
COMPOSE = shutil.which("docker-compose")
PROFILES = ("cpu", "gpu", "perf")
TRITON = ("triton", "triton-gpu")
LASTING = (*TRITON, "gateway", "prometheus", "grafana")

needs_compose = pytest.mark.skipif(COMPOSE is None, reason="docker-compose is not installed")


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    return composed(*PROFILES)


def composed(*profiles: str) -> dict[str, dict[str, Any]]:
    options = [option for profile in profiles for option in ("--profile", profile)]
    command = [str(COMPOSE), "--file", str(ROOT / "docker-compose.yml"), *options, "config"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return yaml.safe_load(done.stdout)["services"]


@needs_compose
@pytest.mark.parametrize(
    ("profile", "names"),
    [
        ("cpu", {"triton", "gateway", "prometheus", "grafana"}),
        ("gpu", {"triton-gpu", "gateway", "prometheus", "grafana"}),
        ("perf", {"perf"}),
    ],
)
def test_a_profile_starts_its_services(services, profile, names):
    assert {name for name, own in services.items() if profile in own["profiles"]} == names


@needs_compose
def test_every_lasting_service_restarts_and_is_watched(services):
    for name in LASTING:
        assert services[name]["restart"] == "unless-stopped", name
        assert services[name]["healthcheck"]["test"], name
    assert services["perf"]["restart"] == "no"


@needs_compose
def test_no_container_may_write_its_root_or_gain_rights(services):
    for name, service in services.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert "build" in service or service["user"] not in ("0", "root"), name


@needs_compose
def test_the_triton_servers_ports_stay_inside(services):
    published = {name: own["ports"] for name, own in services.items() if "ports" in own}
    assert set(published) == {"gateway", "prometheus", "grafana"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)


@needs_compose
def test_the_gpu_server_takes_every_gpu_and_room_to_work(services):
    service = services["triton-gpu"]
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert device["count"] == "all"
    assert service["shm_size"] == "1gb"
    assert service["networks"]["default"]["aliases"] == ["triton"]


@needs_compose
def test_the_gpu_server_stands_on_the_vendors_image_or_another_that_is_named(monkeypatch):
    def build() -> dict[str, Any]:
        return composed("gpu")["triton-gpu"]["build"]

    assert build()["target"] == "server-gpu"
    assert build()["args"]["BASE_IMAGE"].startswith("nvcr.io/nvidia/tritonserver:")
    monkeypatch.setenv("TRITON_IMAGE", "registry.example/triton:1")
    assert build()["args"]["BASE_IMAGE"] == "registry.example/triton:1"


@needs_compose
def test_the_gateways_health_is_asked_past_a_proxy(services, monkeypatch):
    class Healthy(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            return

    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with HTTPServer(("127.0.0.1", 0), Healthy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        _, _, option, program = services["gateway"]["healthcheck"]["test"]
        program = program.replace("8080", str(server.server_address[1]))
        subprocess.run([sys.executable, option, program], check=True, timeout=60)
        server.shutdown()


@needs_compose
def test_what_is_mounted_and_served_is_there(services):
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert not source.startswith("/") or Path(source).exists(), source
    for name in TRITON:
        command = services[name]["command"]
        assert command[:3] == ["canopy", "serve", "--config"]
        assert load_deployment(ROOT / command[3]).server.host == "0.0.0.0"


@needs_compose
def test_every_image_is_built_from_a_target_by_a_user_without_rights(services):
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    stages = {m[2]: (m[1], m[3]) for m in re.finditer(STAGE, text)}
    targets = {own["build"]["target"] for own in services.values() if "build" in own}
    assert targets == {"server", "server-gpu", "gateway", "perf"}
    for target in targets:
        users = re.findall(r"^USER (\w+)$", stages[target][1], re.MULTILINE)
        assert users[-1] == "canopy", target


STAGE = r"(?ms)^FROM (\S+) AS ([\w-]+)$(.*?)(?=^FROM |\Z)"


def load_pins() -> Any:
    spec = importlib.util.spec_from_file_location("pins", ROOT / "deploy" / "pins.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pins_are_those_of_the_project():
    pins = load_pins().pins
    everything = pins(["."])
    assert "torch==2.13.0" in everything
    assert set(everything) < set(pins([".[plots]"]))
    assert "tritonclient[grpc]==2.73.0" in pins(["client/canopy_client"])
    with pytest.raises(ValueError, match="no extra"):
        pins([".[no-such-extra]"])


def test_an_extra_brings_those_that_it_names():
    pins = load_pins().pins
    assert set(pins([".[plots]"])) < set(pins([".[dev]"]))


DISTRIBUTIONS = (".[dev]", "client/canopy_client", "client/canopy_gateway")


def test_every_pin_lies_in_the_range_of_its_distribution():
    module = load_pins()
    versions = module.constraints()
    named = set()
    for distribution in DISTRIBUTIONS:
        for line in module._lines(distribution):
            requirement = Requirement(line)
            named.add(requirement.name)
            if requirement.name in versions:
                assert versions[requirement.name] in requirement.specifier, line
    assert set(versions) <= named


def test_every_layer_of_the_dockerfile_asks_for_pins_that_exist():
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    asked = re.findall(r"deploy/pins\.py([^>\n]*)>", text)
    assert len(asked) == 2
    for arguments in asked:
        assert load_pins().pins(arguments.replace('"', "").split())


@pytest.mark.parametrize("name", ["canopy_client", "canopy_gateway"])
def test_a_distribution_names_whatever_its_code_imports(name):
    requirements = {Requirement(line).name for line in load_pins()._lines(f"client/{name}")}
    brought = {
        "grpc": "tritonclient",
        "starlette": "fastapi",
        "pydantic": "fastapi",
        "pydantic_core": "fastapi",
    }
    imported = {
        module
        for path in (ROOT / "client" / name).rglob("*.py")
        for module in imports_of(path)
        if module not in sys.stdlib_module_names and module != name
    }
    assert {brought.get(m, m).replace("_", "-") for m in imported} <= requirements


def imports_of(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names
