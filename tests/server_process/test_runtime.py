"""What the server is started with."""

import os
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from image_layout import image_folder

from canopy.config import Deployment, ServerConfig, TargetConfig
from canopy.deployment_file import load_deployment
from canopy.errors import CannotStart
from canopy.server.runtime import (
    clean_shared_memory,
    make_backend_directory,
    region_bytes,
    require_free_ports,
    server_command,
    server_environment,
    server_folder,
    with_free_ports,
    write_deployment,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    st.booleans(),
    st.floats(0.01, 1e9),
)
def test_a_written_deployment_reads_back_equal(tmp_path, model, reuse, timeout):
    deployment = Deployment(target=TargetConfig(model=model))
    deployment = replace(
        deployment,
        cache=replace(deployment.cache, prefix_reuse=reuse),
        limits=replace(deployment.limits, request_timeout_s=timeout),
    )
    write_deployment(deployment, tmp_path / "d.toml")
    assert load_deployment(tmp_path / "d.toml") == deployment


@pytest.mark.parametrize("name", ["http_port", "grpc_port", "metrics_port"])
def test_a_taken_port_is_named_before_the_start(name):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = with_free_ports(Deployment()).server
        require_free_ports(server)
        server = replace(server, **{name: taken.getsockname()[1]})
        with pytest.raises(CannotStart, match=f"server.{name}"):
            require_free_ports(server)


def test_the_first_python_in_the_servers_path_is_this_one():
    environment = server_environment(Path("/deployment.toml"))
    first = environment["PATH"].split(os.pathsep)[0]
    assert (Path(first) / "python3").samefile(sys.executable)
    assert environment["CANOPY_DEPLOYMENT"] == "/deployment.toml"


def test_every_address_of_the_command_is_the_deployments_own(tmp_path):
    server = with_free_ports(Deployment()).server
    command = server_command(server, tmp_path, tmp_path)
    for name in ("http", "grpc", "metrics"):
        assert f"--{name}-address={server.host}" in command
        assert f"--{name}-port={getattr(server, f'{name}_port')}" in command


def test_a_backend_directory_is_made_anew_and_only_links(tmp_path):
    for _ in range(2):
        folder = make_backend_directory(tmp_path / "backends", server_folder(ServerConfig()))
        (folder / "stale").touch()
    parts = {path.name: path for path in (folder / "python").iterdir()}
    assert {"triton_python_backend_stub", "libtriton_python.so"} <= set(parts)
    assert all(path.is_symlink() for path in parts.values())


def test_a_server_of_ones_own_is_taken_with_its_own_stub(tmp_path):
    server = ServerConfig(folder=str(image_folder(tmp_path / "tritonserver")))
    folder = make_backend_directory(tmp_path / "backends", server_folder(server))
    stub = folder / "python" / "triton_python_backend_stub"
    assert stub.readlink().is_relative_to(tmp_path / "tritonserver")
    assert (folder / "python" / "libtriton_python.so").exists()
    command = server_command(server, tmp_path, folder)
    assert command[0] == str(tmp_path / "tritonserver" / "bin" / "tritonserver")


def test_a_folder_without_a_server_is_refused_by_name(tmp_path):
    with pytest.raises(CannotStart, match=r"server\.folder"):
        server_folder(ServerConfig(folder=str(tmp_path)))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tritonserver").touch()
    with pytest.raises(CannotStart, match="no Python backend"):
        make_backend_directory(tmp_path / "backends", tmp_path)


@given(st.integers(1, 1 << 40), st.integers(1, 16), st.integers(0, 1 << 40))
def test_regions_fit_into_half_of_the_shared_memory(wanted, num_models, free):
    size = region_bytes(wanted, num_models, free)
    assert size == 1 << 20 or (size <= wanted and 2 * num_models * size <= free)


def test_regions_have_the_size_asked_for_where_there_is_room():
    assert region_bytes(64 << 20, 4, 1 << 30) == 64 << 20


def test_only_regions_of_the_same_port_are_cleaned():
    server = with_free_ports(Deployment()).server
    mine, other = (Path(f"/dev/shm/canopy-{server.grpc_port}{end}") for end in ("-left", "1-left"))
    try:
        mine.touch()
        other.touch()
        clean_shared_memory(server)
        assert (mine.exists(), other.exists()) == (False, True)
    finally:
        other.unlink(missing_ok=True)
