"""The wheel's server, laid out as in NVIDIA's image."""

import sys
from pathlib import Path

from canopy.config import ServerConfig
from canopy.server.runtime import server_folder


def image_folder(folder: Path) -> Path:
    """A server as NVIDIA's image lays it out: one stub, beside the backend."""
    wheel = server_folder(ServerConfig())
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    python = folder / "backends" / "python"
    python.mkdir(parents=True)
    for part in (wheel / "backends" / "python").glob("*.*"):
        (python / part.name).symlink_to(part)
    stub = wheel / "python_backend_stubs" / version / "triton_python_backend_stub"
    (python / stub.name).symlink_to(stub)
    (folder / "bin").mkdir()
    (folder / "bin" / "tritonserver").symlink_to(wheel / "bin" / "tritonserver")
    return folder
