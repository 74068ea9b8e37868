"""No step, tree or move of serving meets a kernel that was not compiled at the start."""

import logging

import numpy as np
import pytest
import torch
from families import write_family
from kernel_recorder import recorded_variants
from verify_driver import Driver

from canopy.acceptance.device_acceptor import DeviceAcceptor
from canopy.acceptance.result import VerificationResult
from canopy.kv_cache.triton_cache import TritonKVCache
from canopy.models.config import ModelConfig
from canopy.models.llama.float_decoder import (
    SHAPE_INVARIANT,
    LayerBackend,
    load_float_decoder,
)
from canopy.models.llama.graph_decoder import GraphDecoder
from canopy.models.llama.layers import Linear, RMSNorm
from canopy.sampling import Acceptance, SamplingParams
from canopy.tree import DraftTree, ProposalRow
from canopy.verifier.kernel_warm_up import KernelLimits

BLOCK_SIZE, MAX_SEQUENCES, MAX_NODES, ROW_SIZE = 16, 9, 40, 40
LIMITS = KernelLimits(MAX_SEQUENCES, MAX_NODES, ROW_SIZE)
BACKENDS = {
    "tree attention": LayerBackend(Linear, RMSNorm, TritonKVCache),
    "batch-invariant": SHAPE_INVARIANT,
}
MODES = [Acceptance.COUPLED, Acceptance.REJECTION, Acceptance.TRAVERSAL]


class AnyPath(DeviceAcceptor):
    """Launches what decides a tree, then follows a random path in it: the kernels are stubs."""

    def accept(self, candidates, logits):
        super().accept(candidates, logits)
        rng = np.random.default_rng(len(logits))
        return [VerificationResult(random_path(c.tree, rng), 9) for c in candidates]


def random_path(tree: DraftTree, rng: np.random.Generator) -> list[int]:
    path, node = [], 0
    while len(children := tree.children[node]) and rng.random() < 0.9:
        node = int(rng.choice(children))
        path.append(node)
    return path


def run_and_keep(step):
    """As the capture of a graph, which runs a step before."""
    step()
    return step


def driver_of(decoder) -> Driver:
    return Driver(4096, BLOCK_SIZE, max_step_tokens=90, decoder=decoder, acceptor=AnyPath())


def random_tree(client, rng: np.random.Generator):
    """Of any size and shape, with rows of any length on some of its nodes."""
    num_nodes = int(rng.integers(1, MAX_NODES + 1))
    parents = [-1, *(int(rng.integers(node + 1)) for node in range(num_nodes - 1))]
    tokens = rng.choice(97, num_nodes, replace=False).astype(np.int32)
    tokens[0] = client.tokens[-1]
    tree = DraftTree(tokens, np.array(parents, np.int32))
    if client.params.acceptance is Acceptance.COUPLED:
        return tree, [ProposalRow.empty()] * num_nodes
    return tree, [_row(tokens[1:][np.array(parents[1:]) == node], rng) for node in range(num_nodes)]


def _row(children: np.ndarray, rng: np.random.Generator) -> ProposalRow:
    """Of the children and other tokens, or none at all."""
    length = int(rng.integers(0, ROW_SIZE + 1))
    if length < len(children):
        return ProposalRow.empty()
    others = np.setdiff1d(np.arange(97), children)
    token_ids = np.concatenate([children, rng.choice(others, length - len(children), False)])
    if length == 0:
        return ProposalRow.empty()
    return ProposalRow(token_ids.astype(np.int32), np.full(length, -np.log(length), np.float32))


def served(driver: Driver, seed: int) -> None:
    """Prompts of any length in chunks, beside trees of all sizes, in all modes."""
    rng = np.random.default_rng(seed)
    for index in range(MAX_SEQUENCES):
        params = SamplingParams(
            acceptance=MODES[index % 3], seed=index, top_k=30, max_tokens=30, typical_p=0.95
        )
        driver.add(rng.integers(0, 97, int(rng.integers(1, 150))).tolist(), params)
        driver.step(lambda client: random_tree(client, rng))
    driver.run(lambda client: random_tree(client, rng))


@pytest.mark.parametrize("max_graph_rows", [0, 8], ids=["eager", "graphs"])
@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS.keys())
def test_serving_compiles_nothing_new(tmp_path, caplog, backend, max_graph_rows):
    write_family("mistral", tmp_path)
    config = ModelConfig.from_folder(tmp_path)
    decoder = load_float_decoder(tmp_path, config, "float32", "cpu", backend)
    if max_graph_rows:
        decoder = GraphDecoder(decoder, max_graph_rows, MAX_SEQUENCES, (), lambda: run_and_keep)
    with caplog.at_level(logging.INFO), recorded_variants() as compiled:
        driver = driver_of(decoder)
        driver.verifier.compile_kernels(LIMITS)
    assert "compiling kernels: 8 of" in caplog.text
    with recorded_variants() as met:
        served(driver, seed=3)
        served(driver, seed=4)
    assert {variant[0] for variant in met} >= {"_traversal_kernel", "_commit_kv_kernel"}
    new = sorted(map(str, met - compiled))
    assert new == [], "\n".join(new)


def test_warming_up_leaves_the_cache_as_it_was(tmp_path):
    write_family("mistral", tmp_path)
    config = ModelConfig.from_folder(tmp_path)
    backend = BACKENDS["tree attention"]
    decoder = load_float_decoder(tmp_path, config, "float32", "cpu", backend)
    driver = driver_of(decoder)
    driver.verifier.compile_kernels(KernelLimits(1, 2, 2))
    cache = driver.verifier._cache
    assert torch.count_nonzero(cache.keys) == torch.count_nonzero(cache.values) == 0
