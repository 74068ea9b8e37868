"""Finds the profile of a deployment: the file, and whether it speaks of this model and machine."""

import hashlib
import json
import logging
import os
import platform
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import canopy_kernels
from canopy.config import Deployment, TargetConfig
from canopy.costs.profile import Profile
from canopy.cpus import usable_cpus
from canopy.errors import InvalidDeployment
from canopy.model_store.assets import ngram_store_path
from canopy.model_store.folders import canopy_home, model_folder
from canopy.model_store.manifest import has_wrong_checksum, with_checksum

logger = logging.getLogger(__name__)

_KERNELS = "kernels"
_LOOK_INTERVAL_S = 1.0  # between two looks at the file of a profile


def profile_path(deployment: Deployment) -> Path:
    """Where the profile is written and read: named in the deployment, or by model and dtype."""
    if deployment.tree.profile:
        return Path(deployment.tree.profile).expanduser()
    target = deployment.target
    name = f"{Path(target.model).name}-{target.dtype}-{target.device}-{deployment.drafter.source}"
    return canopy_home() / "profiles" / f"{name}.json"


@dataclass(frozen=True)
class FoundProfile:
    """What a deployment's trees are to be priced by."""

    profile: Profile = field(default_factory=Profile)  # the built-in default where none is usable
    fault: str = ""  # why it should be measured again
    is_usable: bool = False


def find_profile(deployment: Deployment) -> FoundProfile:
    """The profile in the deployment's file, if it speaks of this model and machine.

    One that was measured with other kernels is outdated and yet better than the default.
    """
    path = profile_path(deployment)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if has_wrong_checksum(document):
            raise ValueError("its checksum does not fit")
        profile = Profile.from_json(document)
    except FileNotFoundError:
        return FoundProfile(fault=f"there is no profile {path}")
    except (OSError, ValueError) as error:
        return FoundProfile(fault=f"{path} cannot be read: {error}")
    here = fingerprint(deployment)
    differing = {key for key in here if profile.fingerprint.get(key) != here[key]}
    if not differing:
        return FoundProfile(profile, is_usable=True)
    fault = f"{path} was measured with another {', '.join(sorted(differing))}"
    if differing == {_KERNELS}:
        return FoundProfile(profile, fault, is_usable=True)
    return FoundProfile(fault=fault)


def save_profile(document: dict[str, Any], path: Path) -> None:
    """Write a profile with whatever stands beside it, all or nothing. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(with_checksum(document), indent=1) + "\n", encoding="utf-8")
    os.replace(partial, path)


class ProfileWatch:
    """Tells when the profile of a deployment was measured anew."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._path = profile_path(deployment)
        self._looked_s = time.monotonic()
        self._stamp = self._read_stamp()

    def changed(self) -> Profile | None:
        """The new profile, once; it is looked for by the clock."""
        now_s = time.monotonic()
        if now_s - self._looked_s < _LOOK_INTERVAL_S:
            return None
        self._looked_s = now_s
        stamp = self._read_stamp()
        if stamp == self._stamp:
            return None
        self._stamp = stamp
        found = find_profile(self._deployment)
        return found.profile if found.is_usable else None

    def _read_stamp(self) -> int:
        try:
            return self._path.stat().st_mtime_ns
        except OSError:
            return 0


def load_profile(deployment: Deployment) -> Profile:
    """The profile, or the built-in default; a warning says what is wrong with it."""
    found = find_profile(deployment)
    if found.fault:
        prices = "an outdated profile" if found.is_usable else "built-in defaults"
        logger.warning("trees are priced by %s: %s; run `canopy profile`", prices, found.fault)
    return found.profile


def fingerprint(deployment: Deployment) -> dict[str, str]:
    """What a profile depends on; measured times of one never serve another."""
    target, drafter = deployment.target, deployment.drafter
    return {
        "model": model_digest(target.model),
        "dtype": target.dtype,
        "device": _device_name(target),
        "machine": _processor_name(),
        "cores": str(usable_cpus()),
        "threads": _threads(target),
        "drafter": " ".join((drafter.source, Path(drafter.model).name)).strip(),
        "ngrams": _store_digest(deployment.drafter.ngrams),
        _KERNELS: _kernels_digest(),
    }


def model_digest(model: str) -> str:
    """Of the configuration and the sizes of the weights: no weight is read."""
    try:
        folder = model_folder(model)
    except InvalidDeployment:
        return "unknown"
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(f"{path.name} {path.stat().st_size}".encode())
    return digest.hexdigest()[:16]


def _store_digest(ngrams: str) -> str:
    """Of the n-gram store; one that is not there is like none."""
    path = ngram_store_path(ngrams)
    if path is None or not path.is_file():
        return "none"
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _kernels_digest() -> str:
    """Of the source of every kernel."""
    digest = hashlib.sha256()
    for path in sorted(Path(canopy_kernels.__path__[0]).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _device_name(target: TargetConfig) -> str:
    """With what decides, beside the device, how long a step takes there."""
    if target.device == "cpu":
        return target.device
    # A process without a GPU stays small and starts sooner without torch.
    import torch

    name = torch.cuda.get_device_name()
    graph_rows = target.max_graph_rows if target.replays_graphs else 0
    return f"{name}, graphs to {graph_rows} rows" + ", invariant" * target.batch_invariant


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _threads(target: TargetConfig) -> str:
    ranks = target.tensor_parallel_size
    return f"{target.num_threads}" + (f" in each of {ranks} ranks" if ranks > 1 else "")
