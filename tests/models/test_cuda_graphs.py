"""On a GPU alone: graphs are captured, replay what plain steps compute, and wait for nothing."""

import numpy as np
import pytest
import torch
from families import write_family

from canopy.acceptance.acceptor import Candidate, HostAcceptor
from canopy.acceptance.device_acceptor import DeviceAcceptor
from canopy.models.decoder import load_decoder
from canopy.models.llama.graph_decoder import GraphDecoder
from canopy.models.step_batch import Segment, assemble_step
from canopy.sampling import Acceptance, SamplingParams
from canopy.tree import DraftTree, ProposalRow

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

BLOCK_SIZE = 16
NUM_BLOCKS = 32
TOLERANCE = 1e-3  # float32, whose matrix products torch may sum in another order


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    write_family("mistral", folder)
    return load_decoder(folder, "float32", "cuda")


def steps() -> list[list[Segment]]:
    """Prompts of two sequences, a token each, and a tree."""
    tokens = np.random.default_rng(0).integers(0, 97, 40)

    def segment(table: list[int], start: int, parents: list[int]) -> Segment:
        rows = np.arange(len(parents))
        return Segment(start, table, tokens[start : start + len(rows)], np.array(parents), rows)

    first, second = [3, 9], [4, 1]
    return [
        [segment(first, 0, list(range(-1, 8))), segment(second, 0, list(range(-1, 4)))],
        [segment(first, 9, [-1]), segment(second, 5, [-1])],
        [segment(first, 10, [-1, 0, 0, 1, 2])],
    ]


def test_replayed_graphs_equal_plain_steps(decoder):
    graphs = GraphDecoder(decoder, 16, 2)
    caches = (
        decoder.new_cache(NUM_BLOCKS, BLOCK_SIZE),
        graphs.new_cache(NUM_BLOCKS, BLOCK_SIZE),
    )
    for segments in steps():
        batch = assemble_step(segments, BLOCK_SIZE)
        expected = decoder.forward(batch, caches[0])
        assert (graphs.forward(batch, caches[1]) - expected).abs().max() < TOLERANCE
    assert (caches[1].keys - caches[0].keys).abs().max() < TOLERANCE


def test_nothing_waits_for_the_device_before_the_verdicts(decoder, monkeypatch):
    graphs = GraphDecoder(decoder, 16, 2)
    cache = graphs.new_cache(NUM_BLOCKS, BLOCK_SIZE)
    tree = DraftTree(np.array([5, 6, 7], np.int32), np.array([-1, 0, 0], np.int32))
    row = ProposalRow(np.array([6, 7], np.int32), np.log(np.array([0.5, 0.5], np.float32)))
    settings = [
        SamplingParams(seed=2, acceptance=mode, top_k=9, typical_p=0.9) for mode in Acceptance
    ]
    candidates = [Candidate(tree, [row] * 3, params, 8) for params in settings]
    batch = assemble_step([steps()[0][0]], BLOCK_SIZE)
    logits = graphs.forward(batch, cache)
    copied = logits.repeat(2, 1)[: 3 * len(settings)].clone()
    expected = HostAcceptor().accept(candidates, copied)
    DeviceAcceptor().accept(candidates, copied.clone())  # compiles the kernels

    fetch = torch.Tensor.cpu

    def fetched(tensor: torch.Tensor) -> torch.Tensor:
        """The one wait that is meant."""
        torch.cuda.set_sync_debug_mode("default")
        return fetch(tensor)

    monkeypatch.setattr(torch.Tensor, "cpu", fetched)
    torch.cuda.set_sync_debug_mode("error")
    try:
        graphs.forward(batch, cache)
        given = DeviceAcceptor().accept(candidates, copied)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert given == expected
