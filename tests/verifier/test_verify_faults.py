"""What goes wrong in one step or one sequence harms no other."""

from dataclasses import replace

import numpy as np
import pytest
from summing_decoder import VOCAB_SIZE, SummingDecoder, plain_text
from verify_driver import Driver, random_trees

from canopy.protocol.failures import failure_of
from canopy.protocol.messages import Finish, Status, VerifyRequest
from canopy.protocol.sequence_updates import StartedSequence, pack_started
from canopy.sampling import Acceptance, SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=20)
COUPLED = SamplingParams(temperature=0.9, seed=7, max_tokens=20, acceptance=Acceptance.COUPLED)
REQUESTS = [([1, 2, 3, 4, 5], GREEDY), ([*range(16)], COUPLED)]
EXPECTED = [plain_text(prompt, params) for prompt, params in REQUESTS]


def filled() -> Driver:
    driver = Driver()
    for prompt, params in REQUESTS:
        driver.add(prompt, params)
    return driver


def spoil_lengths(request):
    request.num_nodes[0] += 1


def spoil_rows(request):
    request.row_lengths = request.row_lengths[1:]


def spoil_ids(request):
    request.sequence_ids[1] = request.sequence_ids[0]


@pytest.mark.parametrize(
    ("spoil", "text"), [(spoil_lengths, "ragged"), (spoil_rows, "rows"), (spoil_ids, "twice")]
)
def test_a_malformed_message_is_refused_and_harms_nobody(spoil, text):
    driver = filled()
    driver.step()
    request = driver.request(driver.running(), random_trees(12, 5, hit_rate=0.0))
    spoil(request)
    with pytest.raises(ValueError, match=text):
        driver.verifier.verify(request)
    driver.verifier.blocks.check_integrity()
    assert driver.run(random_trees(13, 5)) == EXPECTED


def spoil_parents(request):
    request.parents[-1] = 9


def spoil_token(request):
    request.token_ids[-1] = VOCAB_SIZE


def spoil_sign(request):
    request.token_ids[-1] = -2


def spoil_row(request):
    request.row_lengths[-1] = 1
    request.row_token_ids = np.array([VOCAB_SIZE], np.int32)
    request.row_log_probs = np.zeros(1, np.float32)


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (spoil_parents, "parent"),
        (spoil_token, "vocabulary"),
        (spoil_sign, "vocabulary"),
        (spoil_row, "vocabulary"),
    ],
)
def test_a_sequence_that_brings_what_cannot_be_verified_fails_alone(spoil, text):
    driver = filled()
    driver.step()
    failing = driver.clients[1]
    request = driver.request(driver.running(), random_trees(12, 5, hit_rate=0.0))
    spoil(request)
    reply = driver.verifier.verify(request)
    assert reply.status.tolist() == [Status.DECODED, Status.FAILED]
    assert text in failure_of(reply, 1)
    assert failure_of(reply, 0) == ""
    driver.clients[0].emitted += reply.emitted_token_ids.tolist()
    failing.finish = Finish.LENGTH
    driver.finished_ids.append(failing.id)
    assert driver.run(random_trees(13, 5))[0] == EXPECTED[0]


def test_a_sequence_whose_anchor_is_another_is_taken_up_anew():
    driver = filled()
    driver.step()
    request = driver.request(driver.running())
    request.token_ids[1] += 1
    reply = driver.verifier.verify(request)
    assert reply.status.tolist() == [Status.DECODED, Status.UNKNOWN]
    driver.clients[0].emitted += reply.emitted_token_ids.tolist()
    driver.clients[1].is_known = False
    assert driver.run(random_trees(13, 5)) == EXPECTED


@pytest.mark.parametrize(
    ("prompt", "params", "text"),
    [
        ([1, VOCAB_SIZE], GREEDY, "vocabulary"),
        ([1, -1], GREEDY, "vocabulary"),
        ([], GREEDY, "one token or more"),
        ([1] * 513, GREEDY, "the cache"),
        ([1], replace(GREEDY, stop_token_ids=(VOCAB_SIZE,), min_tokens=1), "stop token"),
    ],
)
def test_a_sequence_that_cannot_be_taken_up_fails_alone(prompt, params, text):
    driver = filled()
    started = [StartedSequence(7, np.array(prompt, np.int32), 0, params)]
    request = VerifyRequest(
        **pack_started(started),
        sequence_ids=np.array([7], np.int64),
        num_nodes=np.zeros(1, np.int32),
        token_ids=np.array([1], np.int32),
        parents=np.array([-1], np.int32),
        row_lengths=np.zeros(1, np.int32),
    )
    reply = driver.verifier.verify(request)
    assert reply.status.tolist() == [Status.FAILED]
    assert text in failure_of(reply, 0)
    driver.finished_ids.append(7)
    assert driver.run(random_trees(13, 5)) == EXPECTED


def test_a_step_that_raises_changes_nothing_that_is_known():
    driver = filled()
    for _ in range(3):
        driver.step(random_trees(14, 5))
    driver.decoder.raise_next = True
    with pytest.raises(RuntimeError, match="memory"):
        driver.step(random_trees(15, 9))
    driver.verifier.blocks.check_integrity()
    assert driver.run(random_trees(16, 5)) == EXPECTED


def test_a_sequence_without_usable_logits_fails_alone():
    decoder = SummingDecoder()
    decoder.spoiled_token = 23
    driver = Driver(decoder=decoder)
    params = SamplingParams(temperature=0.0, max_tokens=2)
    driver.add([1, 2, 3], params)
    failing = driver.add([1, 2, 23], params)
    reply = driver.step()
    assert reply.status.tolist() == [Status.DECODED, Status.FAILED]
    failing.finish = Finish.LENGTH
    driver.finished_ids.append(failing.id)
    assert driver.run()[0] == plain_text([1, 2, 3], params)
