"""A round as on a GPU: padded steps over fixed memory, acceptance and moves by the kernels.

The kernels are interpreted and nothing is captured; all else is what runs on a GPU.
"""

import numpy as np
import pytest
import torch
from families import write_family
from verify_driver import Client, Driver

from canopy.acceptance.device_acceptor import DeviceAcceptor
from canopy.kv_cache.triton_cache import TritonKVCache
from canopy.models.decoder import load_decoder
from canopy.models.llama.graph_decoder import GraphDecoder
from canopy.sampling import Acceptance, SamplingParams
from canopy.tree import DraftTree, ProposalRow

GREEDY = SamplingParams(temperature=0.0, max_tokens=7)
COUPLED = SamplingParams(seed=11, max_tokens=7, top_k=20, acceptance=Acceptance.COUPLED)
PROMPTS = [[5, 17, 40], [8, 9, 10, 11, 12, 13]]
BLOCK_SIZE = 16


@pytest.fixture
def decoder(tmp_path):
    write_family("mistral", tmp_path)
    return load_decoder(tmp_path, "float32", "cpu")


def served(decoder, make_tree=None, **options) -> Driver:
    driver = Driver(24 * BLOCK_SIZE, BLOCK_SIZE, max_step_tokens=4, decoder=decoder, **options)
    for prompt, params in zip(PROMPTS, (GREEDY, COUPLED), strict=True):
        driver.add(prompt, params)
    driver.run(*[make_tree] if make_tree else [])
    return driver


def test_the_text_is_that_of_the_cpu_path(decoder, monkeypatch):
    plain = [client.emitted for client in served(decoder).clients]

    def tree_of(client: Client):
        """Right tokens below a wrong first child, so that accepted rows have to move."""
        right = plain[client.id - 1000][len(client.emitted) :][:3]
        wrong = (right[0] + 1) % 97
        tokens = np.array([client.tokens[-1], wrong, *right], np.int32)
        tree = DraftTree(tokens, np.array([-1, 0, 0, 2, 3][: len(tokens)], np.int32))
        return tree, [ProposalRow.empty()] * len(tokens)

    config = decoder.config
    shape = config.num_layers, 24, BLOCK_SIZE, config.num_kv_heads, config.head_dim
    monkeypatch.setattr(
        decoder, "new_cache", lambda *_: TritonKVCache(*shape, torch.float32, "cpu")
    )
    num_replayed = 0

    def recorded(step):
        def replay() -> None:
            nonlocal num_replayed
            num_replayed += 1
            step()

        return replay

    graphs = GraphDecoder(decoder, 16, 2, (), lambda: recorded)
    driver = served(graphs, tree_of, acceptor=DeviceAcceptor())
    assert [client.emitted for client in driver.clients] == plain
    assert driver.num_accepted >= 6
    assert num_replayed > 0
