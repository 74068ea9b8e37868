"""Which kind of drafter `drafter.source` and the folder in `drafter.model` make."""

from pathlib import Path

from canopy.config import HEAD_SOURCES, DrafterConfig
from canopy.errors import InvalidDeployment
from canopy.models.block_drafter.checkpoint import CONFIG_FILE, drafter_folder
from canopy.models.config import ModelConfig
from canopy.models.draft_heads import TargetShape, is_draft_head, read_head_config

_MIXED_WITH_LOOKUP = ("block", "dspark", "dflash")


def drafter_kind(drafter: DrafterConfig, target_folder: Path) -> str:
    """ "none", "lookup", "autoregressive", "block" (Canopy's own), "eagle3", "dspark" or "dflash".

    Raises InvalidDeployment for a folder without a known drafter, for one of another target and
    for one that is not what the source says.
    """
    source = drafter.source
    if source in ("none", "lookup", "autoregressive"):
        return source
    if source in ("block", "markov"):
        return "block"
    kind = _kind_of(drafter_folder(drafter.model), target_folder)
    if source in HEAD_SOURCES and kind != source:
        raise InvalidDeployment(
            f'{drafter.model} holds a drafter of the source "{kind}", not "{source}": set '
            f'drafter.source = "{kind}" or "auto"'
        )
    if source == "all" and kind not in _MIXED_WITH_LOOKUP:
        raise InvalidDeployment(
            f'drafter.source = "all" grows one tree of lookup and one of '
            f"{', '.join(_MIXED_WITH_LOOKUP)}; {drafter.model} holds a drafter of the source "
            f'"{kind}": set drafter.source = "{kind}"'
        )
    return kind


def _kind_of(folder: Path, target_folder: Path) -> str:
    if (folder / CONFIG_FILE).is_file():
        return "block"
    if not (folder / "config.json").is_file():
        raise InvalidDeployment(f"{folder} holds no drafter: no config.json and no {CONFIG_FILE}")
    if is_draft_head(folder):
        shape = TargetShape.of(ModelConfig.from_folder(target_folder))
        return read_head_config(folder, shape).algorithm
    return "autoregressive"
