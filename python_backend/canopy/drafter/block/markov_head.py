"""A block drafter's Markov head in the form that the draft stage holds."""

import numpy as np
import torch

from canopy.drafter.block.distributions import MarkovHead
from canopy.models.block_drafter.network import BlockDrafter


@torch.inference_mode()
def markov_head(drafter: BlockDrafter, is_on: bool = True) -> MarkovHead:
    """Codes of every parent computed once. is_on: False leaves marginals."""
    return MarkovHead(
        codes=drafter.markov_code(drafter.embedding).float().cpu().numpy(),
        step=drafter.markov_step.weight.detach().float().cpu().numpy(),
        out=drafter.markov_out.weight.detach().float().cpu().numpy(),
        draft_ids=drafter.draft_ids.cpu().numpy().astype(np.int32),
        is_on=is_on,
        copy_bonus=drafter.copy_bonus.float().cpu().numpy(),
    )
