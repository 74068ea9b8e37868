"""The change that edits make, where the logits are."""

from dataclasses import fields

import numpy as np
import torch

from canopy.logits_processors.edits import BITS, LogitEdits
from canopy_kernels.host_to_device import copy_packed


def apply_edits(logits: torch.Tensor, edits: LogitEdits) -> None:
    """Change logits, float32 [N, V], in place; one copy to their device, and no synchronization."""
    if edits.is_empty:
        return
    arrays = {field.name: getattr(edits, field.name) for field in fields(edits)}
    arrays["masks"] = edits.masks.view(np.int32)
    sent = copy_packed(arrays, str(logits.device))
    if len(edits.bias_rows):
        logits[sent["bias_rows"], sent["bias_token_ids"]] += sent["biases"]
    if len(edits.penalty_rows):
        _penalize(logits, sent)
    if len(edits.ban_rows):
        logits[sent["ban_rows"], sent["ban_token_ids"]] = -torch.inf
    if len(edits.mask_rows):
        allowed = _bits(sent["masks"].view(len(edits.mask_rows), -1), logits.shape[1])
        masked = logits[sent["mask_rows"]].masked_fill_(~allowed, -torch.inf)
        logits[sent["mask_rows"]] = masked


def _penalize(logits: torch.Tensor, sent: dict[str, torch.Tensor]) -> None:
    rows, token_ids = sent["penalty_rows"], sent["penalty_token_ids"]
    found, repetitions = logits[rows, token_ids], sent["repetitions"]
    scaled = torch.where(found > 0, found / repetitions, found * repetitions)
    logits[rows, token_ids] = scaled - sent["deductions"]


def _bits(masks: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """bool [K, V] of words int32 [K, W]."""
    shifts = torch.arange(BITS, dtype=torch.int32, device=masks.device)
    bits = (masks[:, :, None] >> shifts) & 1
    return bits.flatten(1)[:, :vocab_size].bool()
