"""The store holds what was counted, and is refused where it would be wrong."""

import json
from collections import Counter

import numpy as np
import pytest
from answers import answer_of
from hypothesis import given
from hypothesis import strategies as st
from tiny_model import write_tiny_model

from canopy.config import Deployment, DrafterConfig, TargetConfig
from canopy.drafter.lookup.counting import LEAST_TOTALS
from canopy.drafter.lookup.ngram_store import NgramStore
from canopy.drafter.stage import make_drafter
from canopy.errors import InvalidDeployment
from canopy.model_store.vocabulary import vocabulary_digest
from canopy.protocol.messages import DraftRequest
from canopy.protocol.proposals import unpack_proposals
from canopy.protocol.sequence_updates import StartedSequence, pack_started
from canopy.sampling import PolicyName, SamplingParams
from canopy.text.tokenizer import Tokenizer
from canopy_kernels.ngram.continuations import FEATURES, NUM_FEATURES
from canopy_kernels.ngram.ngram_table import (
    ANSWER_WEIGHT,
    MAX_GRAM_FOLLOWERS,
    context_keys,
    find_context,
)
from canopy_training.lookup.ngrams import count, further_texts, is_held_out

texts = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def followers_of(grams, context):
    place = find_context(grams, context_keys(np.array([*context, 0], np.int32), len(context))[0])
    if place < 0:
        return {}
    chosen = slice(grams.starts[place], grams.starts[place + 1])
    ids, counts = grams.follower_ids[chosen], grams.follower_counts[chosen]
    assert (np.diff(counts.astype(int)) <= 0).all()
    return dict(zip(ids.tolist(), counts.tolist(), strict=True))


def counted(answers, n):
    """Followers of every n-gram, by looking at every position."""
    found = {}
    for answer in answers:
        text, first = answer.token_ids.tolist(), len(answer.prompt_ids)
        for place in range(max(first, n), len(text)):
            found.setdefault(tuple(text[place - n : place]), Counter())[text[place]] += 1
    return found


@given(st.lists(texts, min_size=1, max_size=4), texts)
def test_counts_are_those_of_every_position_but_for_rare_long_contexts(parts, prompt):
    answers = [answer_of(prompt, part) for part in parts]
    grams = count(answers)
    num_followers = 0
    for n in range(1, 5):
        for context, found in counted(answers, n).items():
            if n > len(prompt):
                continue
            is_kept = found.total() >= LEAST_TOTALS[n - 1]
            expected = {t: ANSWER_WEIGHT * num for t, num in found.items()} if is_kept else {}
            assert followers_of(grams, context) == expected
            num_followers += len(expected)
    assert len(grams.follower_ids) == num_followers


def test_the_most_frequent_followers_stay():
    text = [t for follower in range(1, 13) for t in [0, follower] * (2 + follower)]
    kept = followers_of(count([answer_of([0], text)]), (0,))
    assert sorted(kept) == list(range(13 - MAX_GRAM_FOLLOWERS, 13))


def test_further_text_counts_less_and_in_short_contexts_alone():
    answers = [answer_of([9, 9, 9, 9], [1, 2, 3])]
    further = [np.array([1, 2, 3, 4, 5, 6], np.int32), np.array([1, 2, 4], np.int32)]
    alone, helped = count(answers), count(answers, further)
    assert followers_of(helped, (2,)) == {3: ANSWER_WEIGHT + 1, 4: 1}
    assert followers_of(helped, (1, 2)) == {3: ANSWER_WEIGHT + 1}  # the other one came too rarely
    thrice = count(answers, [*further, *further, *further])
    assert followers_of(thrice, (1, 2)) == {3: ANSWER_WEIGHT + 3, 4: 3}
    assert followers_of(thrice, (2, 3, 4, 5)) == followers_of(alone, (2, 3, 4, 5)) == {}


def test_prompts_whose_answers_are_held_out_are_no_further_text(model, tmp_path):
    tokenizer, prompts = Tokenizer(model), tmp_path / "prompts.jsonl"
    texts = [f"what is {n}" for n in range(20)]
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    asked = [
        answer_of(tokenizer.encode(f"user: {text}."), [1], number)
        for number, text in enumerate(texts)
    ]
    found = {tokenizer.decode(text.tolist()) for text in further_texts(prompts, asked, tokenizer)}
    assert found == {text for n, text in enumerate(texts) if not is_held_out(n)} - {"what is 1"}


def test_one_pair_in_ten_is_held_out():
    held_out = [number for number in range(40) if is_held_out(number)]
    assert held_out == [18, 19, 38, 39]


@pytest.fixture
def store() -> NgramStore:
    grams = count([answer_of([5], [1, 2, 3, 1, 2, 3, 1, 2, 4])])
    return NgramStore(grams, np.arange(NUM_FEATURES, dtype=float))


def test_a_file_gives_back_what_was_saved(store, tmp_path):
    path = tmp_path / "store.safetensors"
    store.save(path, "abc")
    found = NgramStore.open(path, "abc")
    for mine, its in zip(store.ngrams, found.ngrams, strict=True):
        np.testing.assert_array_equal(mine, its)
        assert mine.dtype == its.dtype
        assert not its.flags.writeable
    np.testing.assert_array_equal(found.weights, store.weights)


def test_a_store_of_another_vocabulary_is_refused(store, tmp_path):
    path = tmp_path / "store.safetensors"
    store.save(path, "abc")
    with pytest.raises(InvalidDeployment, match="another vocabulary"):
        NgramStore.open(path, "abd")


@pytest.mark.parametrize("damage", ["empty", "cut", "text", "missing", "features"])
def test_a_damaged_file_is_refused(store, tmp_path, damage):
    path = tmp_path / "store.safetensors"
    store.save(path, "abc")
    whole = path.read_bytes()
    features = json.dumps(json.dumps(FEATURES)).encode()
    path.write_bytes(
        {
            "empty": b"",
            "cut": whole[: len(whole) - 40],
            "text": b"no store at all, but long enough for a header",
            "missing": whole,
            "features": whole.replace(features, features.replace(b"one", b"two")),
        }[damage]
    )
    if damage == "missing":
        path.unlink()
    message = "canopy-train survival" if damage == "features" else "no n-gram store"
    with pytest.raises(InvalidDeployment, match=message):
        NgramStore.open(path, "abc")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def drafter_of(model, ngrams):
    """What a deployment drafts after 1 2, and how many of its sources are missing."""
    target = TargetConfig(model=str(model), dtype="float32")
    stage = make_drafter(Deployment(target=target, drafter=DrafterConfig(ngrams=str(ngrams))))
    params = SamplingParams(policy=PolicyName.CHAIN, node_budget=1)
    nothing, ids = np.zeros(0, np.int64), np.ones(1, np.int64)
    reply = stage.draft(
        DraftRequest(
            **pack_started([StartedSequence(1, np.array([1, 2], np.int32), 0, params)]),
            finished_ids=nothing,
            updated_ids=nothing,
            updated_lengths=nothing.astype(np.int32),
            updated_token_ids=nothing.astype(np.int32),
            sequence_ids=ids,
            max_depths=ids.astype(np.int32),
        )
    )
    [proposal] = unpack_proposals(reply)
    return proposal.tree.token_ids[1:].tolist(), int(reply.num_source_failures[0])


def test_a_deployment_uses_the_store_that_it_names(store, model, tmp_path):
    path = tmp_path / "store.safetensors"
    NgramStore(store.ngrams, np.zeros(0)).save(path, vocabulary_digest(model))
    assert drafter_of(model, path) == ([3], 0)
    assert drafter_of(model, "") == ([], 0)


def test_a_store_that_does_not_fit_is_left_out_and_said_so(store, model, tmp_path, caplog):
    path = tmp_path / "store.safetensors"
    store.save(path, "another")
    assert drafter_of(model, path) == ([], 1)
    assert "another vocabulary" in caplog.text
    assert drafter_of(model, "default") == ([], 0)


def test_the_digest_is_that_of_tokens_and_ids(model, tmp_path):
    other = write_tiny_model(tmp_path / "model", seed=3)
    assert vocabulary_digest(other) == vocabulary_digest(model)
    path = other / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    path.write_text(json.dumps(tokenizer))
    assert vocabulary_digest(other) == vocabulary_digest(model)
    tokenizer["added_tokens"][0]["content"] = "<|another|>"
    path.write_text(json.dumps(tokenizer))
    assert vocabulary_digest(other) != vocabulary_digest(model)
