"""Every rank's part, taken together, is the whole model once."""

import pytest
import torch
from families import SHAPE

from canopy.errors import InvalidDeployment
from canopy.models.config import ModelConfig
from canopy.verifier.tensor_parallel.sharding import Shard


def config_of(num_heads: int, num_kv_heads: int) -> ModelConfig:
    return ModelConfig(
        family="llama",
        vocab_size=SHAPE["vocab_size"],
        hidden_size=num_heads * 4,
        intermediate_size=13,
        num_layers=1,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=4,
        max_position_embeddings=32,
        rms_norm_eps=1e-5,
        rope_theta=1e4,
        rope_scaling=None,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        qk_norm=False,
        tie_word_embeddings=False,
        eos_token_ids=(3,),
    )


SHAPES = [(9, 3, 2), (9, 3, 3), (9, 3, 4), (6, 2, 3), (6, 6, 4), (8, 2, 8), (12, 2, 3), (8, 8, 2)]


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "num_ranks"), SHAPES)
def test_ranks_share_everything_and_nothing_twice(num_heads, num_kv_heads, num_ranks):
    config = config_of(num_heads, num_kv_heads)
    shards = [Shard(config, rank, num_ranks) for rank in range(num_ranks)]
    group = num_heads // num_kv_heads
    for part, total in (("query_heads", num_heads), ("inner", 13), ("tokens", config.vocab_size)):
        assert [i for shard in shards for i in getattr(shard, part)] == list(range(total))
    for shard in shards:
        assert len(shard.tokens) > 0
        assert len(shard.inner) > 0
        width = len(shard.query_heads) // len(shard.kv_heads)
        assert len(shard.query_heads) == width * len(shard.kv_heads)
        served = [head // group for head in shard.query_heads]
        assert served == [head for head in shard.kv_heads for _ in range(width)]


def test_three_kv_heads_are_split_unevenly_over_two_ranks():
    shards = [Shard(config_of(9, 3), rank, 2) for rank in range(2)]
    assert [shard.kv_heads for shard in shards] == [[0, 1], [2]]
    assert [len(shard.query_heads) for shard in shards] == [6, 3]


def test_more_ranks_than_heads_are_refused():
    with pytest.raises(InvalidDeployment, match="6 heads"):
        Shard(config_of(6, 2), 0, 7)


def test_column_and_row_parallel_linears_sum_to_the_whole_product():
    config = config_of(9, 3)
    torch.manual_seed(0)
    prefix = "model.layers.0."
    weights = {
        f"{prefix}mlp.up_proj.weight": torch.randn(13, 36),
        f"{prefix}mlp.up_proj.bias": torch.randn(13),
        f"{prefix}mlp.down_proj.weight": torch.randn(36, 13),
        f"{prefix}mlp.down_proj.bias": torch.randn(36),
    }
    x = torch.randn(5, 36)

    def product(of: dict[str, torch.Tensor]) -> torch.Tensor:
        linear = torch.nn.functional.linear
        up = linear(x, *(of[f"{prefix}mlp.up_proj.{kind}"] for kind in ("weight", "bias")))
        down = of[f"{prefix}mlp.down_proj.weight"]
        return linear(up.relu(), down, of.get(f"{prefix}mlp.down_proj.bias"))

    parts = [product(Shard(config, rank, 2).cut(weights)) for rank in range(2)]
    assert (sum(parts) - product(weights)).abs().max() < 1e-5
