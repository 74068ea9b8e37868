"""The parts of a sharded decoder that end in a collective; all ranks call them in one order."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812

from canopy.models.llama.float_decoder import ParallelParts
from canopy.models.llama.layers import Linear
from canopy.verifier.tensor_parallel.sharding import Shard


@dataclass(frozen=True)
class RowParallel:
    """A linear of which each rank holds some inputs: its outputs are summed over ranks."""

    linear: Linear

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """[T, local in] to [T, out], the same on all ranks."""
        out = self.linear(rows)
        dist.all_reduce(out)
        return out


@dataclass(frozen=True)
class VocabularyEmbedding:
    """An embedding of which each rank holds some tokens; the others' rows are zero here."""

    weight: torch.Tensor  # [local tokens, E]
    first: int

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """int64 [T] to [T, E], the same on all ranks."""
        local = token_ids - self.first
        is_here = (local >= 0) & (local < len(self.weight))
        rows = F.embedding(local.clamp(0, len(self.weight) - 1), self.weight)
        rows = torch.where(is_here.unsqueeze(1), rows, 0)
        dist.all_reduce(rows)
        return rows


@dataclass(frozen=True)
class VocabularyHead:
    """A head of which each rank scores some tokens."""

    linear: Linear
    shard: Shard

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """[L, E] to [L, V] on rank 0, where all scores meet; to this rank's own elsewhere."""
        if len(rows) == 0:  # as in a chunk of a prompt: nothing to gather
            return rows.new_empty((0, self.shard.config.vocab_size))
        scores = self.linear(rows)
        sizes = [len(self.shard.tokens_of(rank)) for rank in range(self.shard.num_ranks)]
        padded = F.pad(scores, (0, max(sizes) - scores.shape[1])).contiguous()
        if self.shard.rank > 0:
            dist.gather(padded)
            return scores
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.gather(padded, parts)
        return torch.cat([part[:, :size] for part, size in zip(parts, sizes, strict=True)], dim=1)


def parallel_parts_of(shard: Shard) -> ParallelParts:
    """How a rank's decoder differs from a whole one."""
    return ParallelParts(
        embedding=lambda weight: VocabularyEmbedding(weight, shard.tokens.start),
        row_parallel=RowParallel,
        head=lambda linear: VocabularyHead(linear, shard),
    )
