"""Logits are those of `transformers`, however a sequence is cut into steps and trees."""

from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from families import FAMILIES, oracle_logits, oracle_states, write_family

from canopy.kv_cache.float_cache import KVCache
from canopy.models.decoder import Decoder, load_decoder
from canopy.models.step_batch import AuxHiddenStates, Segment, assemble_step

BLOCK_SIZE = 4
NUM_BLOCKS = 64
TOLERANCE = 1e-4
TOKENS = [int(t) for t in np.random.default_rng(5).integers(0, 97, 50)]
TREE = [-1, 0, 0, 1, 1, 2, 3, 3, 6]  # the anchor follows the context


def shuffled_table(seed: int = 0) -> list[int]:
    return [int(b) for b in np.random.default_rng(seed).permutation(NUM_BLOCKS)[:32]]


def segment(
    context_length: int, table: list[int], token_ids: list[int], parents: list[int] | None = None
) -> Segment:
    """Rows with all their logits; by default a chain."""
    rows = np.arange(len(token_ids))
    return Segment(
        context_length,
        table,
        np.array(token_ids),
        rows - 1 if parents is None else np.array(parents),
        rows,
    )


def step(decoder: Decoder, cache: KVCache, *segments: Segment) -> torch.Tensor:
    return decoder.forward(assemble_step(segments, BLOCK_SIZE, "cpu"), cache)


def new_cache(decoder: Decoder) -> KVCache:
    return decoder.new_cache(NUM_BLOCKS, BLOCK_SIZE)


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request, tmp_path_factory) -> tuple[Decoder, torch.nn.Module]:
    folder = tmp_path_factory.mktemp("family")
    model = write_family(request.param, folder)
    return load_decoder(folder, "float32", "cpu"), model


@pytest.mark.parametrize("chunk", [50, 7, 1])
def test_prefill_chunks_and_decoding_give_the_logits_of_transformers(pair, chunk):
    decoder, model = pair
    cache, table = new_cache(decoder), shuffled_table()
    parts = [
        step(decoder, cache, segment(start, table, TOKENS[start : start + chunk]))
        for start in range(0, len(TOKENS), chunk)
    ]
    logits = torch.cat(parts)
    assert logits.dtype == torch.float32
    assert (logits - oracle_logits(model, TOKENS)).abs().max() < TOLERANCE


def test_every_branch_of_a_tree_equals_plain_decoding_of_that_branch(pair):
    decoder, model = pair
    cache, table = new_cache(decoder), shuffled_table()
    context, drafted = TOKENS[:18], TOKENS[30 : 30 + len(TREE)]
    step(decoder, cache, segment(0, table, context))
    logits = step(decoder, cache, segment(len(context), table, drafted, TREE))
    for node in range(len(TREE)):
        branch = [node]
        while TREE[branch[0]] >= 0:
            branch.insert(0, TREE[branch[0]])
        alone = oracle_logits(model, context + [drafted[n] for n in branch])
        assert (logits[node] - alone[-1]).abs().max() < TOLERANCE


def test_sequences_of_one_step_do_not_see_each_other(pair):
    decoder, model = pair
    cache = new_cache(decoder)
    tables = np.random.default_rng(1).permutation(NUM_BLOCKS).reshape(4, 16).tolist()
    contexts = [TOKENS[:16], TOKENS[16:17], TOKENS[20:41]]
    opening = [segment(0, t, c) for t, c in zip(tables[:3], contexts, strict=True)]
    step(decoder, cache, *opening)
    drafted = TOKENS[3 : 3 + len(TREE)]
    logits = step(
        decoder,
        cache,
        segment(16, tables[0], drafted, TREE),
        segment(1, tables[1], [9]),
        segment(21, tables[2], drafted, TREE),
        segment(0, tables[3], TOKENS[:23]),
    )
    assert len(logits) == 2 * len(TREE) + 1 + 23
    expected = [
        oracle_logits(model, contexts[0] + drafted[:2])[-2],
        oracle_logits(model, [*contexts[1], 9])[-1],
        oracle_logits(model, contexts[2] + drafted[:2])[-2],
    ]
    firsts = [0, len(TREE), len(TREE) + 1]
    assert (logits[firsts] - torch.stack(expected)).abs().max() < TOLERANCE
    assert (logits[-23:] - oracle_logits(model, TOKENS[:23])).abs().max() < TOLERANCE


@pytest.fixture(scope="module")
def smol(tmp_path_factory) -> tuple[Decoder, torch.nn.Module, Path]:
    folder = tmp_path_factory.mktemp("smol")
    model = write_family("smollm2", folder)
    return load_decoder(folder, "float32", "cpu"), model, folder


def test_an_accepted_path_that_was_moved_into_place_continues_like_plain_text(smol):
    decoder, model, _ = smol
    cache, table = new_cache(decoder), shuffled_table()
    context, drafted = TOKENS[:18], TOKENS[30 : 30 + len(TREE)]
    step(decoder, cache, segment(0, table, context))
    tree = segment(len(context), table, drafted, TREE)
    step(decoder, cache, tree)
    accepted = [0, 1, 3, 6, 8]
    slots = torch.from_numpy(tree.slots(BLOCK_SIZE))
    cache.move(slots[accepted], slots[: len(accepted)])
    text = context + [drafted[node] for node in accepted]
    logits = step(decoder, cache, segment(len(text), table, [11]))
    assert (logits[0] - oracle_logits(model, [*text, 11])[-1]).abs().max() < TOLERANCE


def test_only_the_wanted_rows_get_logits(smol):
    decoder, model, _ = smol
    chain = np.arange(20) - 1
    wanted = Segment(0, shuffled_table(), np.array(TOKENS[:20]), chain, np.array([4, 19]))
    silent = Segment(0, shuffled_table(1), np.array(TOKENS[:20]), chain, np.array([], int))
    logits = step(decoder, new_cache(decoder), wanted)
    assert (logits - oracle_logits(model, TOKENS[:20])[[4, 19]]).abs().max() < TOLERANCE
    assert step(decoder, new_cache(decoder), silent).shape == (0, 97)


def test_tapped_states_are_those_of_transformers(pair):
    decoder, model = pair
    batch = assemble_step([segment(0, shuffled_table(), TOKENS)], BLOCK_SIZE, "cpu")
    aux_hidden_states = AuxHiddenStates.of((0, 1), batch, decoder.config.hidden_size)
    decoder.forward(batch, new_cache(decoder), aux_hidden_states)
    assert (aux_hidden_states.states - oracle_states(model, TOKENS)[:, :2]).abs().max() < TOLERANCE


def test_bfloat16_is_as_near_to_float32_as_transformers_is(smol):
    _, model, folder = smol
    exact = oracle_logits(model, TOKENS)
    rounded = oracle_logits(deepcopy(model).bfloat16(), TOKENS)
    decoder = load_decoder(folder, "bfloat16", "cpu")
    logits = step(decoder, new_cache(decoder), segment(0, shuffled_table(), TOKENS))
    assert logits.dtype == torch.float32
    assert (logits - exact).norm() < 1.3 * (rounded - exact).norm()


def test_shards_load_like_one_file(smol, tmp_path):
    decoder, model, _ = smol
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    sharded = load_decoder(tmp_path, "float32", "cpu")
    whole = segment(0, shuffled_table(), TOKENS)
    assert torch.equal(
        step(sharded, new_cache(sharded), whole), step(decoder, new_cache(decoder), whole)
    )


def test_the_real_smollm2_gives_the_logits_of_transformers():
    from transformers import AutoModelForCausalLM

    from canopy.errors import InvalidDeployment
    from canopy.model_store.folders import model_folder

    try:
        folder = model_folder("smollm2-135m-instruct")
    except InvalidDeployment as error:
        pytest.skip(str(error))
    decoder = load_decoder(folder, "float32", "cpu")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    token_ids = [1, 4093, 198, 504, 3575, 282, 4649, 314, 7042, 30, 216, 339]
    cache, table = new_cache(decoder), shuffled_table()
    parts = [segment(0, table, token_ids[:9]), segment(9, table, token_ids[9:])]
    logits = torch.cat([step(decoder, cache, part) for part in parts])
    assert (logits - oracle_logits(model, token_ids)).abs().max() < TOLERANCE
