"""Fits what a copied token is worth beside a block drafter's own logits.

The bonus b of a cell (row, length of the match) maximizes the likelihood of the target's
distribution with everything else frozen. With q the drafter's probability of the copied token, that
token's probability with the bonus is q e^b / (1 + q (e^b - 1)), and the likelihood is concave in b.
"""

from collections.abc import Sequence

import numpy as np
import torch

from canopy.models.block_drafter.network import BlockDrafter
from canopy_training.block_drafter.data import Batches
from canopy_training.block_drafter.loss import copied_rows, kept_logits
from canopy_training.corpus.corpus import Answer

_ANCHORS = 16  # of an answer
_RIDGE = 1.0  # rows' worth of pull towards no bonus
_MOST = 8.0
_STEPS = 30


@torch.inference_mode()
def fit_copy_bonus(
    drafter: BlockDrafter, answers: Sequence[Answer], batches: Batches, seed: int = 0
) -> None:
    """Set the drafter's table by answers that it may have seen."""
    drafter.eval()
    head = drafter.head()
    generator, device = np.random.default_rng(seed), str(drafter.copy_bonus.device)
    parts = []
    for answer in answers:
        batch = batches.of([answer], _ANCHORS, generator, decay=0.0).to(device)
        columns, cells, is_copied = copied_rows(drafter, batch)
        own = kept_logits(drafter, batch, head).softmax(dim=1).gather(1, columns.unsqueeze(1))
        is_label = batch.label_ids[batch.is_kept] == columns.unsqueeze(1)
        target = (batch.label_probs[batch.is_kept] * is_label).sum(dim=1)
        part = torch.stack([cells.double(), own[:, 0].double(), target.double()])
        parts.append(part[:, is_copied].cpu().numpy())
    found, own_probs, target_probs = np.concatenate(parts, axis=1)
    num_cells = drafter.copy_bonus.numel()
    table = _best_bonuses(found.astype(np.int64), own_probs, target_probs, num_cells)
    drafter.copy_bonus.copy_(torch.from_numpy(table).view_as(drafter.copy_bonus))


def _best_bonuses(
    cells: np.ndarray, own_probs: np.ndarray, target_probs: np.ndarray, num_cells: int
) -> np.ndarray:
    """float64 [num_cells], by Newton's method."""
    bonus = np.zeros(num_cells)
    for _ in range(_STEPS):
        raised = own_probs * np.exp(bonus[cells])
        probs = raised / (1.0 - own_probs + raised)
        gradient = np.bincount(cells, target_probs - probs, num_cells) - _RIDGE * bonus
        curvature = np.bincount(cells, probs * (1.0 - probs), num_cells) + _RIDGE
        bonus = np.clip(bonus + np.clip(gradient / curvature, -1.0, 1.0), -_MOST, _MOST)
    return bonus
