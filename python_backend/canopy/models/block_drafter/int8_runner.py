"""Runs a block drafter on the CPU's int8 kernels: weights int8, activations up to 15 bits.

What a pass says of an anchor does not depend on the other anchors, to the bit.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from canopy.models.block_drafter.network import BlockDrafter, BlockLayer
from canopy.models.block_drafter.runner import BlockInputs, BlockRows
from canopy.models.quantized.weights import shape_of
from canopy_kernels.cpu import aligned
from canopy_kernels.cpu.threads import WorkerThreads
from canopy_kernels.int8.block_buffers import (
    BlockBuffers,
    BlockSizes,
    block_buffers,
    encode_buffers,
)
from canopy_kernels.int8.block_drafter import (
    Block,
    BlockWeights,
    ContextWeights,
    Positions,
    encode,
    propose,
)
from canopy_kernels.int8.gemm import quantize_weight
from canopy_kernels.int8.layout import pad_outputs
from canopy_kernels.int8.linears import Linears

_FEW = 8  # positions that one worker takes up before it could have woken another


class Int8BlockRunner:
    """A `BlockRunner`. What `propose` returns lasts until the next call of as many anchors."""

    def __init__(self, drafter: BlockDrafter, num_threads: int) -> None:
        config = drafter.config
        self._config = config
        self._frequencies = drafter.frequencies.numpy()
        self._tap_scales = np.repeat(drafter.aux_layer_scales.numpy(), config.hidden_size)
        self._context_weights = _context_weights(drafter)
        self._block_weights = _block_weights(drafter)
        self._shape = shape_of(config)
        self._sizes = BlockSizes(
            config.block_size,
            config.hidden_size,
            config.num_heads,
            config.head_dim,
            config.intermediate_size,
            config.hidden_states_size,
            qkv=self._block_weights.qkv.scales.shape[1],
            gate_up=self._block_weights.gate_up.scales.shape[1],
            key_values=self._context_weights.key_values.scales.shape[1],
            logits=self._block_weights.head.scales.shape[1],
            codes=self._block_weights.row_code.scales.shape[1],
        )
        self._team, self._alone = WorkerThreads(num_threads), WorkerThreads(1)
        self._buffers = block_buffers(self._sizes, 1)

    def warm_up(self) -> None:
        """Propose once, so that no request has to wait until everything is compiled."""
        config = self._config
        states = np.zeros((1, config.hidden_states_size), np.float16)
        vectors, key_values = self.encode(states, np.zeros(1, np.int64))
        copied = np.zeros((1, config.block_size, config.hidden_size), np.float32)
        one = np.ones(1, np.int64)
        self.propose(BlockInputs(vectors, vectors, one, key_values[None], one, copied, one - 1))

    def encode(
        self, hidden_states: np.ndarray, positions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """See BlockRunner."""
        config, buffers = self._config, encode_buffers(self._sizes, len(hidden_states))
        scaled = hidden_states.astype(np.float32) / self._tap_scales
        inputs = Positions(scaled, *self._rotation(positions))
        team = self._team if len(hidden_states) > _FEW else self._alone
        encode(self._context_weights, self._shape, inputs, buffers, team)
        shape = (len(hidden_states), config.num_layers, 2, config.num_kv_heads, config.head_dim)
        size = int(np.prod(shape[1:]))
        return buffers.vectors, buffers.key_values[:, :size].reshape(shape)

    def propose(self, inputs: BlockInputs) -> BlockRows:
        """See BlockRunner."""
        config, num_anchors = self._config, len(inputs.anchors)
        places = inputs.positions[:, None] + np.arange(config.block_size)
        block = Block(
            inputs.anchors,
            inputs.last,
            inputs.key_values,
            inputs.lengths,
            inputs.copied,
            inputs.match_lengths,
            *self._rotation(places.ravel()),
        )
        buffers = self._buffers_of(num_anchors)
        propose(self._block_weights, self._shape, block, buffers, self._team)
        rows = num_anchors, config.block_size, -1
        return BlockRows(
            buffers.logits[:, : config.draft_vocab_size].reshape(rows),
            buffers.codes[:, : config.rank].reshape(rows),
        )

    def _buffers_of(self, num_anchors: int) -> BlockBuffers:
        if len(self._buffers.injected) != num_anchors:
            self._buffers = block_buffers(self._sizes, num_anchors)
        return self._buffers

    def _rotation(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Cosines and sines for `int8_rows.rope`, float32 [n, D]."""
        angles = positions[:, None].astype(np.float32) * self._frequencies
        sines = np.sin(angles)
        return np.tile(np.cos(angles), 2), np.concatenate((-sines, sines), axis=1)


def _context_weights(drafter: BlockDrafter) -> ContextWeights:
    parts = [part for layer in _layers(drafter) for part in (layer.k_proj, layer.v_proj)]
    return ContextWeights(
        _linears([[drafter.fuse]]), _array(drafter.context_norm.weight), _linears([parts])
    )


def _block_weights(drafter: BlockDrafter) -> BlockWeights:
    layers = _layers(drafter)
    return BlockWeights(
        inject=_linears([[drafter.inject]]),
        copy=_linears([[drafter.copy]]),
        masks=_array(drafter.masks),
        match_lengths=_array(drafter.match_lengths.weight),
        attention_norm=np.stack([_array(layer.attention_norm.weight) for layer in layers]),
        qkv=_linears([[layer.q_proj, layer.k_proj, layer.v_proj] for layer in layers]),
        output=_linears([[layer.o_proj] for layer in layers]),
        mlp_norm=np.stack([_array(layer.mlp_norm.weight) for layer in layers]),
        gate_up=_linears([[layer.gate_proj, layer.up_proj] for layer in layers]),
        down=_linears([[layer.down_proj] for layer in layers]),
        norm=_array(drafter.norm.weight),
        adapter=_linears([[drafter.adapter]]),
        head=_packed([_array(drafter.head())]),
        row_code=_linears([[drafter.markov_row]]),
    )


def _layers(drafter: BlockDrafter) -> list[BlockLayer]:
    return [layer for layer in drafter.layers if isinstance(layer, BlockLayer)]


def _linears(layers: Sequence[Sequence[nn.Linear]]) -> Linears:
    """In every layer one linear whose outputs are those of the given ones, in order."""
    return _packed([np.concatenate([_array(part.weight) for part in parts]) for parts in layers])


def _packed(weights: Sequence[np.ndarray]) -> Linears:
    """Of float32 [outputs, inputs] a layer; without bias."""
    blocks, scales = zip(*map(quantize_weight, weights), strict=True)
    bias = [pad_outputs(np.zeros(len(weight), np.float32)) for weight in weights]
    return Linears(*(aligned.copy(np.stack(parts)) for parts in (blocks, scales, bias)))


def _array(tensor: torch.Tensor) -> np.ndarray:
    return np.ascontiguousarray(tensor.detach().float().cpu().numpy())
