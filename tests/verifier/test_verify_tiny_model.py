"""The verifier over a real decoder: trees, chunks and preemption leave the model's text alone."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from replay import assert_same_or_tied_tokens
from transformers import AutoModelForCausalLM
from verify_driver import Client, Driver, TreeMaker

from canopy.models.decoder import Decoder, load_decoder
from canopy.sampling import Acceptance, SamplingParams
from canopy.tree import DraftTree, ProposalRow

Check = Callable[[list[Client]], None]

MAX_TOKENS = 24
GREEDY = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)
COUPLED = SamplingParams(seed=11, max_tokens=MAX_TOKENS, acceptance=Acceptance.COUPLED)
RNG = np.random.default_rng(0)
PROMPTS = [RNG.integers(0, 250, length).tolist() for length in (1, 16, 33, 70)]


@pytest.fixture(scope="module", params=["float32", "int8"])
def dtype(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def decoder(tiny_folder: Path, dtype: str) -> Decoder:
    return load_decoder(tiny_folder, dtype, "cpu")


def text_of(decoder: Decoder, make_tree: TreeMaker | None = None, **options: int) -> Driver:
    """Serve every prompt under both modes, at once."""
    driver = Driver(decoder=decoder, block_size=16, **options)
    for prompt in PROMPTS:
        driver.add(prompt, GREEDY)
        driver.add(prompt, COUPLED)
    driver.run(*[make_tree] if make_tree else [])
    return driver


@pytest.fixture(scope="module")
def plain(decoder: Decoder) -> list[list[int]]:
    """The texts without trees, with room for everything."""
    return [client.emitted for client in text_of(decoder, num_tokens=2048).clients]


def hindsight(plain: list[list[int]], seed: int) -> TreeMaker:
    """Trees of random shape that often carry the text to come."""
    rng = np.random.default_rng(seed)

    def make(client: Client) -> tuple[DraftTree, list[ProposalRow]]:
        text = plain[client.id - 1000]
        tokens, parents, depths = [client.tokens[-1]], [-1], [0]
        for _ in range(10):
            parent = int(rng.integers(len(tokens)))
            index = len(client.emitted) + depths[parent]
            is_hit = rng.random() < 0.7 and index < len(text)
            token = text[index] if is_hit else int(rng.integers(250))
            if token not in [t for t, p in zip(tokens, parents, strict=True) if p == parent]:
                tokens.append(token)
                parents.append(parent)
                depths.append(depths[parent] + 1)
        tree = DraftTree(np.array(tokens, np.int32), np.array(parents, np.int32))
        return tree, [ProposalRow.empty()] * len(tokens)

    return make


@pytest.mark.parametrize("dtype", ["float32"], indirect=True)
def test_plain_greedy_text_is_that_of_transformers(tiny_folder: Path, plain: list[list[int]]):
    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    for prompt, text in zip(PROMPTS, plain[::2], strict=True):
        tokens = torch.tensor([prompt])
        length = {"max_new_tokens": MAX_TOKENS, "min_new_tokens": MAX_TOKENS}
        answer = model.generate(tokens, do_sample=False, eos_token_id=None, **length)
        expected = answer[0, len(prompt) :].tolist()
        assert_same_or_tied_tokens(tiny_folder, prompt, {"temperature": 0.0}, expected, text)


@pytest.fixture
def assert_plain(tiny_folder: Path, dtype: str, plain: list[list[int]]) -> Check:
    """Checks that clients got the plain texts; those of floats may part at a tie."""

    def check(clients: list[Client]) -> None:
        for client, text in zip(clients, plain, strict=True):
            if dtype == "int8":
                assert client.emitted == text
            options = {"temperature": client.params.temperature, "seed": client.params.seed}
            assert_same_or_tied_tokens(tiny_folder, client.prompt, options, text, client.emitted)

    return check


@pytest.mark.parametrize("max_step_tokens", [7, 512])
def test_trees_change_no_text(
    decoder: Decoder, plain: list[list[int]], assert_plain: Check, max_step_tokens: int
):
    trees = hindsight(plain, 1)
    driver = text_of(decoder, trees, num_tokens=2048, max_step_tokens=max_step_tokens)
    assert_plain(driver.clients)
    assert driver.num_accepted > 2 * MAX_TOKENS


def test_preemption_changes_no_text(decoder: Decoder, plain: list[list[int]], assert_plain: Check):
    driver = text_of(decoder, hindsight(plain, 2), num_tokens=240)
    assert_plain(driver.clients)
    assert driver.num_preempted > 0


def test_cached_prefixes_change_no_text(
    decoder: Decoder, plain: list[list[int]], assert_plain: Check
):
    driver = text_of(decoder, num_tokens=2048)
    for client in list(driver.clients):
        driver.add(client.prompt, client.params)
    driver.run()
    again = driver.clients[len(plain) :]
    assert_plain(again)
    assert [client.num_cached for client in again] == [0, 0, 0, 0, 32, 32, 64, 64]
