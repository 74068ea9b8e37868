"""Sources with a model: an autoregressive drafter, a block drafter, or a published draft head."""

from pathlib import Path

import torch

from canopy.config import Deployment
from canopy.drafter.autoregressive import make_autoregressive_source
from canopy.drafter.block.combined_weights import load_combined_weights
from canopy.drafter.block.drafter_model import BlockDrafterModel, load_block_drafter
from canopy.drafter.block.model import BlockModel
from canopy.drafter.block.source import BlockSource
from canopy.drafter.draft_heads.block import BlockHeadModel
from canopy.drafter.draft_heads.eagle3 import Eagle3Source
from canopy.drafter.lookup.source import LookupSource
from canopy.drafter.source import ProposalSource
from canopy.dtypes import draft_head_dtype
from canopy.model_store.folders import model_folder
from canopy.models.block_drafter.checkpoint import drafter_folder
from canopy.models.draft_heads import Eagle3Head, load_draft_head
from canopy.models.drafter_kind import drafter_kind


def make_model_source(deployment: Deployment, lookup: LookupSource | None) -> ProposalSource:
    """The drafter in `drafter.model`, in one tree with lookup where given.

    Raises InvalidDeployment for a drafter that cannot be used with this target.
    """
    drafter, target_folder = deployment.drafter, model_folder(deployment.target.model)
    kind = drafter_kind(drafter, target_folder)
    if kind == "autoregressive":
        return make_autoregressive_source(deployment)
    folder, device = drafter_folder(drafter.model), deployment.target.device
    if kind == "block":
        loaded = load_block_drafter(folder, target_folder, device, drafter)
        model: BlockModel = BlockDrafterModel(loaded, drafter.num_candidates)
        return _block_source(model, folder, drafter.coupling, lookup)
    head = load_draft_head(folder, target_folder, _dtype(deployment), device)
    max_step_tokens = deployment.limits.max_step_tokens
    if isinstance(head, Eagle3Head):
        return Eagle3Source(head, deployment.cache, drafter, max_step_tokens)
    model = BlockHeadModel(head, deployment.cache, drafter, max_step_tokens)
    return _block_source(model, folder, drafter.coupling, lookup)


def _block_source(
    model: BlockModel, folder: Path, coupling: float, lookup: LookupSource | None
) -> BlockSource:
    weights = load_combined_weights(folder) if lookup else None
    if lookup is None or weights is None:
        return BlockSource(model, coupling, lookup)
    lookup.join(weights)
    return BlockSource(model, coupling, lookup, is_joint=True)


def _dtype(deployment: Deployment) -> torch.dtype:
    """Of a draft head."""
    dtype: torch.dtype = getattr(
        torch, draft_head_dtype(deployment.drafter.dtype, deployment.target.dtype)
    )
    return dtype
