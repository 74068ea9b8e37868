"""Where peers are installed and their files are kept: `peers` in the Canopy home.

The environment there looks into the project's own packages after its own, so that only what the
project lacks is downloaded, and both sides use the same torch. Nothing is written to the project.
"""

import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.peers.arm import CannotRun
from canopy.model_store.folders import PUBLISHED, FetchFailed, canopy_home, fetch_gguf
from canopy.model_store.folders import Progress as OnProgress
from canopy.model_store.manifest import file_sha256


def peers_home() -> Path:
    """The folder, made if need be."""
    folder = canopy_home() / "peers"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def python_with(requirement: str) -> Path:
    """An interpreter that has this package; a first call installs it, as pip shows.

    Raises CannotRun.
    """
    folder = peers_home() / f"python{sys.version_info.major}.{sys.version_info.minor}"
    python = folder / "bin" / "python"
    installed = folder / "installed" / requirement
    if not python.exists():
        _make_environment(folder)
    _look_into_the_project(folder)
    if not installed.exists():
        pip = [sys.executable, "-m", "pip", "--python", str(python)]
        _run([*pip, "install", requirement], f"pip could not install {requirement}")
        installed.touch()
    return python


def project_requirement(package: str) -> str:
    """The version that the project itself runs with. Raises CannotRun."""
    try:
        return f"{package}=={version(package)}"
    except PackageNotFoundError:
        raise CannotRun(f"{package} is not installed beside the project") from None


def gguf_of(model: str, progress: OnProgress) -> Path:
    """The file that a published model was converted from, checked; kept for the next run.

    model: its name, or a GGUF file, which is returned. Raises CannotRun.
    """
    if model.endswith(".gguf"):
        return Path(model)
    if model not in PUBLISHED:
        raise CannotRun("no GGUF of the deployment's target is published")
    published = PUBLISHED[model]
    path = peers_home() / Path(published.member).name
    if path.exists() and file_sha256(path) == published.sha256:
        return path
    with TemporaryDirectory(dir=peers_home()) as folder:
        try:
            fetch_gguf(published, Path(folder), progress).replace(path)
        except FetchFailed as error:
            raise CannotRun(str(error)) from error
    return path


def _make_environment(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    _run(command, "no virtual environment can be made")
    (folder / "installed").mkdir()


def _look_into_the_project(folder: Path) -> None:
    """Into the environment that runs now: the project may have moved since the last run."""
    packages = next(folder.glob("lib/python*/site-packages"))
    (packages / "project.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")


def _run(command: list[str], failure: str) -> None:
    """What the command says goes to standard error, as the progress of this benchmark does."""
    status = subprocess.run(command, stdout=sys.stderr, check=False).returncode
    if status:
        raise CannotRun(f"{failure} (exit status {status})")
