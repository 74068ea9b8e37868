"""Checks the files of a deployment before a server starts from them.

What Canopy can make again, the int8 copies of weights, is removed where it is damaged. Files
without a manifest, such as a downloaded Hugging Face folder, are taken as they are.
"""

import re
import shutil
from pathlib import Path

from canopy.config import DEFAULT_DRAFTER, Deployment, DrafterConfig
from canopy.errors import InvalidDeployment
from canopy.model_store.assets import BLOCK_DRAFTER, SMALL_DRAFTER, ngram_store_path
from canopy.model_store.manifest import NO_MANIFEST, integrity_error, manifest_path

_CONVERTED_COPY = re.compile(r"\.int[48]-\d+")


def check_files(deployment: Deployment, full: bool) -> list[str]:
    """A line for everything that was damaged and will be made again.

    deployment: with the folders of its models. full: read every byte instead of comparing sizes.
    Raises InvalidDeployment for damage that cannot be mended here.
    """
    models = [Path(deployment.target.model)]
    if drafter := _drafter_folder(deployment.drafter):
        models.append(drafter)
    store = ngram_store_path(deployment.drafter.ngrams)
    for path in (*models, *([store] if store else [])):
        _require_intact(path, full)
    return [line for model in models for line in drop_damaged_copies(model)] if full else []


def drop_damaged_copies(model: Path) -> list[str]:
    """Remove the int8 copies of a model folder that a full check refuses; a line for each.

    Raises InvalidDeployment for one that cannot be removed.
    """
    lines = []
    for copy in sorted(model.parent.glob(f"{model.name}.int*-*")):
        if not _CONVERTED_COPY.fullmatch(copy.name.removeprefix(model.name)):
            continue  # one that is being made
        if fault := integrity_error(copy, None, full=True):
            try:
                shutil.rmtree(copy)
            except OSError as error:
                raise InvalidDeployment(f"{copy} is damaged ({fault}): remove it") from error
            lines.append(f"{copy} was damaged ({fault}): the weights will be converted again")
    return lines


def _require_intact(path: Path, full: bool) -> None:
    fault = integrity_error(path, None, full)
    if fault not in (None, NO_MANIFEST):
        raise InvalidDeployment(
            f"{path} is damaged ({fault}): install or make it again; if you have changed it "
            f"yourself, remove {manifest_path(path)}"
        )


def _drafter_folder(drafter: DrafterConfig) -> Path | None:
    if not drafter.model:
        return None
    if drafter.model == DEFAULT_DRAFTER:
        return BLOCK_DRAFTER if drafter.reads_hidden_states else SMALL_DRAFTER
    return Path(drafter.model).expanduser()
