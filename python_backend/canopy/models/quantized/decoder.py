"""A decoder of the Llama family on quantized weights, for the CPU.

All sums over quantized values are exact, and everything else is computed row by row in a fixed
order. A row's logits are therefore equal to the bit whether the row is computed alone, in any
tree, in any batch, in prompt chunks of any size, or on any number of threads.
"""

import numpy as np
import torch

from canopy.kv_cache.int8_cache import Int8KVCache
from canopy.models.config import ModelConfig
from canopy.models.llama.layers import RopeTable
from canopy.models.quantized.weights import Embedding, shape_of
from canopy.models.step_batch import AuxHiddenStates, Segment, StepBatch, assemble_step
from canopy_kernels.cpu.threads import WorkerThreads
from canopy_kernels.int8.decoder import Step, Weights, decode_step, workspace
from canopy_kernels.int8.kv_cache import GROUP


class QuantizedDecoder:
    """Computes steps; keeps no sequence. The cache is int8."""

    def __init__(
        self, config: ModelConfig, embedding: Embedding, weights: Weights, num_threads: int
    ) -> None:
        self.config = config
        self._embedding = embedding
        self._weights = weights
        self._team = WorkerThreads(num_threads)
        rope = RopeTable.of(config, torch.float32, "cpu")
        self._cosines, self._sines = rope.cosines.numpy(), rope.sines.numpy()
        self._shape = shape_of(config)
        self._workspace = workspace(weights, self._shape, num_threads)

    def warm_up(self) -> None:
        """Compute one token, so that no step has to wait until everything is compiled."""
        token = Segment(0, [0], np.zeros(1, int), np.full(1, -1), np.zeros(1, int))
        self.forward(assemble_step([token], GROUP, "cpu"), self.new_cache(1, GROUP))

    def new_cache(self, num_blocks: int, block_size: int) -> Int8KVCache:
        """An empty KV cache of this model's shape. Raises InvalidDeployment; see Int8KVCache."""
        config = self.config
        return Int8KVCache(
            config.num_layers, num_blocks, block_size, config.num_kv_heads, config.head_dim
        )

    def forward(
        self, batch: StepBatch, cache: Int8KVCache, aux_hidden_states: AuxHiddenStates | None = None
    ) -> torch.Tensor:
        """Compute every row, writing its keys and values to its slot.

        Fills `aux_hidden_states`, where given. Returns the logits of `batch.logit_rows`,
        float32 [L, V]; they last until the next forward.
        """
        rows = batch.paged_rows(cache.block_size)
        aux_hidden_states = aux_hidden_states or AuxHiddenStates.of(
            (), batch, self.config.hidden_size
        )
        step = Step(
            self._embedding(batch.token_ids),
            batch.positions.numpy(),
            self._cosines,
            self._sines,
            rows.arrays,
            batch.logit_rows.numpy(),
            cache.arrays,
            np.array(aux_hidden_states.layers, np.int64),
            aux_hidden_states.states.numpy(),
        )
        logits = decode_step(self._weights, self._shape, step, self._workspace, self._team)
        return torch.from_numpy(logits)[:, : self.config.vocab_size]

    def confirm(self) -> None:
        """A failure raises in the forward itself."""
