"""What the Triton server's process needs around it: its binary, Python stub, environment, memory.

The server comes out of the pytriton wheel. Its Python backend wants the stub of the running
Python beside it, so every run gets a backend directory of symlinks; the wheel stays untouched.
"""

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from canopy.addresses import as_option, bindable, url_host
from canopy.config import Deployment, ServerConfig
from canopy.deployment_file import DEPLOYMENT_VARIABLE, deployment_as_tables
from canopy.errors import CannotStart

SHARED_MEMORY = Path("/dev/shm")
MIN_REGION_BYTES = 1 << 20  # the backend asks for no less
MODEL_REPOSITORY = Path(__file__).parents[3] / "model_repository"

# One thread each and no spinning: the models' processes share the cores, and a stage takes the
# threads that its deployment grants by itself.
THREAD_VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",
    "KMP_BLOCKTIME": "0",
    "TOKENIZERS_PARALLELISM": "false",
}


def server_folder(server: ServerConfig) -> Path:
    """The folder with `bin/` and `backends/` of the deployment's server, or of the installed wheel.

    Raises CannotStart when there is no server.
    """
    if server.folder:
        if not (Path(server.folder) / "bin" / "tritonserver").is_file():
            raise CannotStart(f"server.folder = {server.folder!r}: it has no bin/tritonserver")
        return Path(server.folder)
    spec = importlib.util.find_spec("pytriton")
    if spec is None or spec.origin is None:
        raise CannotStart("nvidia-pytriton, which carries the server, is not installed")
    return Path(spec.origin).parent / "tritonserver"


def make_backend_directory(folder: Path, server: Path) -> Path:
    """Link the Python backend of a server folder and the stub for this Python into an emptied
    `folder`. Raises CannotStart."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = _stub_of(server, version)
    _require_libraries(stub, version)
    shutil.rmtree(folder, ignore_errors=True)
    python = folder / "python"
    python.mkdir(parents=True)
    parts = {part.name: part for part in (server / "backends" / "python").iterdir()}
    parts[stub.name] = stub
    for name, part in parts.items():
        if name != "__pycache__":
            (python / name).symlink_to(part)
    return folder


def _stub_of(server: Path, version: str) -> Path:
    """The wheel brings one stub for each Python; an image's only one, for its own Python."""
    own = server / "backends" / "python" / "triton_python_backend_stub"
    stubs = server / "python_backend_stubs"
    if not stubs.is_dir():
        if own.is_file():
            return own
        raise CannotStart(f"{server} has no Python backend")
    stub = stubs / version / own.name
    if not stub.is_file():
        known = sorted(path.name for path in stubs.iterdir())
        raise CannotStart(f"the server has no stub for Python {version}, only for {known}")
    return stub


def _require_libraries(stub: Path, version: str) -> None:
    """The stub without arguments only complains, unless the loader cannot even start it."""
    tried = subprocess.run([str(stub)], capture_output=True, text=True, check=False)
    if "error while loading shared libraries" in tried.stderr:
        raise CannotStart(
            f"the server's Python stub does not start: {tried.stderr.strip()}\n"
            f"On Debian or Ubuntu: apt-get install libpython{version}"
        )


def server_environment(deployment_path: Path) -> dict[str, str]:
    """The stub takes packages from the first `python3` in PATH, which must be this one."""
    binaries = Path(sys.prefix) / "bin"
    return {
        **os.environ,
        **THREAD_VARIABLES,
        "PATH": f"{binaries}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        DEPLOYMENT_VARIABLE: str(deployment_path),
    }


def server_command(server: ServerConfig, repository: Path, backends: Path) -> list[str]:
    """The command line of the server in explicit mode, with all models of the repository."""
    models = sorted(config.parent.name for config in repository.glob("*/config.pbtxt"))
    ports = {"http": server.http_port, "grpc": server.grpc_port, "metrics": server.metrics_port}
    address = bindable(server)[1]
    free_bytes = shutil.disk_usage(SHARED_MEMORY).free
    size = region_bytes(server.shared_memory_mb << 20, len(models), free_bytes)
    backend = {
        "shm-region-prefix-name": shared_memory_prefix(server),
        "shm-default-byte-size": size,
        "shm-growth-byte-size": size,
    }
    return [
        str(server_folder(server) / "bin" / "tritonserver"),
        f"--model-repository={repository}",
        f"--backend-directory={backends}",
        "--model-control-mode=explicit",
        *(f"--load-model={name}" for name in models),
        *(f"--{name}-address={as_option(name, address)}" for name in ports),
        *(f"--{name}-port={port}" for name, port in ports.items()),
        *(f"--backend-config=python,{key}={value}" for key, value in backend.items()),
        "--disable-auto-complete-config",  # costs every model a second process, which starts first
        "--exit-timeout-secs=5",
    ]


def region_bytes(wanted: int, num_models: int, free_bytes: int) -> int:
    """First size of a model's region. All together take half of the memory at most: a
    container's /dev/shm is often 64 MB, and a region that cannot be had stops the server."""
    return max(MIN_REGION_BYTES, min(wanted, free_bytes // 2 // max(num_models, 1)))


def shared_memory_prefix(server: ServerConfig) -> str:
    """Unique on a machine, since no two live servers share a port."""
    return f"canopy-{server.grpc_port}-"


def clean_shared_memory(server: ServerConfig) -> None:
    """Remove the regions that a server on this port left behind."""
    for region in SHARED_MEMORY.glob(f"{shared_memory_prefix(server)}*"):
        region.unlink(missing_ok=True)


def write_deployment(deployment: Deployment, path: Path) -> None:
    """Write `deployment` as a deployment file; every value is a scalar."""
    lines = []
    for table, values in deployment_as_tables(deployment).items():
        lines += [f"[{table}]", *(f"{k} = {_toml(v)}" for k, v in values.items()), ""]
    path.write_text("\n".join(lines), encoding="utf-8")


def _toml(value: Any) -> str:
    """JSON's scalars are TOML's, but for surrogate pairs and a bare DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def require_free_ports(server: ServerConfig) -> None:
    """Raises CannotStart naming the port that is taken."""
    family, address = bindable(server)
    for name in ("http_port", "grpc_port", "metrics_port"):
        port = getattr(server, name)
        with socket.socket(family) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((address, port))
            except OSError as error:
                raise CannotStart(
                    f"{url_host(server)}:{port} cannot be used ({error.strerror}): stop what "
                    f"listens there, or set server.{name} in the deployment"
                ) from error


def with_free_ports(deployment: Deployment) -> Deployment:
    """The same deployment on three ports that are free now."""
    family, address = bindable(deployment.server)
    listeners = [socket.create_server((address, 0), family=family) for _ in range(3)]
    http, grpc, metrics = (listener.getsockname()[1] for listener in listeners)
    for listener in listeners:
        listener.close()
    server = replace(deployment.server, http_port=http, grpc_port=grpc, metrics_port=metrics)
    return replace(deployment, server=server)
