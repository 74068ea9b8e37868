"""What the engine counts agrees with what it gave out."""

import pytest
from toys import Pipeline, ToyDrafter

from canopy.engine.histogram import Histogram
from canopy.engine.metric_families import FAMILIES, Kind, read_series
from canopy.engine.metrics import EngineMetrics
from canopy.sampling import PolicyName

PROMPTS = [[3, 1, 4], [1, 5, 9, 2, 6], [5], [3, 5, 8, 9, 7, 9]]


def served(**options: object) -> EngineMetrics:
    pipeline = Pipeline(max_running=2)
    for prompt in PROMPTS:
        pipeline.submit(prompt, **options)
    pipeline.run()
    return pipeline.engine.metrics


def test_every_accepted_node_has_a_depth_and_a_rank():
    metrics = served()
    assert metrics.num_accepted_tokens > 0
    assert sum(metrics.accepted_by_depth) == metrics.num_accepted_tokens
    assert sum(metrics.accepted_by_rank) == metrics.num_accepted_tokens
    # The toy drafter offers chains of three tokens, the first two of them right.
    by_depth = metrics.accepted_by_depth
    assert by_depth[0] >= by_depth[1] > by_depth[2]
    assert not any(by_depth[3:])
    assert not any(metrics.accepted_by_rank[1:])


@pytest.mark.parametrize("policy", [PolicyName.CHAIN, PolicyName.OFF])
def test_histograms_hold_one_observation_for_each_round_request_and_token(policy):
    metrics = served(policy=policy)
    assert metrics.acceptance_length.count == metrics.num_rounds
    assert metrics.acceptance_length.sum == metrics.num_rounds + metrics.num_accepted_tokens
    assert metrics.queue_s.count == metrics.first_token_s.count == len(PROMPTS)
    assert metrics.request_s.count == metrics.num_finished == len(PROMPTS)
    assert metrics.inter_token_s.count == metrics.num_emitted_tokens - len(PROMPTS)
    assert metrics.request_s.sum >= metrics.first_token_s.sum + metrics.inter_token_s.sum
    assert metrics.first_token_s.sum >= metrics.queue_s.sum


def test_what_acceptance_was_learned_while_serving_is_told():
    pipeline = Pipeline()
    pipeline.builder.log_odds_correction = -0.5
    pipeline.submit(PROMPTS[0])
    pipeline.run()
    told = {one.family: one.value for one in read_series(pipeline.engine.metrics)}
    assert told["canopy_log_odds_correction"] == -0.5


def test_a_preempted_sequence_waited_once_and_has_one_first_token():
    pipeline = Pipeline()
    pipeline.submit(PROMPTS[0])
    for _ in range(2):
        pipeline.engine.step()
    pipeline.verifier.preempt_next |= set(pipeline.verifier.known)
    pipeline.run()
    metrics = pipeline.engine.metrics
    assert metrics.num_preempted == 1
    assert metrics.queue_s.count == metrics.first_token_s.count == 1


def test_proposals_that_the_drafter_failed_on_are_counted(monkeypatch):
    draft = ToyDrafter.draft

    def half_broken(self, request):
        reply = draft(self, request)
        reply.num_failed[0] = len(request.sequence_ids)
        return reply

    monkeypatch.setattr(ToyDrafter, "draft", half_broken)
    metrics = served()
    num_prefills = len(PROMPTS)
    assert 0 < metrics.num_failed_proposals <= metrics.num_rounds - num_prefills


def test_a_histogram_counts_what_lies_at_or_under_each_bound():
    histogram = Histogram(0.5, 1, 2.5)
    for value, count in ((0.5, 1), (0.6, 2), (2.5, 1), (7, 3)):
        histogram.observe(value, count)
    assert histogram.cumulated() == [("0.5", 1), ("1", 3), ("2.5", 4), ("+Inf", 7)]
    assert histogram.count == 7
    assert histogram.sum == pytest.approx(0.5 + 1.2 + 2.5 + 21)


def test_series_are_distinct_and_follow_the_naming_rules():
    series = list(read_series(EngineMetrics()))
    keys = [(one.family, one.labels) for one in series]
    assert len(set(keys)) == len(keys)
    for family in FAMILIES:
        assert family.name.endswith("_total") == (family.kind is Kind.COUNTER)


def test_counters_never_fall():
    pipeline = Pipeline(max_running=2)
    for prompt in PROMPTS:
        pipeline.submit(prompt)
    before: dict[object, float] = {}
    while pipeline.engine.has_work:
        pipeline.engine.step()
        for one in read_series(pipeline.engine.metrics):
            if one.kind is Kind.COUNTER:
                key = (one.family, one.labels)
                assert one.value >= before.get(key, 0.0)
                before[key] = one.value
