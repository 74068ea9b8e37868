"""A decoder of the Llama family in floating point: one class, its configuration decides."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from canopy.kv_cache.batch_invariant_cache import BatchInvariantKVCache
from canopy.kv_cache.float_cache import KVCache
from canopy.kv_cache.triton_cache import cache_type_for
from canopy.models.config import ModelConfig
from canopy.models.llama.batch_invariant_layers import BatchInvariantLinear, BatchInvariantRMSNorm
from canopy.models.llama.layers import (
    MLP,
    Attention,
    DecoderLayer,
    Embedding,
    Linear,
    RMSNorm,
    RopeTable,
    RowFn,
    StepContext,
)
from canopy.models.llama.weights import load_weights
from canopy.models.step_batch import AuxHiddenStates, StepBatch


class FloatDecoder:
    """Computes steps; keeps no sequence. Weights and caches have one dtype and one device.

    Weights need no gradient, so a forward records none in any mode of torch. Results belong to
    the caller's mode: whoever writes into them runs in the same one.
    """

    def __init__(
        self,
        config: ModelConfig,
        embedding: RowFn,
        layers: Sequence[DecoderLayer],
        norm: RMSNorm,
        head: RowFn,
        cache_kind: type[KVCache] | None = None,
    ) -> None:
        """cache_kind: of its caches; by default the one for the device."""
        self.config = config
        self.device = str(norm.weight.device)
        self._dtype = norm.weight.dtype
        self._embedding = embedding
        self._layers = layers
        self._norm = norm
        self._head = head
        self._rope = RopeTable.of(config, self._dtype, self.device)
        self._cache_kind = cache_kind or cache_type_for(self.device)

    def new_cache(self, num_blocks: int, block_size: int) -> KVCache:
        """An empty KV cache of this model's shape; on a GPU the kernels work on it."""
        return self._cache_kind(
            self.config.num_layers,
            num_blocks,
            block_size,
            self.config.num_kv_heads,
            self.config.head_dim,
            self._dtype,
            self.device,
        )

    def forward(
        self, batch: StepBatch, cache: KVCache, aux_hidden_states: AuxHiddenStates | None = None
    ) -> torch.Tensor:
        """Compute every row, writing its keys and values to its slot.

        Fills `aux_hidden_states`, where given. Returns the logits of `batch.logit_rows`,
        float32 [L, V].
        """
        batch = batch.to(self.device)
        context = StepContext(
            self._rope.cosines[batch.positions].unsqueeze(1),
            self._rope.sines[batch.positions].unsqueeze(1),
            batch.paged_rows(cache.block_size),
            cache,
        )
        hidden = self._embedding(batch.token_ids)  # [T, E]
        for index, layer in enumerate(self._layers):
            if aux_hidden_states and index in aux_hidden_states.layers:
                aux_hidden_states.states[:, aux_hidden_states.layers.index(index)] = hidden
            hidden = layer(hidden, context)
        return self._head(self._norm(hidden[batch.logit_rows])).float()

    def confirm(self) -> None:
        """On one device a failure raises where a result is read."""


@dataclass(frozen=True)
class ParallelParts:
    """How the parts that see all of a row, or all of the vocabulary, are made of their weights."""

    embedding: Callable[[torch.Tensor], RowFn]
    row_parallel: Callable[[Linear], RowFn]  # the last linear of attention and MLP
    head: Callable[[Linear], RowFn]


SINGLE_RANK = ParallelParts(Embedding, lambda linear: linear, lambda linear: linear)


@dataclass(frozen=True)
class LayerBackend:
    """Who computes what can be computed in several ways."""

    linear: type[Linear]
    norm: type[RMSNorm]
    cache: type[KVCache] | None


DEFAULT_BACKEND = LayerBackend(Linear, RMSNorm, None)
# A row's logits are the same to the bit in any tree and batch; only the kernels can do that.
SHAPE_INVARIANT = LayerBackend(BatchInvariantLinear, BatchInvariantRMSNorm, BatchInvariantKVCache)


def load_float_decoder(
    folder: str | Path,
    config: ModelConfig,
    dtype: str,
    device: str,
    backend: LayerBackend = DEFAULT_BACKEND,
) -> FloatDecoder:
    """Load a Hugging Face folder. dtype: "float32" or "bfloat16"; device: "cpu" or "cuda".

    Raises InvalidDeployment for what the folder lacks.
    """
    return build_float_decoder(config, load_weights(folder, config), dtype, device, backend=backend)


def build_float_decoder(
    config: ModelConfig,
    stored: dict[str, torch.Tensor],
    dtype: str,
    device: str,
    parts: ParallelParts = SINGLE_RANK,
    backend: LayerBackend = DEFAULT_BACKEND,
) -> FloatDecoder:
    """Takes the tensors out of `stored`; those of one rank go with its `parts`."""
    weights = _Weights(stored, getattr(torch, dtype), device, backend)
    embedding = weights.take("model.embed_tokens.weight")
    layers = [_layer(config, weights, index, parts) for index in range(config.num_layers)]
    norm = backend.norm(weights.take("model.norm.weight"), config.rms_norm_eps)
    head = backend.linear(
        embedding if config.tie_word_embeddings else weights.take("lm_head.weight")
    )
    return FloatDecoder(
        config, parts.embedding(embedding), layers, norm, parts.head(head), backend.cache
    )


class _Weights:
    """Hands out each stored tensor once, so that its first copy is freed at once."""

    def __init__(
        self,
        stored: dict[str, torch.Tensor],
        dtype: torch.dtype,
        device: str,
        backend: LayerBackend,
    ) -> None:
        self.backend = backend
        self._stored = stored
        self._dtype = dtype
        self._device = device

    def take(self, name: str) -> torch.Tensor:
        return self._stored.pop(name).to(self._device, self._dtype)

    def linear(self, *names: str) -> Linear:
        """One linear whose outputs are those of the named ones, in order."""
        weight = torch.cat([self.take(f"{name}.weight") for name in names])
        if f"{names[0]}.bias" not in self._stored:
            return self.backend.linear(weight)
        return self.backend.linear(weight, torch.cat([self.take(f"{name}.bias") for name in names]))


def _layer(
    config: ModelConfig, weights: _Weights, index: int, parts: ParallelParts
) -> DecoderLayer:
    prefix = f"model.layers.{index}."
    attention, mlp = prefix + "self_attn.", prefix + "mlp."

    def norm(name: str) -> RMSNorm:
        return weights.backend.norm(weights.take(f"{prefix}{name}.weight"), config.rms_norm_eps)

    return DecoderLayer(
        attention_norm=norm("input_layernorm"),
        attention=Attention(
            layer=index,
            qkv=weights.linear(*(f"{attention}{part}_proj" for part in "qkv")),
            qk_norm=_qk_norm(config, weights, attention) if config.qk_norm else None,
            output=parts.row_parallel(weights.linear(f"{attention}o_proj")),
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
        ),
        mlp_norm=norm("post_attention_layernorm"),
        mlp=MLP(
            gate_up=weights.linear(f"{mlp}gate_proj", f"{mlp}up_proj"),
            down=parts.row_parallel(weights.linear(f"{mlp}down_proj")),
        ),
    )


def _qk_norm(config: ModelConfig, weights: _Weights, prefix: str) -> RMSNorm:
    """One norm for all query and key heads: its weight repeats theirs."""
    query = weights.take(f"{prefix}q_norm.weight").expand(config.num_heads, -1)
    key = weights.take(f"{prefix}k_norm.weight").expand(config.num_kv_heads, -1)
    return weights.backend.norm(torch.cat((query, key)), config.rms_norm_eps)
