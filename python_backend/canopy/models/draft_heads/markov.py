"""DSpark's Markov head: what the parent of a token says about it, on top of its slot.

    logits(token | path, slot) = base logits(slot) + W2 bias(path, slot)        e = W1[parent]

    vanilla   bias = e
    gated     bias = sigmoid(gate(hidden of the slot, e)) * e
    rnn       gate, update, output = joint(memory of the path before, e, hidden of the slot)
              memory = sigmoid(gate) * memory + (1 - sigmoid(gate)) * tanh(update)
              bias = tanh(output)

The part of the hidden states is one matrix product for the whole block (`MarkovHead.row_codes`);
what depends on the path is small, and done in NumPy for one node of a tree at a time.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from canopy.models.draft_heads.config import BlockHeadConfig


class PathState(NamedTuple):
    """What a path leaves behind."""

    bias: np.ndarray  # [rank] to be multiplied by W2
    memory: np.ndarray  # [rank] of an rnn head; empty in the others


START = PathState(np.zeros(0, np.float32), np.zeros(0, np.float32))  # in front of the anchor


@dataclass(frozen=True)
class MarkovTables:
    """The head's parameters as a node of a tree needs them; float32 or float64."""

    kind: str
    parents: np.ndarray  # W1, [target vocabulary, rank]
    out: np.ndarray  # W2, [Vd, rank]
    mixing: np.ndarray  # gated: [rank, rank] of e; rnn: [3 * rank, 2 * rank] of memory and e

    def step(self, before: PathState, parent_id: int, row_code: np.ndarray) -> PathState:
        """The state of a path one token longer. row_code: of the slot that the path leads to."""
        parent = self.parents[parent_id]
        if self.kind == "vanilla":
            return PathState(parent, before.memory)
        if self.kind == "gated":
            return PathState(_sigmoid(row_code + self.mixing @ parent) * parent, before.memory)
        memory = before.memory if len(before.memory) else np.zeros_like(parent)
        joint = row_code + self.mixing @ np.concatenate((memory, parent))
        gate, update, output = np.split(joint, 3)
        kept = _sigmoid(gate)
        return PathState(np.tanh(output), kept * memory + (1.0 - kept) * np.tanh(update))


class MarkovHead(nn.Module):
    """The parameters under their published names."""

    def __init__(self, config: BlockHeadConfig) -> None:
        super().__init__()
        rank, hidden = config.markov_rank, config.backbone.hidden_size
        self.kind = config.markov
        self.hidden_size = hidden
        self.markov_w1 = nn.Embedding(config.backbone.vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, config.draft_vocab_size, bias=False)
        self.gate_proj = nn.Linear(hidden + rank, rank) if self.kind == "gated" else None
        self.joint_proj = nn.Linear(2 * rank + hidden, 3 * rank) if self.kind == "rnn" else None

    def row_codes(self, hidden: torch.Tensor) -> torch.Tensor:
        """What slots add to the states of paths that lead to them: [..., E] to [..., code]."""
        if self.gate_proj is not None:
            weight = self.gate_proj.weight[:, : self.hidden_size]
            return nn.functional.linear(hidden, weight, self.gate_proj.bias)
        if self.joint_proj is not None:
            weight = self.joint_proj.weight[:, -self.hidden_size :]
            return nn.functional.linear(hidden, weight, self.joint_proj.bias)
        return hidden[..., :0]

    @torch.inference_mode()
    def tables(self) -> MarkovTables:
        """The rest, on the host."""
        mixing = torch.zeros(0)
        if self.gate_proj is not None:
            mixing = self.gate_proj.weight[:, self.hidden_size :]
        if self.joint_proj is not None:
            mixing = self.joint_proj.weight[:, : -self.hidden_size]
        return MarkovTables(
            self.kind,
            on_host(self.markov_w1.weight),
            on_host(self.markov_w2.weight),
            on_host(mixing),
        )


def on_host(tensor: torch.Tensor) -> np.ndarray:
    """float32, or float64 where the tensor is."""
    exact = torch.promote_types(tensor.dtype, torch.float32)
    return np.ascontiguousarray(tensor.detach().to(exact).cpu().numpy())


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1.0 + np.tanh(0.5 * x))
