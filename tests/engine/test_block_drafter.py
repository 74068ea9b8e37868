"""The engine with a block drafter as source, on a tiny model: features travel, text stays."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from engine.test_direct_stages import PROMPTS, DirectPipeline, assert_plain_text
from training.drafter_corpus import make_drafter

from canopy.config import DrafterConfig
from canopy.models.block_drafter.checkpoint import save_drafter
from canopy.protocol.hidden_states import _unpacked
from canopy.protocol.messages import VerifyRequest


@pytest.fixture(scope="module")
def drafter_folder(tiny_folder, tmp_path_factory) -> Path:
    """An untrained drafter: what it proposes is arbitrary, and legal."""
    folder = tmp_path_factory.mktemp("block") / "drafter"
    drafter = make_drafter(tiny_folder)
    with torch.no_grad():
        drafter.markov_out.weight.normal_(std=0.1)
    save_drafter(drafter, folder)
    return folder


def pipeline(tiny_folder, source, model, dtype="int8"):
    return DirectPipeline(
        tiny_folder, dtype, drafter=DrafterConfig(source=source, model=str(model))
    )


@pytest.fixture(scope="module")
def plain(tiny_folder):
    made = DirectPipeline(tiny_folder, "int8")
    return {t: made.answers(temperature=t, speculation="off") for t in (0.0, 0.9)}


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("source", ["markov", "block", "all"])
def test_the_drafter_changes_no_text(tiny_folder, drafter_folder, plain, source, temperature):
    made = pipeline(tiny_folder, source, drafter_folder)
    for policy in ("topn", "chain", "entropy"):
        texts = made.answers(temperature=temperature, speculation=policy, node_budget=10)
        assert_plain_text(tiny_folder, "int8", texts, plain[temperature], temperature)
    assert made.engine.metrics.num_drafted_nodes > 500
    assert made.engine.metrics.source_failures == 0


def test_the_ratio_rules_serve_its_point_masses(tiny_folder, drafter_folder):
    made = pipeline(tiny_folder, "all", drafter_folder)
    for mode in ("rejection", "traversal", "target_only"):
        assert all(made.answers(temperature=0.9, acceptance=mode, speculation="topn"))


class Watched:
    """A verifier whose features are kept, by sequence and position."""

    def __init__(self, verifier):
        self._verifier = verifier
        self.states: dict[int, dict[int, np.ndarray]] = {}
        self.num_overlaps = 0

    def verify(self, request: VerifyRequest):
        reply = self._verifier.verify(request)
        parts = _unpacked(
            reply.hidden_state_starts, reply.hidden_state_lengths, reply.hidden_states
        )
        for sequence_id, part in zip(request.sequence_ids.tolist(), parts, strict=True):
            known = self.states.setdefault(sequence_id, {})
            for position, state in enumerate(part.states, part.start):
                self.num_overlaps += position in known
                known[position] = state
        return reply


def watched_states(made, **parameters):
    engine = made.engine
    watched = Watched(made.verifier)
    engine._stages = replace(engine._stages, verifier=watched)
    made.answers(**parameters)
    return watched


def test_features_are_those_of_plain_decoding_once_a_position(tiny_folder, drafter_folder):
    plain, drafted = (
        watched_states(
            pipeline(tiny_folder, "all", drafter_folder), temperature=0.0, speculation=speculation
        )
        for speculation in ("off", "topn")
    )
    assert drafted.num_overlaps == 0
    assert len(drafted.states) == len(plain.states) == len(PROMPTS)
    for ours, theirs in zip(drafted.states.values(), plain.states.values(), strict=True):
        assert sorted(ours) == list(range(len(ours)))
        for position in set(ours) & set(theirs):
            np.testing.assert_array_equal(ours[position], theirs[position])


def test_a_drafter_that_is_missing_leaves_the_others_and_is_counted(tiny_folder, plain, tmp_path):
    made = pipeline(tiny_folder, "all", tmp_path / "nothing")
    texts = made.answers(temperature=0.0, speculation="topn")
    assert texts == plain[0.0]
    assert made.engine.metrics.num_accepted_tokens > 0
    assert made.engine.metrics.source_failures == 1


def test_a_missing_drafter_alone_means_plain_decoding(tiny_folder, plain, tmp_path):
    made = pipeline(tiny_folder, "markov", tmp_path / "nothing")
    assert made.answers(temperature=0.0, speculation="topn") == plain[0.0]
    assert made.engine.metrics.num_drafted_nodes == 0
    assert made.engine.metrics.source_failures == 1
