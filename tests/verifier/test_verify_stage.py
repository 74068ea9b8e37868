"""The verifier emits what plain decoding emits, whatever the trees, chunks and blocks are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from summing_decoder import VOCAB_SIZE, logits_after, plain_text
from verify_driver import Client, Driver, random_trees

from canopy.acceptance.device_acceptor import DeviceAcceptor
from canopy.protocol.messages import Finish, Status
from canopy.sampling import Acceptance, SamplingParams
from canopy.tree import DraftTree, ProposalRow

GREEDY = SamplingParams(temperature=0.0, max_tokens=20)
COUPLED = SamplingParams(temperature=0.9, seed=7, max_tokens=20, acceptance=Acceptance.COUPLED)
PARAMS = [
    GREEDY,
    COUPLED,
    SamplingParams(temperature=1.2, top_k=9, seed=5, max_tokens=17, acceptance=Acceptance.COUPLED),
    SamplingParams(temperature=1.0, seed=3, max_tokens=1, acceptance=Acceptance.TARGET_ONLY),
    SamplingParams(temperature=0.0, max_tokens=25, min_tokens=6, stop_token_ids=(1, 2, 3, 4)),
    SamplingParams(
        temperature=0.7,
        seed=11,
        max_tokens=22,
        repetition_penalty=1.4,
        presence_penalty=0.3,
        logit_bias=((2, 3.0),),
        bad_words_ids=((2, 2), (7,)),
        acceptance=Acceptance.COUPLED,
    ),
]


def prompts(seed: int, lengths: list[int]) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCAB_SIZE, length).tolist() for length in lengths]


PROMPTS = prompts(0, [1, 4, 5, 16, 17, 40])


def filled(driver: Driver) -> Driver:
    """One client per prompt, the parameters in turn."""
    for index, prompt in enumerate(PROMPTS):
        driver.add(prompt, PARAMS[index % len(PARAMS)])
    return driver


EXPECTED = [plain_text(prompt, PARAMS[i % len(PARAMS)]) for i, prompt in enumerate(PROMPTS)]


@pytest.mark.parametrize("prefix_reuse", [True, False])
@pytest.mark.parametrize("max_step_tokens", [1, 7, 64])
@pytest.mark.parametrize("num_nodes", [0, 9])
def test_the_text_is_that_of_plain_decoding(prefix_reuse, max_step_tokens, num_nodes):
    driver = filled(Driver(prefix_reuse=prefix_reuse, max_step_tokens=max_step_tokens))
    assert driver.run(random_trees(1, num_nodes)) == EXPECTED
    assert (driver.num_accepted > 0) == (num_nodes > 0)
    assert driver.num_preempted == 0


@given(
    seed=st.integers(0, 2**32 - 1),
    num_nodes=st.integers(0, 12),
    block_size=st.integers(1, 6),
    num_tokens=st.integers(45, 140),
    max_step_tokens=st.integers(1, 30),
    lengths=st.lists(st.integers(1, 25), min_size=1, max_size=5),
)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_no_size_of_trees_blocks_or_chunks_changes_the_text(
    seed, num_nodes, block_size, num_tokens, max_step_tokens, lengths
):
    driver = Driver(num_tokens, block_size, max_step_tokens=max_step_tokens)
    expected = []
    for index, prompt in enumerate(prompts(seed, lengths)):
        driver.add(prompt, PARAMS[(seed + index) % len(PARAMS)])
        expected.append(plain_text(prompt, PARAMS[(seed + index) % len(PARAMS)]))
    assert driver.run(random_trees(seed, num_nodes)) == expected


def test_the_kernels_accept_the_same_text():
    driver = filled(Driver(acceptor=DeviceAcceptor()))
    assert driver.run(random_trees(1, 5)) == EXPECTED
    assert driver.num_accepted > 0


def test_preempted_sequences_end_with_the_same_text():
    driver = filled(Driver(num_tokens=64))
    assert driver.run(random_trees(2, 6)) == EXPECTED
    assert driver.num_preempted > 0


def test_the_youngest_sequence_is_preempted_first():
    driver = Driver(num_tokens=24, prefix_reuse=False)
    for prompt in prompts(4, [6, 6, 6]):
        driver.add(prompt, GREEDY)
    while not driver.num_preempted:
        reply = driver.step()
    assert reply.status.tolist() == [Status.DECODED, Status.DECODED, Status.PREEMPTED]


def test_a_sequence_alone_fits_without_its_tree():
    driver = Driver(num_tokens=24)
    driver.add(PROMPTS[1], GREEDY)
    assert driver.run(random_trees(3, 30)) == [plain_text(PROMPTS[1], GREEDY)]
    assert driver.num_preempted == 0


def test_a_tree_costs_nobody_its_place():
    driver = Driver(num_tokens=48, prefix_reuse=False)
    for prompt in prompts(5, [4, 4]):
        driver.add(prompt, GREEDY)
    driver.run(random_trees(4, 30))
    assert driver.num_preempted == 0
    assert driver.num_accepted > 0


def test_prompt_chunks_share_the_step_and_trees_keep_their_rows():
    driver = Driver(max_step_tokens=6)
    oldest = driver.add(PROMPTS[1], GREEDY)
    driver.step()
    for prompt in prompts(6, [9, 9]):
        driver.add(prompt, GREEDY)
    steps = []
    for _ in range(3):
        reply = driver.step(lambda c: chain_of(c, [0, 1, 2] if c is oldest else []))
        steps.append((driver.decoder.num_rows, [Status(s).name for s in reply.status]))
    assert steps == [
        (4 + 6, ["DECODED", "PREFILLING", "PREFILLING"]),
        (4 + 3 + 3, ["DECODED", "DECODED", "PREFILLING"]),
        (4 + 1 + 6, ["DECODED", "DECODED", "DECODED"]),
    ]


def test_a_prompt_that_was_served_before_is_not_computed_again():
    driver = Driver()
    first = driver.add(PROMPTS[5], GREEDY)
    driver.run(random_trees(6, 5))
    again = driver.add(PROMPTS[5], COUPLED)
    assert driver.run(random_trees(7, 5))[1] == plain_text(PROMPTS[5], COUPLED)
    assert first.num_cached == 0
    assert again.num_cached == 36


def test_an_answer_is_a_prefix_that_can_be_reused_too():
    driver = Driver()
    first = driver.add(PROMPTS[5], GREEDY)
    driver.run(random_trees(8, 8))
    longer = driver.add([*first.tokens, 3, 1], GREEDY)
    assert driver.run()[1] == plain_text(longer.prompt, GREEDY)
    assert longer.num_cached == (len(first.tokens) - 1) // 4 * 4


@pytest.mark.parametrize("stop_at", [0, 1, 2, 3])
def test_a_stop_inside_the_accepted_path_ends_the_text_there(stop_at):
    text = plain_text(PROMPTS[2], GREEDY)
    stop = text[stop_at]
    params = SamplingParams(temperature=0.0, max_tokens=20, stop_token_ids=(stop,))
    driver = Driver()
    client = driver.add(PROMPTS[2], params)
    driver.step()
    if stop_at > 0:
        driver.step(lambda c: chain_of(c, text[1:6]))
    assert client.finish is Finish.STOP
    assert client.emitted == text[: text.index(stop) + 1]
    assert driver.verifier.blocks.num_committed(client.id) == len(client.tokens) - 1


def test_the_cap_inside_the_accepted_path_ends_the_text_there():
    text = plain_text(PROMPTS[2], GREEDY)
    driver = Driver()
    client = driver.add(PROMPTS[2], SamplingParams(temperature=0.0, max_tokens=4))
    driver.step()
    reply = driver.step(lambda c: chain_of(c, text[1:9]))
    assert client.finish is Finish.LENGTH
    assert client.emitted == text[:4]
    assert reply.num_accepted.tolist() == [3]


def chain_of(client: Client, drafted: list[int]) -> tuple[DraftTree, list[ProposalRow]]:
    tokens = np.array([client.tokens[-1], *drafted], np.int32)
    tree = DraftTree(tokens, np.arange(-1, len(drafted), dtype=np.int32))
    return tree, [ProposalRow.empty()] * len(tokens)


def test_a_restarted_sequence_goes_on_as_if_nothing_had_happened():
    driver = Driver()
    clients = [driver.add(PROMPTS[3], COUPLED), driver.add(PROMPTS[4], GREEDY)]
    driver.step()
    driver.step(random_trees(9, 6))
    driver.verifier = Driver().verifier
    reply = driver.step(random_trees(10, 6))
    assert reply.status.tolist() == [Status.UNKNOWN] * 2
    clients[0].is_known = False
    expected = [plain_text(PROMPTS[3], COUPLED), plain_text(PROMPTS[4], GREEDY)]
    assert driver.run(random_trees(11, 6)) == expected


def test_starting_a_known_sequence_replaces_it():
    driver = Driver()
    client = driver.add(PROMPTS[3], COUPLED)
    driver.step()
    client.is_known, client.prompt, client.emitted = False, PROMPTS[4], []
    assert driver.run() == [plain_text(PROMPTS[4], COUPLED)]


def test_a_finished_id_frees_its_blocks_at_once():
    driver = Driver()
    client = driver.add(PROMPTS[4], GREEDY)
    driver.step()
    assert driver.verifier.blocks.num_used > 0
    client.finish = Finish.LENGTH
    driver.finished_ids = [client.id, 5]
    reply = driver.step()
    assert (reply.num_used_blocks[0], reply.num_free_blocks[0]) == (0, 128)
    assert driver.decoder.num_forwards == 1


def test_the_proposal_row_of_each_node_reaches_acceptance():
    """A drafter that knows the target's own distribution is never rejected."""
    params = SamplingParams(max_tokens=20, seed=1, acceptance=Acceptance.REJECTION)

    def drawn_chain(client: Client) -> tuple[DraftTree, list[ProposalRow]]:
        tokens, rows = client.tokens, []
        for _ in range(4):
            logits = logits_after(tokens).astype(np.float64)
            log_probs = logits - np.log(np.exp(logits).sum())
            rows.append(ProposalRow(np.arange(VOCAB_SIZE), log_probs.astype(np.float32)))
            tokens = [*tokens, int(np.random.default_rng(len(tokens)).choice(VOCAB_SIZE))]
        tree, _ = chain_of(client, tokens[len(client.tokens) :][:3])
        return tree, rows

    driver = Driver()
    for prompt in PROMPTS[:3]:
        driver.add(prompt, params)
    driver.step()
    reply = driver.step(drawn_chain)
    assert reply.num_accepted.tolist() == [3, 3, 3]
