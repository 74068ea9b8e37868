"""What goes wrong in one step or one sequence harms no other."""

import pytest
from summing_decoder import VOCAB_SIZE, SummingDecoder, plain_text
from verify_driver import Driver, random_trees

from canopy.protocol.messages import Finish, Status
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


def spoil_anchor(request):
    request.token_ids[0] += 1


def spoil_parents(request):
    request.parents[-1] = 9


def spoil_lengths(request):
    request.num_nodes[0] += 1


def spoil_vocabulary(request):
    request.token_ids[-1] = VOCAB_SIZE


def spoil_rows(request):
    request.row_lengths = request.row_lengths[1:]


def spoil_ids(request):
    request.sequence_ids[1] = request.sequence_ids[0]


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (spoil_anchor, "anchor"),
        (spoil_parents, "parent"),
        (spoil_lengths, "ragged"),
        (spoil_vocabulary, "vocabulary"),
        (spoil_rows, "rows"),
        (spoil_ids, "twice"),
    ],
)
def test_a_malformed_message_is_refused_and_harms_nobody(spoil, text):
    driver = filled()
    driver.turn()
    request = driver.request(driver.running(), random_trees(12, 5, hit_rate=0.0))
    spoil(request)
    with pytest.raises(ValueError, match=text):
        driver.verifier.verify(request)
    driver.verifier.blocks.check_integrity()
    assert driver.run(random_trees(13, 5)) == EXPECTED


def test_a_step_that_raises_changes_nothing_that_is_known():
    driver = filled()
    for _ in range(3):
        driver.turn(random_trees(14, 5))
    driver.decoder.raise_next = True
    with pytest.raises(RuntimeError, match="memory"):
        driver.turn(random_trees(15, 9))
    driver.verifier.blocks.check_integrity()
    assert driver.run(random_trees(16, 5)) == EXPECTED


def test_a_sequence_without_usable_logits_fails_alone():
    decoder = SummingDecoder()
    decoder.spoiled_token = 23
    driver = Driver(decoder=decoder)
    params = SamplingParams(temperature=0.0, max_tokens=2)
    driver.add([1, 2, 3], params)
    failing = driver.add([1, 2, 23], params)
    reply = driver.turn()
    assert reply.status.tolist() == [Status.DECODED, Status.FAILED]
    failing.finish = Finish.LENGTH
    driver.finished_ids.append(failing.id)
    assert driver.run()[0] == plain_text([1, 2, 3], params)
