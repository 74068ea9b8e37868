"""A whole round, forward, acceptance and commit, on every route that a step can take.

Acceptance runs by the interpreted kernels, as on a GPU; steps are large enough to leave every
graph of a usual deployment.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from families import SHAPE
from ranks import Life
from transformers import LlamaConfig, LlamaForCausalLM
from verify_driver import Client, Driver, TreeMaker, anchor_alone

from canopy.acceptance.device_acceptor import DeviceAcceptor
from canopy.kv_cache.triton_cache import TritonKVCache
from canopy.models.config import ModelConfig
from canopy.models.decoder import Decoder, load_decoder
from canopy.models.llama.float_decoder import LayerBackend, load_float_decoder
from canopy.models.llama.graph_decoder import GraphDecoder
from canopy.models.llama.layers import Linear, RMSNorm
from canopy.sampling import Acceptance, SamplingParams
from canopy.tree import DraftTree, ProposalRow
from canopy_kernels.attention.tree_attention import tree_attention

NUM_STREAMS, NUM_LEVELS, WIDTH = 8, 3, 16  # 48 nodes a tree
VOCAB_SIZE = SHAPE["vocab_size"]
PROMPT = np.random.default_rng(5).integers(0, VOCAB_SIZE, 600).tolist()
BLOCK_SIZE = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One layer: the steps are large, the model is not."""
    small = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 1024,
    }
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("routes") / "model"
    LlamaForCausalLM(LlamaConfig(**SHAPE | small)).save_pretrained(path)
    return path


def served(decoder: Decoder, make_tree: TreeMaker | None = None, **options) -> Driver:
    """Eight streams, the first with a long prompt; one draws with filters, the rest are greedy."""
    driver = Driver(2048, BLOCK_SIZE, max_step_tokens=640, decoder=decoder, **options)
    for stream in range(NUM_STREAMS):
        params = SamplingParams(
            temperature=0.8 if stream == 1 else 0.0,
            seed=stream,
            top_k=40,
            max_tokens=5,
            min_tokens=2,
            stop_token_ids=(3,),
            acceptance=Acceptance.COUPLED,
        )
        driver.add(PROMPT if stream == 0 else PROMPT[stream : 3 * stream + 2], params)
    driver.run(*[make_tree] if make_tree else [])
    return driver


def wide_trees(plain: list[list[int]]) -> TreeMaker:
    """Full trees whose right tokens stand among siblings, so that accepted rows have to move."""

    def make(client: Client) -> tuple[DraftTree, list[ProposalRow]]:
        if not client.emitted:
            return anchor_alone(client)
        right = plain[client.id - 1000][len(client.emitted) :][:NUM_LEVELS]
        right += [0] * (NUM_LEVELS - len(right))
        tokens, parents, parent = [client.tokens[-1]], [-1], 0
        for level, token in enumerate(right):
            siblings = (token - level - 2 + np.arange(WIDTH)) % VOCAB_SIZE
            parents += [parent] * WIDTH
            parent = len(tokens) + level + 2
            tokens += siblings.tolist()
        tree = DraftTree(np.array(tokens, np.int32), np.array(parents, np.int32))
        return tree, [ProposalRow.empty()] * len(tokens)

    return make


class Cache(TritonKVCache):
    """Attends on the CPU, whose path is quick; padded rows give zero, as from the kernels."""

    def attend(self, layer, query, rows, scale):
        num_rows = int(rows.row_starts[-1])
        own = replace(rows, slots=rows.slots[:num_rows], parent_rows=rows.parent_rows[:num_rows])
        out = torch.zeros_like(query)
        out[:num_rows] = tree_attention(
            query[:num_rows], self.keys[layer], self.values[layer], own, scale
        )
        return out


def over_kernels(folder: Path, max_graph_rows: int) -> GraphDecoder:
    """What a GPU runs, its graphs being plain calls; a recorder stands for their capture."""
    backend = LayerBackend(Linear, RMSNorm, Cache)
    decoder = load_float_decoder(folder, ModelConfig.from_folder(folder), "float32", "cpu", backend)
    return GraphDecoder(decoder, max_graph_rows, NUM_STREAMS, (), lambda: lambda step: step)


@pytest.mark.parametrize(
    "load",
    [lambda folder: over_kernels(folder, 768), lambda folder: over_kernels(folder, 2)],
    ids=["replay", "eager"],
)
def test_large_rounds_are_decided_and_committed(folder, plain, load: Callable[[Path], Decoder]):
    driver = served(load(folder), wide_trees(plain), acceptor=DeviceAcceptor())
    assert [client.emitted for client in driver.clients] == plain
    assert driver.num_accepted > NUM_STREAMS


def test_large_rounds_are_decided_and_committed_on_ranks(folder, plain, ranks, tmp_path):
    life = Life.of(ranks, folder, 2, tmp_path)
    driver = served(life.decoder, wide_trees(plain), acceptor=DeviceAcceptor())
    life.end()
    assert [client.emitted for client in driver.clients] == plain


@pytest.fixture(scope="module")
def plain(folder: Path) -> list[list[int]]:
    """The text without trees, by the CPU's own path."""
    driver = served(load_decoder(folder, "float32", "cpu"))
    return [client.emitted for client in driver.clients]
