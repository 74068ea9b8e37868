"""The images are built and their commands run, where buildah can do so without a container."""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from canopy.model_store.folders import canopy_home

DEPLOY = Path(__file__).parents[2] / "deploy"
CANNOT = 77
TOOLS = ("buildah", "debootstrap")

can_build = pytest.mark.skipif(
    os.geteuid() != 0 or None in map(shutil.which, TOOLS), reason=f"root, {', '.join(TOOLS)}"
)


@can_build
def test_the_gateways_image_is_built_and_its_command_answers():
    store = canopy_home() / "images"  # kept: the next run builds what has changed
    command = [DEPLOY / "try_containers.sh", "--store", store, "gateway"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == CANNOT:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("built and answered: gateway\n")


def carried(lines: list[str], folder: Path) -> list[str]:
    spec = importlib.util.spec_from_file_location("pip_mounts", DEPLOY / "pip_mounts.py")
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return list(module.carried(iter(lines), folder))


def test_a_build_gets_what_pips_configuration_names(tmp_path):
    index, wheels, bundle = tmp_path / "index", tmp_path / "wheels", tmp_path / "bundle.pem"
    index.mkdir()
    wheels.mkdir()
    bundle.write_text("certificates")
    lines = [
        f":env:.cert='{bundle}'\n",
        ":env:.default-timeout='180'\n",
        "global.cert='/elsewhere'\n",
        f"global.extra-index-url='\\nfile://{index}/simple\\nhttps://example.org/simple'\n",
        f"global.find-links='{wheels} /not/there'\n",
    ]
    folder = tmp_path / "out"
    folder.mkdir()
    mounts = carried(lines, folder)
    assert mounts == [
        f"{folder}:/opt/certificates:ro",
        f"{index}:{index}:ro",
        f"{wheels}:{wheels}:ro",
        f"{folder}/pip.conf:/etc/pip.conf:ro",
    ]
    assert (folder / "bundle.crt").read_text() == "certificates"
    assert (folder / "pip.conf").read_text().splitlines() == [
        "[global]",
        "cert = /opt/certificates/bundle.crt",
        "default-timeout = 180",
        f"extra-index-url = file://{index}/simple https://example.org/simple",
        f"find-links = {wheels} /not/there",
    ]
