"""Two and three ranks give one rank's text, and hold one rank's keys and values."""

from pathlib import Path

import numpy as np
import pytest
import torch
from families import FAMILIES, oracle_logits, write_family
from ranks import Life
from replay import MAX_GAP
from verify_driver import Client, Driver, TreeMaker

from canopy.config import DEFAULT_MODEL
from canopy.errors import InvalidDeployment
from canopy.model_store.folders import model_folder
from canopy.models.decoder import Decoder, load_decoder
from canopy.models.step_batch import Segment, assemble_step
from canopy.sampling import SamplingParams
from canopy.tree import DraftTree, ProposalRow
from canopy.verifier.tensor_parallel.decoder import ShardedDecoder
from canopy.verifier.tensor_parallel.sharding import Shard

BLOCK_SIZE = 4
MAX_TOKENS = 16
GREEDY = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)
TOKENS = np.random.default_rng(3).integers(0, 97, 60).tolist()
PROMPTS = [TOKENS[:1], TOKENS[5:22], TOKENS[20:53]]
TREE = [-1, 0, 0, 1, 1, 2, 3, 3, 6]  # the anchor follows the context
ACCEPTED = [0, 1, 3, 6, 8]


def texts(decoder: Decoder | ShardedDecoder, make_tree: TreeMaker | None = None) -> list[list[int]]:
    driver = Driver(decoder=decoder, num_tokens=512, block_size=BLOCK_SIZE, max_step_tokens=16)
    for prompt in PROMPTS:
        driver.add(prompt, GREEDY)
    driver.run(*[make_tree] if make_tree else [])
    assert make_tree is None or driver.num_accepted > MAX_TOKENS
    return [client.emitted for client in driver.clients]


def bushy_trees(plain: list[list[int]]) -> TreeMaker:
    """Three levels; the token to come stands behind a sibling, so accepted paths have holes."""

    def make(client: Client) -> tuple[DraftTree, list[ProposalRow]]:
        done, text = len(client.emitted), plain[client.id - 1000]
        tokens, parents = [client.tokens[-1]], [-1]
        parent = 0
        for token in text[done : done + 3]:
            tokens += [(token + 1) % 97, token]
            parents += [parent, parent]
            parent = len(tokens) - 1
        tree = DraftTree(np.array(tokens, np.int32), np.array(parents, np.int32))
        return tree, [ProposalRow.empty()] * len(tokens)

    return make


def assert_same_or_tied(model: torch.nn.Module, prompt: list[int], text: list[int], other) -> None:
    """Equal, or the target was undecided where they part: see tests/replay.py."""
    assert len(text) == len(other)
    differing = [i for i, pair in enumerate(zip(text, other, strict=True)) if pair[0] != pair[1]]
    if differing:
        scores = oracle_logits(model, prompt + text[: differing[0]])[-1].sort().values
        assert scores[-1] - scores[-2] < MAX_GAP


def committed_cache(decoder: Decoder | ShardedDecoder):
    """After a context, a tree, and a path with holes that was moved into place."""
    cache = decoder.new_cache(32, BLOCK_SIZE)
    table = np.random.default_rng(1).permutation(32)[:16].tolist()
    context = TOKENS[:18]
    chain = np.arange(len(context)) - 1
    first = Segment(0, table, np.array(context), chain, np.array([len(context) - 1]))
    drafted = np.array(TOKENS[30 : 30 + len(TREE)])
    tree = Segment(len(context), table, drafted, np.array(TREE), np.arange(len(TREE)))
    for part in (first, tree):
        decoder.forward(assemble_step([part], BLOCK_SIZE, "cpu"), cache)
    slots = torch.from_numpy(tree.slots(BLOCK_SIZE))
    cache.move(slots[ACCEPTED], slots[: len(ACCEPTED)])
    return cache


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_ranks_together_are_one_rank(ranks, family, num_ranks, tmp_path):
    model = write_family(family, tmp_path)
    whole = load_decoder(tmp_path, "float32", "cpu")
    plain = texts(whole)
    life = Life.of(ranks, tmp_path, num_ranks, tmp_path)
    sharded = texts(life.decoder, bushy_trees(plain))
    for prompt, text, other in zip(PROMPTS, plain, sharded, strict=True):
        assert_same_or_tied(model, prompt, text, other)
    expected = committed_cache(whole)
    own = committed_cache(life.decoder).local
    parts = [(own.keys, own.values), *life.end()]
    for rank, (keys, values) in enumerate(parts):
        heads = Shard(whole.config, rank, num_ranks).kv_heads
        assert expected.keys.abs().sum() > 0
        assert (keys - expected.keys[:, :, heads]).abs().max() < 1e-4
        assert (values - expected.values[:, :, heads]).abs().max() < 1e-4


def test_bfloat16_ranks_are_as_near_to_float32_as_one_rank(ranks, tmp_path):
    write_family("smollm2", tmp_path)
    chain = Segment(0, list(range(15)), np.array(TOKENS), np.arange(60) - 1, np.arange(60))
    batch = assemble_step([chain], BLOCK_SIZE, "cpu")

    def logits(decoder: Decoder | ShardedDecoder) -> torch.Tensor:
        return decoder.forward(batch, decoder.new_cache(16, BLOCK_SIZE))

    exact, rounded = (logits(load_decoder(tmp_path, t, "cpu")) for t in ("float32", "bfloat16"))
    life = Life.of(ranks, tmp_path, 3, tmp_path, dtype="bfloat16")
    sharded = logits(life.decoder)
    life.end()
    assert (sharded - exact).norm() < 1.3 * (rounded - exact).norm()


def test_only_the_newest_cache_can_be_used(ranks, tiny_folder: Path, tmp_path):
    life = Life.of(ranks, tiny_folder, 2, tmp_path)
    old = life.decoder.new_cache(4, BLOCK_SIZE)
    life.decoder.new_cache(4, BLOCK_SIZE)
    segment = Segment(0, [0], np.array([7]), np.array([-1]), np.array([0]))
    with pytest.raises(ValueError, match="another cache"):
        life.decoder.forward(assemble_step([segment], BLOCK_SIZE, "cpu"), old)
    life.end()


def test_smollm2_on_two_ranks_says_what_one_rank_says(ranks, tmp_path):
    from transformers import AutoModelForCausalLM

    try:
        folder = model_folder(DEFAULT_MODEL)
    except InvalidDeployment as error:
        pytest.skip(str(error))
    prompt, params = [504, 3575, 282, 4649, 314], SamplingParams(temperature=0.0, max_tokens=8)
    whole = load_decoder(folder, "float32", "cpu")
    life = Life.of(ranks, folder, 2, tmp_path)
    emitted = []
    for decoder in (whole, life.decoder):
        driver = Driver(decoder=decoder, num_tokens=64, block_size=16)
        driver.add(prompt, params)
        emitted += driver.run()
    life.end()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert_same_or_tied(model, prompt, *emitted)
