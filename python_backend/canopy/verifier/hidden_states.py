"""Which features a deployment's drafter reads, if it reads any."""

import logging

from canopy.config import Deployment
from canopy.errors import InvalidDeployment
from canopy.model_store.folders import model_folder
from canopy.models.block_drafter.checkpoint import drafter_folder, load_config, require_made_for
from canopy.protocol.hidden_states import HiddenStateLayers

logger = logging.getLogger(__name__)


def drafter_hidden_state_layers(deployment: Deployment) -> HiddenStateLayers | None:
    """None for a drafter without features, and for one that cannot be used with this target."""
    if not deployment.drafter.reads_hidden_states:
        return None
    try:
        config = load_config(drafter_folder(deployment.drafter.model))
        require_made_for(config, model_folder(deployment.target.model))
    except InvalidDeployment as error:
        logger.error("no features are taken: %s", error)
        return None
    return HiddenStateLayers(config.aux_hidden_state_layers, config.window)
