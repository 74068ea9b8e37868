"""What lookup's and a block drafter's candidates are worth together, beside the drafter's files."""

import json
from pathlib import Path

import numpy as np

from canopy.errors import InvalidDeployment
from canopy.models.block_drafter.checkpoint import SURVIVAL_FILE, write_drafter_manifest
from canopy_kernels.ngram.continuations import FEATURES


def load_combined_weights(folder: Path) -> np.ndarray | None:
    """float64 [features], or none where none were fitted. Raises InvalidDeployment."""
    path = folder / SURVIVAL_FILE
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        weights = np.array([found[name] for name in FEATURES], np.float64)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidDeployment(f"{path} is of other features: {error!r}") from error
    if not np.isfinite(weights).all():
        raise InvalidDeployment(f"{path} holds weights that are no numbers")
    return weights


def save_combined_weights(weights: np.ndarray, folder: Path) -> None:
    """weights: float64 [features]."""
    named = dict(zip(FEATURES, weights.tolist(), strict=True))
    (folder / SURVIVAL_FILE).write_text(json.dumps(named, indent=1) + "\n", encoding="utf-8")
    write_drafter_manifest(folder)
