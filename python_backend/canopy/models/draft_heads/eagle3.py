"""EAGLE-3: one decoder layer that drafts a token at a time from the target's features.

    row i      token i + 1 and the feature of position i:
               fc(states of the target), or the output of the parent's row where a draft goes on
    attention  reads [norm(embedding); norm(feature)] and adds to the feature
    logits     lm_head(norm(output)) of the token behind; the output itself is fed back

Rows lie in a paged cache as those of a decoder do, and a draft tree's rows see their own path.
"""

import torch
from torch import nn

from canopy.kv_cache.float_cache import KVCache
from canopy.kv_cache.triton_cache import cache_type_for
from canopy.models.draft_heads.config import Eagle3Config
from canopy.models.draft_heads.layers import HeadLayer, Rope, Rotation
from canopy.models.step_batch import StepBatch
from canopy_kernels.attention.paged_rows import PagedRows


class Eagle3Head(nn.Module):
    """The network; its state has the names of the speculators and DeepSpec layouts."""

    draft_ids: torch.Tensor  # int64 [Vd] target ids of the draft vocabulary

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        layer, num_states = config.backbone, len(config.target_layers)
        hidden, eps = layer.hidden_size, layer.rms_norm_eps
        self.config = config
        self.embed_tokens = nn.Embedding(layer.vocab_size, hidden)
        self.input_norm = (
            nn.RMSNorm(config.hidden_states_size, eps) if config.norms_features else None
        )
        self.fc_norm = None
        if config.norms_each_state:
            norms = (nn.RMSNorm(config.target_hidden_size, eps) for _ in range(num_states))
            self.fc_norm = nn.ModuleList(norms)
        self.fc = nn.Linear(config.hidden_states_size, hidden, bias=False)
        self.layers = nn.ModuleList(
            HeadLayer(layer, num_inputs=1 if index else 2) for index in range(layer.num_layers)
        )
        self.norm = nn.RMSNorm(hidden, eps)
        self.lm_head = nn.Linear(hidden, config.draft_vocab_size, bias=False)
        self.rope = Rope(layer)
        self.register_buffer("draft_ids", torch.arange(config.draft_vocab_size), persistent=False)

    def new_cache(
        self, num_blocks: int, block_size: int, kind: type[KVCache] | None = None
    ) -> KVCache:
        """An empty cache of the head's shape. kind: by default the one for its device."""
        layer, weight = self.config.backbone, self.norm.weight
        device, kind = str(weight.device), kind or cache_type_for(str(weight.device))
        shape = layer.num_layers, num_blocks, block_size, layer.num_kv_heads, layer.head_dim
        return kind(*shape, weight.dtype, device)

    def fuse(self, states: torch.Tensor) -> torch.Tensor:
        """HiddenStates of positions from the target's states: [..., states * E] to [..., E]."""
        states = states.to(self.fc.weight.dtype)
        if self.input_norm is not None:
            states = self.input_norm(states)
        if self.fc_norm is not None:
            parts = states.unflatten(-1, (len(self.fc_norm), -1)).unbind(-2)
            normed = [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)]
            states = torch.cat(normed, dim=-1)
        fused: torch.Tensor = self.fc(states)
        return fused

    def forward(self, batch: StepBatch, features: torch.Tensor, cache: KVCache) -> torch.Tensor:
        """Compute rows, writing their keys and values to their slots; outputs [T, E].

        batch: on the head's device; each row's token is that of the position behind its feature.
        features: [T, E], those of `fuse` or of `feedback`.
        """
        embedded = self.embed_tokens(batch.token_ids)
        rotation = self.rope(batch.positions, features.dtype)
        rows = batch.paged_rows(cache.block_size)
        for index, layer in enumerate(self._head_layers()):
            if index == 0:
                normed = layer.hidden_norm(features)  # type: ignore[misc]
                inputs = torch.cat((layer.input_layernorm(embedded), normed), dim=-1)
                residual = normed if self.config.norms_residual else features
            else:
                inputs, residual = layer.input_layernorm(features), features
            mixed = _attend(layer, index, inputs, rotation, rows, cache)
            features = layer.finish(residual, mixed)
        return features

    def feedback(self, outputs: torch.Tensor) -> torch.Tensor:
        """The features of rows that go on from these outputs; [..., E] to the same."""
        return self.norm(outputs) if self.config.feeds_back_normed else outputs

    def logits(self, outputs: torch.Tensor) -> torch.Tensor:
        """[..., E] to [..., Vd], of the draft vocabulary."""
        logits: torch.Tensor = self.lm_head(
            self.norm(outputs) if self.config.norms_logits else outputs
        )
        return logits

    def _head_layers(self) -> list[HeadLayer]:
        return [layer for layer in self.layers if isinstance(layer, HeadLayer)]


def _attend(
    layer: HeadLayer,
    index: int,
    inputs: torch.Tensor,
    rotation: Rotation,
    rows: PagedRows,
    cache: KVCache,
) -> torch.Tensor:
    """[T, H, D] of a step's rows over one layer of the cache."""
    attention = layer.self_attn
    cache.write(index, rows.slots, attention.keys(inputs, rotation), attention.values(inputs))
    queries = attention.queries(inputs, rotation).contiguous()
    return cache.attend(index, queries, rows, attention.head_dim**-0.5)
