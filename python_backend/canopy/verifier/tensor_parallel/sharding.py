"""Which part of a decoder each rank holds, and how its weights are cut.

    attention    by KV head with its query heads: as even as whole heads allow. With fewer KV heads
                 than ranks, each is held by several ranks, with a part of its query heads each
    MLP          inner columns, evenly
    vocabulary   rows of the embedding and of the head, evenly

A linear's outputs are cut where the next one's inputs are (column, then row parallel), so that
attention and MLP end in one sum over ranks each; a bias of that sum is rank 0's.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import torch

from canopy.errors import InvalidDeployment
from canopy.models.config import ModelConfig


@dataclass(frozen=True)
class Shard:
    """The part of rank `rank` of `num_ranks`. Raises InvalidDeployment for too many ranks."""

    config: ModelConfig  # of the whole model
    rank: int
    num_ranks: int

    def __post_init__(self) -> None:
        if self.num_ranks > self.config.num_heads:
            raise InvalidDeployment(
                f"a model of {self.config.num_heads} heads cannot be cut for {self.num_ranks} ranks"
            )

    @cached_property
    def copies(self) -> int:
        """Ranks' units of one KV head: the fewest that divide its query heads and suffice."""
        group = self.config.num_heads // self.config.num_kv_heads
        enough = -(-self.num_ranks // self.config.num_kv_heads)
        return next(n for n in range(enough, group + 1) if group % n == 0)

    @cached_property
    def kv_heads(self) -> list[int]:
        """The whole model's KV heads that are held here, in order; one may come twice."""
        return [unit // self.copies for unit in self._share(self._num_units)]

    @cached_property
    def query_heads(self) -> range:
        """Those of the KV heads, as many for each."""
        width = self.config.num_heads // self._num_units
        units = self._share(self._num_units)
        return range(units.start * width, units.stop * width)

    @property
    def _num_units(self) -> int:
        return self.config.num_kv_heads * self.copies

    @cached_property
    def inner(self) -> range:
        """Columns of the MLP."""
        return self._share(self.config.intermediate_size)

    @cached_property
    def tokens(self) -> range:
        """Rows of the embedding and of the head."""
        return self.tokens_of(self.rank)

    def tokens_of(self, rank: int) -> range:
        """The same of any rank."""
        return replace(self, rank=rank)._share(self.config.vocab_size)

    @property
    def local_config(self) -> ModelConfig:
        """The model as one rank's layers and cache see it."""
        return replace(
            self.config,
            num_heads=len(self.query_heads),
            num_kv_heads=len(self.kv_heads),
            intermediate_size=len(self.inner),
        )

    def _share(self, total: int) -> range:
        """Contiguous; the first ranks take one more where it does not come out even."""
        least, more = divmod(total, self.num_ranks)
        start = self.rank * least + min(self.rank, more)
        return range(start, start + least + (self.rank < more))

    def cut(self, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """This rank's part of all tensors, by their Hugging Face names."""
        cut = {name: self._cut(name, weights[name]) for name in weights}
        return {name: tensor for name, tensor in cut.items() if tensor is not None}

    def _cut(self, name: str, weight: torch.Tensor) -> torch.Tensor | None:
        """None: another rank's matter."""
        part, kind = name.split(".")[-2:]
        if part in ("o_proj", "down_proj") and kind == "bias":
            return weight if self.rank == 0 else None
        if part in ("embed_tokens", "lm_head"):
            return _slice(weight, self.tokens)
        if part in ("gate_proj", "up_proj"):
            return _slice(weight, self.inner)
        if part == "down_proj":
            return _slice(weight, self.inner, dim=1)
        if part in ("q_proj", "o_proj"):
            columns = range(*(head * self.config.head_dim for head in self._query_bounds))
            return _slice(weight, columns, dim=int(part == "o_proj"))
        if part in ("k_proj", "v_proj"):
            heads = weight.unflatten(0, (self.config.num_kv_heads, self.config.head_dim))
            return heads[self.kv_heads].flatten(0, 1)
        return weight

    @property
    def _query_bounds(self) -> tuple[int, int]:
        return self.query_heads.start, self.query_heads.stop


def _slice(weight: torch.Tensor, rows: range, dim: int = 0) -> torch.Tensor:
    """Storage of its own, so that the rest is freed."""
    return weight.narrow(dim, rows.start, len(rows)).clone(memory_format=torch.contiguous_format)
