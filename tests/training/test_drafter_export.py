"""The exported graphs compute what the network computes."""

import numpy as np
import onnx
import pytest
import torch
from training.drafter_corpus import block_inputs, make_drafter

from canopy.errors import InvalidDeployment
from canopy.models.block_drafter.checkpoint import save_drafter
from canopy.models.block_drafter.runner import (
    BLOCK_GRAPH,
    BlockInputs,
    OnnxBlockRunner,
    TorchBlockRunner,
)
from canopy.models.block_drafter.runner_choice import runner_for
from canopy_training.block_drafter.export import export_drafter

BATCHES = [(1, 1), (1, 40), (3, 17)]


@pytest.fixture(scope="module")
def drafter(tiny_folder):
    drafter = make_drafter(tiny_folder)
    with torch.no_grad():
        for part in (drafter.inject, drafter.copy, drafter.match_lengths, drafter.markov_row):
            part.weight.normal_(std=0.1)
    return drafter.eval()


@pytest.fixture(scope="module")
def exported(drafter, tmp_path_factory):
    folder = tmp_path_factory.mktemp("drafter")
    for name, is_int8 in (("float", False), ("int8", True)):
        save_drafter(drafter, folder / name)
        export_drafter(drafter, folder / name, is_int8)
    return folder


def inputs_of(runner, config, batch, length) -> BlockInputs:
    generator = np.random.default_rng(0)
    hidden_states = generator.normal(size=(batch * length, config.hidden_states_size)).astype(
        np.float16
    )
    vectors, key_values = runner.encode(hidden_states, np.tile(np.arange(length), batch))
    return block_inputs(config, vectors, key_values, batch, length)


@pytest.mark.parametrize(("batch", "length"), BATCHES)
def test_the_float_graphs_equal_the_network_within_1e_4(drafter, exported, batch, length):
    network, graphs = TorchBlockRunner(drafter, "cpu"), OnnxBlockRunner(exported / "float", 1)
    inputs = inputs_of(network, drafter.config, batch, length)
    other = inputs_of(graphs, drafter.config, batch, length)
    for ours, theirs in zip(inputs, other, strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-4)
    config, rows = drafter.config, network.propose(inputs)
    assert rows.logits.shape == (batch, config.block_size, config.draft_vocab_size)
    assert rows.codes.shape == (batch, config.block_size, config.rank)
    for ours, theirs in zip(rows, graphs.propose(inputs), strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("batch", "length"), BATCHES)
def test_int8_weights_change_rows_little(drafter, exported, batch, length):
    network, graphs = TorchBlockRunner(drafter, "cpu"), OnnxBlockRunner(exported / "int8", 1)
    rows = network.propose(inputs_of(network, drafter.config, batch, length))
    found = graphs.propose(inputs_of(graphs, drafter.config, batch, length))
    for ours, theirs in zip(rows, found, strict=True):
        assert np.sqrt(np.mean((theirs - ours) ** 2)) < 0.15 * ours.std()


def test_no_two_products_of_the_int8_graph_leave_16_bits(exported):
    """The instruction of CPUs without VNNI adds a pair of uint8 times int8 in int16."""
    graph = onnx.load(exported / "int8" / BLOCK_GRAPH).graph
    initializers = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    products = [node for node in graph.node if node.op_type == "MatMulInteger"]
    assert products
    for node in products:
        _, weight, _, weight_zero = node.input
        levels = initializers[weight].astype(int)
        assert not initializers[weight_zero].any()
        assert 2 * 255 * np.abs(levels).max() < 2**15
        assert np.abs(levels).max() > 2**5  # and the bits that are left are used


def test_padding_and_company_do_not_matter(drafter, exported):
    graphs = OnnxBlockRunner(exported / "float", 1)
    inputs = inputs_of(graphs, drafter.config, 3, 17)
    together = graphs.propose(inputs)
    for index, length in enumerate(inputs.lengths):
        alone = BlockInputs(*(part[index : index + 1] for part in inputs))
        alone = alone._replace(key_values=alone.key_values[:, :length])
        for ours, theirs in zip(together, graphs.propose(alone), strict=True):
            np.testing.assert_allclose(theirs[0], ours[index], rtol=1e-4, atol=1e-4)


def test_exported_graphs_are_taken_and_damaged_ones_refused(exported, drafter):
    folder = exported / "float"
    assert isinstance(runner_for(drafter, folder, "cpu", 1), OnnxBlockRunner)
    (folder / "block.onnx").write_bytes(b"nothing")
    with pytest.raises(InvalidDeployment, match=r"block\.onnx"):
        runner_for(drafter, folder, "cpu", 1)
