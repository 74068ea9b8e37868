"""What the block drafter is asked for: the target's own distribution at every row.

    loss = (1 - w) * cross entropy with the target's top-k distribution
           + w * cross entropy with its most probable token        w = ARGMAX_LOSS_WEIGHT

The first term is dense: several tokens with their weights, where an answer holds but one.
"""

import torch
import torch.nn.functional as F  # noqa: N812

from canopy.models.block_drafter.network import BlockDrafter
from canopy_training.block_drafter.data import DrafterBatch

ARGMAX_LOSS_WEIGHT = 0.3


def decoded_rows(drafter: BlockDrafter, batch: DrafterBatch) -> torch.Tensor:
    """What the head reads, [S, A, K, E]: all anchors of a sequence in one pass."""
    config = drafter.config
    num_sequences, num_anchors = batch.anchors.shape
    context = drafter.encode(batch.hidden_states, batch.positions)
    last = (batch.anchors - 1).unsqueeze(-1).expand(-1, -1, config.hidden_size)
    anchors = F.embedding(batch.parent_ids[..., 0], drafter.embedding)
    copied = F.embedding(batch.copied_ids, drafter.embedding)
    vectors = context.vectors.gather(1, last)
    rows = drafter.start_rows(anchors, vectors, copied, batch.match_lengths)
    steps = torch.arange(config.block_size, device=rows.device)
    places = batch.positions.gather(1, batch.anchors).unsqueeze(-1) + steps
    flat = drafter.decode(
        rows.flatten(1, 2), places.flatten(1), context.key_values, _mask(drafter, batch)
    )
    return flat.view(num_sequences, num_anchors, config.block_size, -1)


def _mask(drafter: BlockDrafter, batch: DrafterBatch) -> torch.Tensor:
    """bool [S, A * K, L + A * K]: the window before the anchor, and the row's own block."""
    config = drafter.config
    num_sequences, length = batch.positions.shape
    anchors = batch.anchors.unsqueeze(-1)  # [S, A, 1]
    index = torch.arange(length, device=anchors.device)
    seen = (index < anchors) & (index >= anchors - config.window)
    seen = seen.repeat_interleave(config.block_size, dim=1)
    block = torch.arange(seen.shape[1], device=anchors.device) // config.block_size
    own = (block.unsqueeze(0) == block.unsqueeze(1)).expand(num_sequences, -1, -1)
    return torch.cat((seen, own), dim=2)


def distillation_loss(
    drafter: BlockDrafter, batch: DrafterBatch, head: torch.Tensor
) -> torch.Tensor:
    """Mean over the kept rows. head: [V, E], `drafter.head()` in the dtype to compute in."""
    logits = kept_logits(drafter, batch, head)
    logits = logits + copy_bonuses(drafter, batch, logits)
    label_ids, probs = batch.label_ids[batch.is_kept], batch.label_probs[batch.is_kept]
    log_probs = logits.gather(1, label_ids) - logits.logsumexp(dim=1, keepdim=True)
    soft = -(probs * log_probs).sum(dim=1)
    hard = -log_probs[:, 0] * (probs[:, 0] > 0)
    return ((1.0 - ARGMAX_LOSS_WEIGHT) * soft + ARGMAX_LOSS_WEIGHT * hard).mean()


def kept_logits(drafter: BlockDrafter, batch: DrafterBatch, head: torch.Tensor) -> torch.Tensor:
    """float32 [n, V] of the kept rows, on their answers' own paths; nothing copied."""
    rows = decoded_rows(drafter, batch)
    parents = F.embedding(batch.parent_ids, drafter.embedding)
    states = drafter.path_states(rows, parents)[batch.is_kept]
    logits = F.linear(rows[batch.is_kept].to(head.dtype), head)
    return (logits + drafter.markov_out(states)).float()


def copied_rows(
    drafter: BlockDrafter, batch: DrafterBatch
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of the kept rows: (column of the copied token, cell of the bonus table, has a bonus); [n]."""
    columns, is_copied = drafter.copy_columns(
        batch.copied_ids, batch.parent_ids, batch.match_lengths
    )
    block_size, num_lengths = drafter.copy_bonus.shape
    rows = torch.arange(block_size, device=columns.device)
    cells = rows * num_lengths + batch.match_lengths.unsqueeze(-1)
    return columns[batch.is_kept], cells[batch.is_kept], is_copied[batch.is_kept]


def copy_bonuses(drafter: BlockDrafter, batch: DrafterBatch, logits: torch.Tensor) -> torch.Tensor:
    """What copying adds to the logits of the kept rows; [n, V]."""
    columns, cells, is_copied = copied_rows(drafter, batch)
    bonus = drafter.copy_bonus.flatten()[cells] * is_copied
    return torch.zeros_like(logits).scatter(1, columns.unsqueeze(1), bonus.unsqueeze(1))
