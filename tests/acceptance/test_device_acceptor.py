"""The kernels decide a whole step as the CPU path does: token for token, whatever it mixes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sampling_cases import Case, random_case, to_device

from canopy.acceptance.acceptor import Candidate, HostAcceptor
from canopy.acceptance.device_acceptor import DeviceAcceptor
from canopy.sampling import Acceptance, SamplingParams
from canopy.tree import DraftTree, ProposalRow

VOCAB_SIZE = 1100
PLAIN = SamplingParams(temperature=0.75)
FILTERED = SamplingParams(temperature=1.25, top_k=40, top_p=0.875, min_p=0.015625)
TYPICAL = SamplingParams(temperature=1.25, top_p=0.875, typical_p=0.625)
PARAMS = [PLAIN, FILTERED, TYPICAL]


def candidates_of(case: Case, all_params: list[SamplingParams]) -> list[Candidate]:
    """The trees of a case under all parameters in turn."""
    return [
        Candidate(
            tree,
            rows,
            replace(all_params[index % len(all_params)], seed=case.seeds[index]),
            case.num_tokens[index],
        )
        for index, (tree, rows) in enumerate(zip(case.trees, case.rows, strict=True))
    ]


def both(case: Case, candidates: list[Candidate]) -> tuple[list, list]:
    """VerificationResults of the CPU path and of the kernels."""
    logits = torch.from_numpy(np.concatenate(case.logits))
    expected = HostAcceptor().accept(candidates, logits)
    return expected, DeviceAcceptor().accept(candidates, to_device(logits.numpy().copy()))


@pytest.mark.parametrize("acceptance", list(Acceptance))
def test_every_mode_decides_as_on_the_cpu(acceptance):
    case = random_case(6, VOCAB_SIZE, seed=20 + acceptance)
    all_params = [replace(params, acceptance=acceptance) for params in PARAMS]
    expected, given = both(case, candidates_of(case, all_params))
    assert given == expected
    assert sum(len(result.path) for result in expected) > 0


def test_a_step_may_mix_all_modes_and_filters():
    case = random_case(len(PARAMS) * len(Acceptance) + 1, VOCAB_SIZE, seed=11)
    all_params = [replace(params, acceptance=mode) for params in PARAMS for mode in Acceptance]
    all_params.append(replace(PLAIN, temperature=0.0, acceptance=Acceptance.TRAVERSAL))
    expected, given = both(case, candidates_of(case, all_params))
    assert given == expected
    assert len({len(result.path) for result in expected}) > 2


@pytest.mark.parametrize("acceptance", [Acceptance.COUPLED, Acceptance.REJECTION])
def test_the_largest_vocabulary_is_decided_alike(acceptance):
    vocab_size = 1 << 18
    tree = DraftTree(np.array([0, 200_000], np.int32), np.array([-1, 0], np.int32))
    row = ProposalRow(np.array([200_000, 7], np.int32), np.log(np.array([0.9, 0.1], np.float32)))
    logits = np.random.default_rng(2).normal(size=(2, vocab_size)).astype(np.float32)
    params = replace(PLAIN, seed=2**63, acceptance=acceptance)
    candidate = Candidate(tree, [row, ProposalRow.empty()], params, 131_000)
    expected = HostAcceptor().accept([candidate], torch.from_numpy(logits))
    assert DeviceAcceptor().accept([candidate], to_device(logits.copy())) == expected


@pytest.mark.parametrize("acceptance", list(Acceptance))
def test_a_full_budget_is_decided_alike(acceptance):
    """256 nodes, one to four below each other, every token once."""
    generator, num_nodes = np.random.default_rng(9), 256
    parents = [-1, *(int(generator.integers(node // 4, node + 1)) for node in range(num_nodes))]
    tree = DraftTree(np.arange(num_nodes + 1, dtype=np.int32), np.array(parents, np.int32))
    logits = generator.normal(size=(num_nodes + 1, 300)).astype(np.float32)
    for node, children in enumerate(tree.children):
        logits[node, children] += 6.0
    params = replace(PLAIN, seed=3, acceptance=acceptance)
    candidate = Candidate(tree, [ProposalRow.empty()] * (num_nodes + 1), params, 17)
    [expected] = HostAcceptor().accept([candidate], torch.from_numpy(logits))
    [given] = DeviceAcceptor().accept([candidate], to_device(logits.copy()))
    assert given == expected
    assert given.path


@pytest.mark.parametrize("acceptance", list(Acceptance))
def test_a_tree_without_usable_logits_fails_alone(acceptance):
    case = random_case(3, VOCAB_SIZE, seed=4)
    case.logits[1][0] = np.nan
    all_params = [replace(PLAIN, acceptance=acceptance)]
    expected, given = both(case, candidates_of(case, all_params))
    assert given == expected
    assert [result is None for result in given] == [False, True, False]


def test_nothing_is_decided_of_no_trees():
    logits = torch.empty((0, VOCAB_SIZE))
    assert HostAcceptor().accept([], logits) == DeviceAcceptor().accept([], logits) == []
