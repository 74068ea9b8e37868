"""Which hidden states a deployment's drafter reads, if it reads any."""

import logging
from pathlib import Path

from canopy.config import HEAD_SOURCES, Deployment, DrafterConfig
from canopy.errors import InvalidDeployment
from canopy.model_store.folders import model_folder
from canopy.models.block_drafter.checkpoint import drafter_folder, load_config, require_made_for
from canopy.models.config import ModelConfig
from canopy.models.draft_heads import TargetShape, read_head_config
from canopy.models.drafter_kind import drafter_kind
from canopy.protocol.hidden_states import WHOLE_CONTEXT, HiddenStateLayers

logger = logging.getLogger(__name__)


def drafter_hidden_state_layers(deployment: Deployment) -> HiddenStateLayers | None:
    """None for a drafter that reads none, and for one that cannot be used with this target."""
    if not deployment.drafter.reads_hidden_states:
        return None
    try:
        return _layers_of(deployment.drafter, model_folder(deployment.target.model))
    except InvalidDeployment as error:
        logger.error("no hidden states are taken: %s", error)
        return None


def _layers_of(drafter: DrafterConfig, target_folder: Path) -> HiddenStateLayers | None:
    kind, folder = drafter_kind(drafter, target_folder), drafter_folder(drafter.model)
    if kind == "block":
        own = load_config(folder)
        require_made_for(own, target_folder)
        return HiddenStateLayers(own.aux_hidden_state_layers, own.window)
    if kind in HEAD_SOURCES:
        head = read_head_config(folder, TargetShape.of(ModelConfig.from_folder(target_folder)))
        # An EAGLE-3 row reads the token behind its position, which a shared prefix ends before.
        return HiddenStateLayers(head.target_layers, WHOLE_CONTEXT, int(kind == "eagle3"))
    return None
