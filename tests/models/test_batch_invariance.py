"""A row's logits are the same to the bit alone, in any tree, in any batch and with padding."""

import numpy as np
import pytest
import torch
from families import write_family

from canopy.models.decoder import load_decoder
from canopy.models.llama.buckets import Bucket, Buckets
from canopy.models.step_batch import Segment, assemble_step

BLOCK_SIZE = 4
NUM_BLOCKS = 24
TOKENS = np.random.default_rng(7).integers(0, 97, 40)
TREE = np.array([-1, 0, 0, 1, 1, 2, 3])  # the last node's path: 0, 1, 3, 6
PATH = [0, 1, 3, 6]
NODES = np.array([30, 31, 32, 33, 34, 35, 36])
CONTEXT = 3


@pytest.fixture(scope="module", params=[("mistral", "float32"), ("qwen3", "bfloat16")])
def decoder(request, tmp_path_factory):
    family, dtype = request.param
    folder = tmp_path_factory.mktemp(family)
    write_family(family, folder)
    return load_decoder(folder, dtype, "cpu", is_shape_invariant=True)


def segment(table: list[int], start: int, token_ids, parents) -> Segment:
    return Segment(
        start, table, np.asarray(token_ids), np.asarray(parents), np.arange(len(parents))
    )


def chain(table: list[int], start: int, token_ids) -> Segment:
    return segment(table, start, token_ids, np.arange(-1, len(token_ids) - 1))


def one_by_one(decoder, token_ids) -> torch.Tensor:
    """Plain decoding, the context included."""
    cache, table = decoder.new_cache(NUM_BLOCKS, BLOCK_SIZE), list(range(NUM_BLOCKS))
    steps = (chain(table, i, [token]) for i, token in enumerate(token_ids))
    return torch.cat([decoder.forward(assemble_step([step], BLOCK_SIZE), cache) for step in steps])


@pytest.fixture(scope="module")
def plain(decoder) -> torch.Tensor:
    """The logits of the path's nodes in plain decoding."""
    return one_by_one(decoder, [*TOKENS[:CONTEXT], *NODES[PATH]])[CONTEXT:]


def in_tree(decoder, others: list[int], bucket: Bucket | None = None) -> torch.Tensor:
    """The same nodes' logits in a tree, after other sequences' rows, on shuffled blocks."""
    tables = np.random.default_rng(len(others)).permutation(NUM_BLOCKS).reshape(3, -1).tolist()
    cache = decoder.new_cache(NUM_BLOCKS, BLOCK_SIZE)
    first = [chain(tables[0], 0, TOKENS[:CONTEXT])]
    decoder.forward(assemble_step(first, BLOCK_SIZE), cache)
    before = [chain(tables[1 + i], 0, TOKENS[9 : 9 + n]) for i, n in enumerate(others)]
    batch = assemble_step([*before, segment(tables[0], CONTEXT, NODES, TREE)], BLOCK_SIZE)
    if bucket:
        batch = Buckets(bucket.num_rows, bucket.num_sequences, NUM_BLOCKS).pad(batch, bucket)
    logits = decoder.forward(batch, cache)
    return logits[sum(others) :][PATH]


def test_a_node_has_the_logits_of_plain_decoding(decoder, plain):
    assert torch.equal(in_tree(decoder, []), plain)
    assert (plain[1:] != plain[:-1]).any()


def test_other_sequences_and_padding_change_nothing(decoder, plain):
    assert torch.equal(in_tree(decoder, [2, 4], Bucket(16, 4)), plain)
