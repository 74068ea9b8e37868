"""The draft stage: sequences come, grow and go; one that fails does not touch the others."""

import numpy as np
import pytest

from canopy.config import Deployment, DrafterConfig, TreeConfig
from canopy.costs.profile import Profile
from canopy.drafter.lookup.source import LookupSource
from canopy.drafter.stage import DrafterStage, make_drafter
from canopy.protocol.messages import UNKNOWN_ANCHOR, DraftRequest
from canopy.protocol.proposals import unpack_proposals
from canopy.protocol.sequence_updates import StartedSequence, pack_started
from canopy.sampling import Acceptance, PolicyName, SamplingParams
from canopy.tree.survival import Calibration

PARAMS = SamplingParams(policy=PolicyName.CHAIN, node_budget=4, stop_token_ids=(99,))
REPEATED = [1, 2, 3, 4, 5, 6, 1, 2]


def started(sequence_id, token_ids, params=PARAMS):
    return StartedSequence(sequence_id, np.array(token_ids, np.int32), 0, params)


def request(ids, start=(), grow=(), finish=(), max_depth=8, least=()):
    grow = list(grow)
    return DraftRequest(
        **pack_started(list(start)),
        finished_ids=np.array(finish, np.int64),
        updated_ids=np.array([i for i, _ in grow], np.int64),
        updated_lengths=np.array([len(t) for _, t in grow], np.int32),
        updated_token_ids=np.array([x for _, t in grow for x in t], np.int32),
        sequence_ids=np.array(ids, np.int64),
        max_depths=np.full(len(ids), max_depth, np.int32),
        least_survival=np.array(least, np.float32),
    )


def drafted(stage, message):
    proposals = unpack_proposals(stage.draft(message))
    return [proposal.tree.token_ids.tolist() for proposal in proposals]


class FailsFor(LookupSource):
    """Cannot serve one sequence."""

    def __init__(self, sequence_id):
        super().__init__(1, 4)
        self.sequence_id = sequence_id

    def propose(self, tasks):
        if any(task.sequence.sequence_id == self.sequence_id for task in tasks):
            raise RuntimeError("no")
        return super().propose(tasks)


def stage_of(source=None, **drafter):
    return DrafterStage(
        source or LookupSource(1, 4), DrafterConfig(**drafter), TreeConfig(max_depth=6)
    )


def test_proposals_follow_the_tokens_that_the_engine_tells():
    stage = stage_of()
    assert drafted(stage, request([7], [started(7, REPEATED)])) == [[2, 3, 4, 5, 6]]
    assert drafted(stage, request([7], grow=[(7, [3, 4])])) == [[4, 5, 6, 1, 2]]


def test_replies_stand_in_the_order_asked():
    stage = stage_of()
    start = [started(1, REPEATED), started(2, [8, 9, 8])]
    assert drafted(stage, request([2, 1], start)) == [[8, 9, 8, 9, 8], [2, 3, 4, 5, 6]]


def test_starting_a_known_sequence_replaces_it():
    stage = stage_of()
    stage.draft(request([1], [started(1, REPEATED)]))
    assert drafted(stage, request([1], [started(1, [5, 2])])) == [[2]]


def test_a_finished_sequence_is_unknown_and_finishing_twice_is_harmless():
    stage = stage_of()
    stage.draft(request([1], [started(1, REPEATED)]))
    assert drafted(stage, request([], finish=[1, 1, 50])) == []
    assert drafted(stage, request([], grow=[(1, [3])])) == []
    assert drafted(stage, request([1, 2], [started(2, REPEATED)])) == [
        [UNKNOWN_ANCHOR],
        [2, 3, 4, 5, 6],
    ]
    assert stage.num_failed_proposals == 1


def test_no_proposal_is_deeper_than_asked_or_larger_than_allowed():
    assert drafted(stage_of(), request([1], [started(1, REPEATED)], max_depth=2)) == [[2, 3, 4]]
    assert drafted(stage_of(), request([1], [started(1, REPEATED)], max_depth=0)) == [[2]]
    assert drafted(stage_of(max_nodes=1), request([1], [started(1, REPEATED)])) == [[2, 3]]


def test_a_sequence_that_cannot_be_served_brings_its_anchor_alone():
    stage = stage_of(FailsFor(1))
    start = [started(1, REPEATED), started(2, REPEATED)]
    reply = stage.draft(request([1, 2], start))
    assert [p.tree.token_ids.tolist() for p in unpack_proposals(reply)] == [[2], [2, 3, 4, 5, 6]]
    assert reply.num_failed.tolist() == [1]
    assert stage.num_failed_proposals == 1
    assert drafted(stage, request([2], grow=[(2, [3])])) == [[3, 4, 5, 6, 1]]
    assert stage.num_failed_proposals == 1


def test_without_a_source_every_sequence_brings_its_anchor_alone():
    stage = make_drafter(Deployment(drafter=DrafterConfig(source="none")))
    assert drafted(stage, request([1], [started(1, REPEATED)])) == [[2]]


def test_the_default_deployment_drafts_by_lookup():
    stage = make_drafter(Deployment())
    assert drafted(stage, request([1], [started(1, REPEATED)])) == [[2, 3, 4, 5, 6]]


def test_nodes_that_no_price_near_the_last_one_keeps_are_not_drafted():
    def survivals(policy, *least):
        params = SamplingParams(policy=policy, node_budget=8)
        reply = stage_of().draft(request([1], [started(1, REPEATED, params)], least=least))
        tree = unpack_proposals(reply)[0].tree
        paths = [0.0]
        for node in range(1, tree.num_nodes + 1):
            paths.append(paths[tree.parents[node]] + float(reply.log_probs[node]))
        return np.exp(paths[1:]).tolist()

    everything = survivals(PolicyName.PRICED)
    least = float(np.median(everything))
    likely = [s for s in everything if s >= least]
    assert survivals(PolicyName.PRICED, least) == likely
    assert 0 < len(likely) < len(everything)
    assert survivals(PolicyName.TOPN, 0.99) == survivals(PolicyName.TOPN)


def test_calibrated_policies_weigh_edges_by_the_profile_of_their_law():
    doubtful = Calibration(slope=1.0, intercept=-2.0)
    stage = DrafterStage(
        LookupSource(1, 4),
        DrafterConfig(),
        TreeConfig(),
        Profile(calibrations={"sampled": doubtful}),
    )

    def edge(policy, temperature):
        params = SamplingParams(
            policy=policy,
            node_budget=1,
            temperature=temperature,
            acceptance=Acceptance.COUPLED,
        )
        return float(stage.draft(request([1], [started(1, REPEATED, params)])).log_probs[1])

    raw = edge(PolicyName.TOPN, 0.8)
    assert edge(PolicyName.TOPN, 0.0) == edge(PolicyName.PRICED, 0.0) == raw
    assert edge(PolicyName.PRICED, 0.8) == pytest.approx(doubtful.siblings([raw])[0])
