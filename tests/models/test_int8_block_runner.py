"""The int8 kernels compute what the network of a block drafter computes."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numba import njit
from training.drafter_corpus import block_inputs, make_drafter

from canopy.models.block_drafter.int8_runner import Int8BlockRunner
from canopy.models.block_drafter.runner import BlockInputs, TorchBlockRunner
from canopy.models.block_drafter.runner_choice import runner_for
from canopy_kernels.int8.weighted_sum import weighted_sum

BATCHES = [(1, 1), (1, 40), (2, 9), (5, 33)]


@pytest.fixture(scope="module")
def drafter(tiny_folder):
    drafter = make_drafter(tiny_folder)
    with torch.no_grad():
        for part in (drafter.inject, drafter.copy, drafter.match_lengths, drafter.markov_row):
            part.weight.normal_(std=0.1)
    return drafter.eval()


def encoded(runner, config, batch, length):
    generator = np.random.default_rng(batch)
    hidden_states = generator.normal(size=(batch * length, config.hidden_states_size)).astype(
        np.float16
    )
    return runner.encode(hidden_states, np.tile(np.arange(length), batch))


def deviation(found, expected):
    """Root of the mean square, in standard deviations of what is expected."""
    return np.sqrt(np.mean((found - expected) ** 2)) / expected.std()


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize(("batch", "length"), BATCHES)
def test_passes_equal_the_network_but_for_what_int8_rounds(drafter, batch, length, num_threads):
    network, kernels = TorchBlockRunner(drafter, "cpu"), Int8BlockRunner(drafter, num_threads)
    vectors, key_values = encoded(network, drafter.config, batch, length)
    for found, expected in zip(
        encoded(kernels, drafter.config, batch, length), (vectors, key_values), strict=True
    ):
        assert found.shape == expected.shape
        assert deviation(found, expected) < 0.02
    inputs = block_inputs(drafter.config, vectors, key_values, batch, length)
    for found, expected in zip(kernels.propose(inputs), network.propose(inputs), strict=True):
        assert found.shape == expected.shape
        assert deviation(found, expected) < 0.03


def test_padding_company_and_threads_do_not_change_a_bit(drafter):
    one, two = Int8BlockRunner(drafter, 1), Int8BlockRunner(drafter, 2)
    vectors, key_values = encoded(one, drafter.config, 3, 17)
    np.testing.assert_array_equal(encoded(two, drafter.config, 3, 17)[1], key_values)
    inputs = block_inputs(drafter.config, vectors, key_values, 3, 17)
    together = [part.copy() for part in one.propose(inputs)]
    for part, other in zip(two.propose(inputs), together, strict=True):
        np.testing.assert_array_equal(part, other)
    for index, length in enumerate(inputs.lengths):
        alone = BlockInputs(*(part[index : index + 1] for part in inputs))
        alone = alone._replace(key_values=alone.key_values[:, :length])
        for part, other in zip(one.propose(alone), together, strict=True):
            np.testing.assert_array_equal(part[0], other[index])


def test_it_is_what_a_cpu_gets_without_graphs(drafter, tmp_path):
    assert isinstance(runner_for(drafter, tmp_path, "cpu", 1), Int8BlockRunner)


@njit
def summed(shares, rows, out):  # type: ignore[no-untyped-def]
    weighted_sum(
        out.ctypes.data,
        shares.ctypes.data,
        rows.ctypes.data,
        rows.strides[0],
        len(shares),
        len(out),
    )


@given(st.integers(0, 40), st.integers(1, 200), st.integers(0, 7))
def test_weighted_sums_of_any_size(num, size, gap):
    generator = np.random.default_rng(num * 1000 + size)
    whole = generator.normal(size=(num, size + gap)).astype(np.float32)
    shares = generator.normal(size=num).astype(np.float32)
    out = np.full(size, 7.0, np.float32)
    summed(shares, whole[:, :size], out)
    np.testing.assert_allclose(out, shares @ whole[:, :size], rtol=1e-4, atol=1e-4)
