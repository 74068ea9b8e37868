"""A round asks the device for nothing but its verdicts.

On meta tensors there are no values: whatever would wait for one, or have a shape that depends on
one, raises. The kernels are stubs, all else is what runs on a GPU.
"""

import numpy as np
import pytest
import torch
from families import write_family
from kernel_recorder import recorded_variants
from verify_driver import Client, Driver

from canopy.acceptance import device_acceptor
from canopy.config import CacheConfig
from canopy.kv_cache.triton_cache import TritonKVCache
from canopy.models.config import ModelConfig
from canopy.models.llama.float_decoder import LayerBackend, load_float_decoder
from canopy.models.llama.graph_decoder import GraphDecoder
from canopy.models.llama.layers import Linear, RMSNorm
from canopy.protocol.hidden_states import HiddenStateLayers
from canopy.sampling import Acceptance, SamplingParams
from canopy.tree import DraftTree, ProposalRow
from canopy.verifier.stage import TargetVerifier

BLOCK_SIZE = 16
FILTERS = {"top_k": 20, "top_p": 0.9, "min_p": 0.05, "typical_p": 0.9}
EDITS = {
    "min_tokens": 3,
    "stop_token_ids": (3,),
    "logit_bias": ((5, 1.5),),
    "presence_penalty": 0.5,
}
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=9),
    SamplingParams(acceptance=Acceptance.COUPLED, max_tokens=9, **FILTERS, **EDITS),
    SamplingParams(acceptance=Acceptance.REJECTION, max_tokens=9, **FILTERS),
    SamplingParams(acceptance=Acceptance.TRAVERSAL, max_tokens=9),
]


def decoder_on_meta(folder):
    write_family("mistral", folder)
    backend = LayerBackend(Linear, RMSNorm, TritonKVCache)
    return load_float_decoder(folder, ModelConfig.from_folder(folder), "float32", "meta", backend)


def two_children(client: Client):
    """The second child stands behind the first, so its keys have to move when it is accepted."""
    tokens = np.array([client.tokens[-1], 7, 8], np.int32)
    return DraftTree(tokens, np.array([-1, 0, 0], np.int32)), [ProposalRow.empty()] * 3


@pytest.fixture
def readings(monkeypatch):
    """What was read back: verdicts that accept the second child."""
    shapes = []

    def read_back(tensor: torch.Tensor) -> np.ndarray:
        shapes.append(tensor.shape)
        verdicts = np.full(tensor.shape, -1, np.int32)
        verdicts[:, 0], verdicts[:, 1], verdicts[:, 2:3] = verdicts.shape[1] - 2, 9, 2
        return verdicts

    monkeypatch.setattr(device_acceptor, "read_back", read_back)
    return shapes


@pytest.mark.parametrize("max_graph_rows", [64, 2], ids=["replay", "eager"])
def test_a_round_reads_the_verdicts_and_nothing_else(tmp_path, readings, max_graph_rows):
    decoder = decoder_on_meta(tmp_path)
    graphs = GraphDecoder(decoder, max_graph_rows, len(PARAMS), (), lambda: lambda step: step)
    with recorded_variants() as variants:
        driver = Driver(64 * BLOCK_SIZE, BLOCK_SIZE, max_step_tokens=24, decoder=graphs)
        for params in PARAMS:
            driver.add(list(range(4, 16)), params)
        num_steps = 0
        while driver.running():
            driver.step(two_children)
            num_steps += 1
    assert driver.num_accepted > len(PARAMS)
    assert len(readings) <= num_steps
    launched = {variant[0] for variant in variants}
    assert {"_commit_kv_kernel", "_traversal_kernel", "_recursive_rejection_kernel"} <= launched


def test_hidden_states_stay_on_the_device_until_they_are_asked_for(tmp_path, readings, monkeypatch):
    sent = []

    def to_float16(states: torch.Tensor) -> np.ndarray:
        sent.append(states.shape)
        return np.zeros(states.shape, np.float16)

    monkeypatch.setattr("canopy.verifier.outcome.to_float16", to_float16)
    with recorded_variants():
        verifier = TargetVerifier(
            decoder_on_meta(tmp_path),
            CacheConfig(64 * BLOCK_SIZE, BLOCK_SIZE, True),
            24,
            HiddenStateLayers((0, 1), 8),
        )
        driver = Driver(64 * BLOCK_SIZE, BLOCK_SIZE, max_step_tokens=24)
        driver.verifier = verifier
        driver.add(list(range(4, 16)), PARAMS[0])
        num_steps = 0
        while driver.running():
            driver.step(two_children)
            num_steps += 1
    assert len(sent) == num_steps
    assert len(readings) == num_steps
