import threading

import pytest
from toys import CollectingSink, Pipeline, continuation, decode, make_request

from canopy.errors import Unavailable
from canopy.sampling import PolicyName

PROMPTS = [[3, 1, 4], [1, 5, 9, 2, 6], [5], [3, 5, 8, 9, 7, 9], [2, 7, 1, 8]]


def expected(prompt: list[int], count: int = 12) -> str:
    return decode(continuation(prompt, count))


@pytest.mark.parametrize("policy", [PolicyName.CHAIN, PolicyName.OFF])
def test_every_request_gets_the_targets_own_text(policy):
    pipeline = Pipeline(max_running=2)
    sinks = [pipeline.submit(prompt, policy=policy, stream=True) for prompt in PROMPTS]
    pipeline.run()
    assert [sink.text for sink in sinks] == [expected(prompt) for prompt in PROMPTS]
    assert [sink.finish_reason for sink in sinks] == ["length"] * len(PROMPTS)
    assert [sink.num_tokens for sink in sinks] == [12] * len(PROMPTS)
    assert pipeline.drafter.known == {}


def test_speculation_saves_steps_and_reports_it():
    pipeline = Pipeline()
    sink = pipeline.submit(PROMPTS[0])
    pipeline.run()
    report = sink.deltas[-1].report
    assert report["rounds"] < 12
    assert report["accepted_tokens"] + report["rounds"] == 12
    assert pipeline.engine.metrics.num_accepted_tokens == report["accepted_tokens"]


def test_streamed_and_whole_answers_are_equal():
    pipeline = Pipeline()
    streamed = pipeline.submit(PROMPTS[1], stream=True)
    whole = pipeline.submit(PROMPTS[1], stream=False)
    pipeline.run()
    assert len(streamed.deltas) > 1
    assert len(whole.deltas) == 1
    assert streamed.text == whole.text


def test_the_prompt_is_prepended_when_asked_for():
    pipeline = Pipeline()
    sink = pipeline.submit(PROMPTS[0], prepend_prompt=True)
    pipeline.run()
    assert sink.text == decode(PROMPTS[0]) + expected(PROMPTS[0])


def test_a_stop_string_inside_an_accepted_path_ends_the_answer_before_it():
    text = expected(PROMPTS[0])
    pipeline = Pipeline()
    sink = pipeline.submit(PROMPTS[0], stop_strings=(text[4:6],), stream=True)
    pipeline.run()
    assert sink.text == text[: text.index(text[4:6])]
    assert sink.finish_reason == "stop"
    assert sink.num_tokens == text.index(text[4:6]) + 2


def test_min_tokens_holds_a_stop_string_back():
    text = expected(PROMPTS[0])
    stop = text[4:6]
    num_held = text.index(stop) + 2  # tokens, each of them a character
    later = text.find(stop, num_held - 1)
    for min_tokens, text_shown in (
        (num_held - 1, text[: text.index(stop)]),
        (num_held, text if later < 0 else text[:later]),
    ):
        pipeline = Pipeline()
        sink = pipeline.submit(PROMPTS[0], stop_strings=(stop,), min_tokens=min_tokens)
        pipeline.run()
        assert sink.text == text_shown


def test_a_stop_token_ends_the_answer_without_its_text():
    tokens = continuation(PROMPTS[0], 12)
    stop = tokens[5]
    pipeline = Pipeline()
    sink = pipeline.submit(PROMPTS[0], stop_token_ids=(stop,))
    pipeline.run()
    first = tokens.index(stop)
    assert (sink.text, sink.finish_reason) == (decode(tokens[:first]), "stop")
    assert sink.num_tokens == first + 1


def test_one_token_can_be_asked_for():
    pipeline = Pipeline()
    sink = pipeline.submit(PROMPTS[0], max_tokens=1)
    pipeline.run()
    assert (sink.text, sink.finish_reason) == (expected(PROMPTS[0], 1), "length")


def test_cancelling_frees_the_blocks_within_one_step():
    pipeline = Pipeline()
    sink = pipeline.submit(PROMPTS[0], max_tokens=1000)
    other = pipeline.submit(PROMPTS[1])
    for _ in range(3):
        pipeline.engine.step()
    sink.cancelled = True
    pipeline.engine.step()
    assert len(pipeline.verifier.known) == 1
    pipeline.run()
    assert sink.error is not None
    assert sink.error.code == "cancelled"
    assert other.text == expected(PROMPTS[1])


def test_a_cancelled_last_sequence_is_dropped_although_nothing_else_runs():
    pipeline = Pipeline()
    sink = pipeline.submit(PROMPTS[0], max_tokens=1000)
    pipeline.engine.step()
    sink.cancelled = True
    pipeline.engine.step()
    assert pipeline.verifier.known == {}


def test_a_waiting_request_can_be_cancelled():
    pipeline = Pipeline(max_running=1)
    pipeline.submit(PROMPTS[0])
    waiting = pipeline.submit(PROMPTS[1])
    waiting.cancelled = True
    pipeline.run()
    assert waiting.error is not None


def test_a_request_past_its_deadline_ends_with_an_error():
    pipeline = Pipeline()
    sink = pipeline.submit(PROMPTS[0], timeout_s=0.0)
    pipeline.run()
    assert "not done within" in str(sink.error)


def test_a_full_queue_refuses_and_keeps_what_it_has():
    pipeline = Pipeline(max_running=1, max_waiting=1)
    sinks = [pipeline.submit(PROMPTS[0]), pipeline.submit(PROMPTS[1])]
    with pytest.raises(Unavailable, match="retry later"):
        pipeline.submit(PROMPTS[2])
    pipeline.run()
    assert [sink.text for sink in sinks] == [expected(PROMPTS[0]), expected(PROMPTS[1])]


def test_a_draining_engine_refuses_and_finishes():
    pipeline = Pipeline()
    sink = pipeline.submit(PROMPTS[0])
    pipeline.engine.drain()
    with pytest.raises(Unavailable, match="shutting down"):
        pipeline.submit(PROMPTS[1])
    pipeline.run()
    assert sink.text == expected(PROMPTS[0])


def test_a_preempted_sequence_is_recomputed_and_loses_nothing():
    pipeline = Pipeline()
    sinks = [pipeline.submit(prompt, stream=True) for prompt in PROMPTS[:3]]
    pipeline.engine.step()
    youngest = max(pipeline.verifier.known)
    pipeline.verifier.preempt_next.add(youngest)
    pipeline.run()
    assert [sink.text for sink in sinks] == [expected(prompt) for prompt in PROMPTS[:3]]
    assert sinks[2].deltas[-1].report["preemptions"] == 1


def test_a_sequence_that_the_verifier_forgot_is_started_again():
    pipeline = Pipeline()
    sink = pipeline.submit(PROMPTS[0], stream=True)
    pipeline.engine.step()
    pipeline.verifier.forget_next.add(max(pipeline.verifier.known))
    pipeline.run()
    assert sink.text == expected(PROMPTS[0])


def test_a_sequence_that_cannot_go_on_fails_alone():
    pipeline = Pipeline()
    sinks = [pipeline.submit(prompt, stream=True) for prompt in PROMPTS[:2]]
    pipeline.engine.step()
    pipeline.verifier.spoil_next.add(max(pipeline.verifier.known))
    pipeline.run()
    assert sinks[0].text == expected(PROMPTS[0])
    assert "it cannot go on" in str(sinks[1].error)


def test_a_failing_verifier_is_restarted_and_no_stream_breaks():
    pipeline = Pipeline()
    sinks = [pipeline.submit(prompt, stream=True) for prompt in PROMPTS]
    pipeline.engine.step()
    pipeline.verifier.fail_next = 1
    pipeline.run()
    assert [sink.text for sink in sinks] == [expected(prompt) for prompt in PROMPTS]
    assert pipeline.restarted == ["verifier"]


def test_a_verifier_that_keeps_failing_fails_its_requests_and_serves_the_next():
    pipeline = Pipeline()
    sink = pipeline.submit(PROMPTS[0])
    pipeline.engine.step()
    pipeline.verifier.fail_next = 3
    for _ in range(3):
        pipeline.engine.step()
    assert "toy failure" in str(sink.error)
    after = pipeline.submit(PROMPTS[1])
    pipeline.run()
    assert after.text == expected(PROMPTS[1])


def test_a_failing_drafter_means_plain_decoding_not_failure():
    pipeline = Pipeline()
    sink = pipeline.submit(PROMPTS[0])
    pipeline.engine.step()
    pipeline.drafter.fail_next = 1
    pipeline.run()
    assert sink.text == expected(PROMPTS[0])
    assert pipeline.restarted == ["draft"]


def test_drafting_that_does_not_pay_is_asked_for_again_only_every_few_steps():
    pipeline = Pipeline()
    pipeline.builder.draft_next = 9
    sink = pipeline.submit(PROMPTS[0], max_tokens=40)
    pipeline.run()
    assert sink.text == expected(PROMPTS[0], 40)
    assert 2 <= pipeline.builder.num_asked <= 6


def test_the_drafter_hears_what_the_last_trees_were_worth():
    pipeline = Pipeline()
    pipeline.submit(PROMPTS[0])
    pipeline.run()
    first, *later = pipeline.drafter.least_survivals
    assert first == []
    assert set(map(tuple, later)) == {(0.125,)}


def test_the_running_engine_serves_other_threads_and_stops():
    pipeline = Pipeline(max_running=4)
    thread = threading.Thread(target=pipeline.engine.run)
    thread.start()
    sinks = [pipeline.submit(prompt, stream=True) for prompt in PROMPTS * 8]
    while not all(sink.is_ended for sink in sinks):
        thread.join(timeout=0.01)
    unfinished = CollectingSink()
    pipeline.engine.submit(make_request(PROMPTS[0], max_tokens=10**6), unfinished)
    pipeline.engine.stop()
    thread.join(timeout=5)
    assert not thread.is_alive()
    assert [sink.text for sink in sinks] == [expected(prompt) for prompt in PROMPTS * 8]
    assert unfinished.error is not None
    assert unfinished.error.code == "unavailable"
