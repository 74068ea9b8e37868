"""DSpark and DFlash heads compute what the reference code of their layout does."""

import json

import numpy as np
import pytest
import torch
from golden_heads import DTYPES, GOLDEN, TOLERANCE, copied, error, golden_of, load
from golden_heads import variant as tensors_of

from canopy.models.draft_heads.block import BlockContexts
from canopy.models.draft_heads.markov import START, on_host

BLOCK_SIZE = 16
DEEPSPEC = "dspark-deepspec"
BLOCKS = [DEEPSPEC, "dspark-speculators", "dflash-zlab", "dflash-speculators"]


class Run:
    """A head with the context of one sequence."""

    def __init__(self, head):
        self.head = head
        self.cache = head.new_cache(4, BLOCK_SIZE)
        self.length = 0

    def take(self, states):
        positions = torch.arange(self.length, self.length + len(states))
        self.head.encode(states, positions, positions, self.cache)
        self.length += len(states)

    def block(self, anchor):
        slots = torch.arange(self.length).unsqueeze(0)
        contexts = BlockContexts(slots, torch.tensor([self.length]))
        return self.head(torch.tensor([int(anchor)]), contexts, self.cache)


class Path:
    """The Markov and the confidence head along one path of tokens, or the greedy one."""

    def __init__(self, head, slots, anchor, path=None):
        self.tokens, corrected, confidences = [], [], []
        tables = head.markov_head.tables() if head.markov_head else None
        weights = on_host(head.confidence_head.parent_weights) if head.confidence_head else None
        state, parent = START, int(anchor)
        for slot, logits in enumerate(on_host(slots.logits[0])):
            if tables:
                state = tables.step(state, parent, on_host(slots.codes[0, slot]))
                logits = logits + tables.out @ state.bias
            if weights is not None:
                own = float(slots.confidences[0, slot])
                confidences.append(own + float(weights @ tables.parents[parent]))
            corrected.append(logits)
            best = int(head.draft_ids[int(logits.argmax())])
            parent = best if path is None else int(path[slot])
            self.tokens.append(best)
        self.corrected = torch.from_numpy(np.stack(corrected))
        self.confidences = torch.tensor(confidences, dtype=torch.float64)


def check_greedy(head, slots, golden, anchor, prefix=""):
    tolerance = TOLERANCE[head.norm.weight.dtype]
    path = Path(head, slots, anchor)
    assert path.tokens == golden[f"{prefix}greedy_tokens"].tolist()
    assert error(path.corrected, golden[f"{prefix}corrected_logits"]) < tolerance
    assert error(path.confidences, golden[f"{prefix}confidence_logits"]) < tolerance


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BLOCKS)
def test_one_block_behind_the_prompt(name, dtype):
    golden, head = golden_of(name), load(name, dtype)
    run, anchor = Run(head), golden["first_token"]
    run.take(golden["target_features"])
    hidden = run.block(anchor)
    assert error(hidden[0], golden["block_hidden"]) < TOLERANCE[dtype]
    slots = head.slots(hidden)
    expected = golden["base_logits" if "base_logits" in golden else "draft_logits"]
    assert error(slots.logits[0], expected) < TOLERANCE[dtype]
    if head.markov_head:
        check_greedy(head, slots, golden, anchor)
    else:
        assert Path(head, slots, anchor).tokens == golden["draft_tokens"].tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [DEEPSPEC, "dflash-zlab"])
def test_the_next_block_follows_the_accepted_tokens(name, dtype):
    golden, head = golden_of(name), load(name, dtype)
    run, anchor = Run(head), golden["round2.bonus"]
    run.take(golden["target_features"])
    run.take(golden["round2.features"])
    hidden = run.block(anchor)
    assert error(hidden[0], golden["round2.block_hidden"]) < TOLERANCE[dtype]
    if head.markov_head:
        check_greedy(head, head.slots(hidden), golden, anchor, "round2.")
    else:
        logits = head.slots(hidden).logits[0]
        assert error(logits, golden["round2.draft_logits"]) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
def test_kinds_of_markov_heads(kind, dtype, tmp_path):
    golden, prefix = golden_of(DEEPSPEC), "" if kind == "vanilla" else f"{kind}."
    extra = tensors_of(golden, prefix)
    head = load(DEEPSPEC, dtype, copied(DEEPSPEC, tmp_path, {"markov_head_type": kind}, extra))
    run, anchor = Run(head), golden["first_token"]
    run.take(golden["target_features"])
    slots = head.slots(run.block(anchor))
    check_greedy(head, slots, golden, anchor, prefix)
    path = Path(head, slots, anchor, golden["path_tokens"])
    assert error(path.corrected, golden[f"{prefix}path_corrected_logits"]) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_siblings_and_cousins_share_their_slot(dtype):
    golden, head = golden_of(DEEPSPEC), load(DEEPSPEC, dtype)
    run, anchor, tables = Run(head), golden["first_token"], head.markov_head.tables()
    run.take(golden["target_features"])
    slots = head.slots(run.block(anchor))
    base, code = on_host(slots.logits[0, 2]), on_host(slots.codes[0, 2])
    found = [
        base + tables.out @ tables.step(START, parent, code).bias
        for parent in golden["tree_parents_pos2"].tolist()
    ]
    assert error(torch.from_numpy(np.stack(found)), golden["tree_logits_pos2"]) < TOLERANCE[dtype]


def test_without_markov_head_slots_are_independent(tmp_path):
    changes = {"markov_rank": 0, "enable_confidence_head": False}
    folder = copied(DEEPSPEC, tmp_path, changes, without=("markov_head", "confidence_head"))
    golden, head = golden_of(DEEPSPEC), load(DEEPSPEC, folder=folder)
    run, anchor = Run(head), golden["first_token"]
    run.take(golden["target_features"])
    path = Path(head, head.slots(run.block(anchor)), anchor)
    assert path.tokens == golden["nomarkov.greedy_tokens"].tolist()


@pytest.mark.parametrize("dtype", DTYPES)
def test_sliding_windows(dtype, tmp_path):
    golden = golden_of("dflash-zlab")
    changes = {
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": int(golden["sliding.window"]),
    }
    head = load("dflash-zlab", dtype, copied("dflash-zlab", tmp_path, changes))
    run = Run(head)
    run.take(golden["target_features"])
    hidden = run.block(golden["first_token"])
    assert error(hidden[0], golden["sliding.block_hidden"]) < TOLERANCE[dtype]
    logits = head.slots(hidden).logits[0]
    assert error(logits, golden["sliding.draft_logits"]) < TOLERANCE[dtype]


def test_a_pass_over_many_sequences_is_the_same_as_one_for_each():
    golden, head = golden_of(DEEPSPEC), load(DEEPSPEC)
    lengths, states = [17, 3, 9], golden["target_features"]
    cache = head.new_cache(6, BLOCK_SIZE)
    alone = []
    for index, length in enumerate(lengths):
        positions = torch.arange(length)
        head.encode(states[:length], positions, 32 * index + positions, cache)
        slots = 32 * index + positions.unsqueeze(0)
        alone.append(
            head(torch.tensor([index]), BlockContexts(slots, torch.tensor([length])), cache)
        )
    padded = torch.zeros(3, 17, dtype=torch.long)
    for index, length in enumerate(lengths):
        padded[index, :length] = 32 * index + torch.arange(length)
    together = head(torch.arange(3), BlockContexts(padded, torch.tensor(lengths)), cache)
    assert error(together, torch.cat(alone)) < 1e-5


def test_the_older_place_of_the_block_size_is_read_too(tmp_path):
    raw = json.loads((GOLDEN / "dflash-zlab" / "config.json").read_text(encoding="utf-8"))
    options = {**raw["dflash_config"], "block_size": 5}
    folder = copied("dflash-zlab", tmp_path, {"dflash_config": options, "block_size": 99})
    assert load("dflash-zlab", folder=folder).config.block_size == 5
