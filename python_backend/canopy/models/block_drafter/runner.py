"""Runs a block drafter for all sequences of a step: by torch, or as exported by onnxruntime.

Two graphs, the same in both: `context` takes computed positions up, `block` proposes.
"""

from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import nn

from canopy.errors import InvalidDeployment
from canopy.models.block_drafter.network import BlockDrafter

CONTEXT_GRAPH = "context.onnx"
BLOCK_GRAPH = "block.onnx"


class BlockInputs(NamedTuple):
    """B anchors and what stands before them, padded to C context positions."""

    anchors: np.ndarray  # float32 [B, E] embeddings
    last: np.ndarray  # float32 [B, E] context vectors of the positions before the anchors
    positions: np.ndarray  # int64 [B] of the anchors
    key_values: np.ndarray  # float32 [B, C, layers, 2, K, D]
    lengths: np.ndarray  # int64 [B] context positions that are real, the first ones
    copied: np.ndarray  # float32 [B, block, E] embeddings, see canopy_kernels.ngram.prompt_lookup
    match_lengths: np.ndarray  # int64 [B]


class BlockRows(NamedTuple):
    """What one pass says of B anchors; of one where B is left out."""

    logits: np.ndarray  # float32 [B, block, V], U
    codes: np.ndarray  # float32 [B, block, rank], the rows' part in the Markov head's states


class BlockRunner(Protocol):
    """One drafter, loaded."""

    def encode(
        self, hidden_states: np.ndarray, positions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """float16 [N, taps * E], int64 [N] to vectors [N, E], key_values [N, layers, 2, K, D]."""
        ...

    def propose(self, inputs: BlockInputs) -> BlockRows:
        """The rows of every anchor."""
        ...


class ContextGraph(nn.Module):
    """`BlockDrafter.encode` on plain tensors."""

    def __init__(self, drafter: BlockDrafter) -> None:
        super().__init__()
        self.drafter = drafter

    def forward(
        self, hidden_states: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `BlockRunner.encode`."""
        context = self.drafter.encode(hidden_states, positions)
        return context.vectors, context.key_values


class BlockGraph(nn.Module):
    """Rows, layers and head on plain tensors; the head's rows are its own."""

    def __init__(self, drafter: BlockDrafter) -> None:
        super().__init__()
        self.drafter = drafter
        self.head = nn.Linear(drafter.config.hidden_size, drafter.config.draft_vocab_size, False)
        self.head.weight = nn.Parameter(drafter.head(), requires_grad=False)

    def forward(
        self,
        anchors: torch.Tensor,
        last: torch.Tensor,
        positions: torch.Tensor,
        key_values: torch.Tensor,
        lengths: torch.Tensor,
        copied: torch.Tensor,
        match_lengths: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `BlockRunner.propose`."""
        rows = self.drafter.start_rows(anchors, last, copied, match_lengths)
        steps = torch.arange(self.drafter.config.block_size, device=rows.device)
        index = torch.arange(key_values.shape[1], device=rows.device)
        seen = (index < lengths.unsqueeze(1)).unsqueeze(1).expand(-1, rows.shape[1], -1)
        mask = torch.cat((seen, torch.ones_like(seen[:, :, :1]).expand(-1, -1, len(steps))), dim=2)
        places = positions.unsqueeze(1) + steps
        decoded = self.drafter.decode(rows, places, key_values, mask)
        return self.head(decoded), self.drafter.markov_row(decoded)


class TorchBlockRunner:
    """The network itself, on any device."""

    def __init__(self, drafter: BlockDrafter, device: str) -> None:
        self._context = ContextGraph(drafter).to(device).eval()
        self._block = BlockGraph(drafter).to(device).eval()
        self._device = device

    @torch.inference_mode()
    def encode(
        self, hidden_states: np.ndarray, positions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """See BlockRunner."""
        vectors, key_values = self._context(self._tensor(hidden_states), self._tensor(positions))
        return vectors.cpu().numpy(), key_values.cpu().numpy()

    @torch.inference_mode()
    def propose(self, inputs: BlockInputs) -> BlockRows:
        """See BlockRunner."""
        logits, codes = self._block(*map(self._tensor, inputs))
        return BlockRows(logits.float().cpu().numpy(), codes.float().cpu().numpy())

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)


class OnnxBlockRunner:
    """The exported graphs, on the CPU."""

    def __init__(self, folder: Path, num_threads: int) -> None:
        """Raises InvalidDeployment for graphs that onnxruntime cannot load."""
        self._context = _session(folder / CONTEXT_GRAPH, num_threads)
        self._block = _session(folder / BLOCK_GRAPH, num_threads)

    def encode(
        self, hidden_states: np.ndarray, positions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """See BlockRunner."""
        vectors, key_values = self._context.run(
            None, {"hidden_states": hidden_states.astype(np.float32), "positions": positions}
        )
        return vectors, key_values

    def propose(self, inputs: BlockInputs) -> BlockRows:
        """See BlockRunner."""
        return BlockRows(*self._block.run(list(BlockRows._fields), inputs._asdict()))


def _session(path: Path, num_threads: int) -> Any:
    # Deployments without an exported drafter need no onnxruntime.
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has many, without a common base of its own
        raise InvalidDeployment(f"cannot load {path}: {error}") from error
