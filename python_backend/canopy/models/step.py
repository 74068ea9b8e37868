"""What one forward pass computes: rows of several sequences, each a chain followed by a tree.

Rows of sequence s are `row_starts[s] .. row_starts[s + 1]`, parents before children. Row r sits
at logical index `context_lengths[s] + (r - row_starts[s])` of its sequence, and `slots[r]` is
where the KV cache keeps it; its rope position is `context_lengths[s] + depth`. A row sees the
whole committed context of its sequence, its ancestors in the step, and itself.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class StepBatch:
    """Inputs of one forward, all on the model's device."""

    token_ids: torch.Tensor  # int64 [T]
    positions: torch.Tensor  # int64 [T]
    slots: torch.Tensor  # int64 [T]
    parent_rows: torch.Tensor  # int32 [T] row of the preceding token; -1 = the committed context
    row_starts: torch.Tensor  # int32 [S + 1]
    context_lengths: torch.Tensor  # int32 [S] committed tokens in the KV cache
    block_tables: torch.Tensor  # int32 [S, max_blocks], padded with -1
    logit_rows: torch.Tensor  # int64 [L] rows whose logits are wanted, ascending
