"""Masks of trees, against the texts of finite grammars and against matchers of single paths."""

import llguidance
import numpy as np
import pytest
from grammar.toy_vocabulary import EOS, TOKENS, spelled, toy_vocabulary
from hypothesis import given, settings
from hypothesis import strategies as st

from canopy.errors import InvalidRequest
from canopy.grammar.compiler import GrammarCompiler
from canopy.grammar.matcher import GrammarMatcher, allowed_tokens
from canopy.grammar.structured_output import grammar_of
from canopy.tree import DraftTree

COMPILER = GrammarCompiler(toy_vocabulary())
GRAMMARS = [
    {"regex": "a*(bc|c)+"},
    {"regex": "(ab|ba){2}c?"},
    {"choice": ["a", "ab", "abcc", "cab"]},
    {"grammar": 'start: "a" start "b" | "c"'},
]


def matcher_of(value) -> GrammarMatcher:
    return COMPILER.matcher(grammar_of(value))


def allowed(masks: np.ndarray) -> np.ndarray:
    return allowed_tokens(masks, len(TOKENS))


@st.composite
def trees(draw):
    size = draw(st.integers(0, 24))
    parents = [-1, *(draw(st.integers(max(0, i - 4), i)) for i in range(size))]
    token_ids = draw(st.lists(st.integers(0, 9), min_size=size + 1, max_size=size + 1))
    return DraftTree(np.array(token_ids, np.int32), np.array(parents, np.int32))


@settings(max_examples=150, deadline=None)
@given(trees(), st.sampled_from(GRAMMARS), st.randoms(use_true_random=False))
def test_each_mask_is_that_of_a_new_matcher_which_was_fed_the_path(tree, grammar, random):
    matcher, committed = matcher_of(grammar), []
    for _ in range(random.randrange(3)):
        choices = np.flatnonzero(allowed(matcher.masks([[]]))[0]).tolist()
        if choices == [EOS]:
            break
        committed.append(random.choice([token_id for token_id in choices if token_id != EOS]))
        matcher.commit(committed[-1:])
    masks = matcher.masks(tree.token_paths)
    for node in range(tree.num_nodes + 1):
        fresh = matcher_of(grammar)
        try:
            fresh.commit(committed + [int(tree.token_ids[n]) for n in tree.path(node)])
        except ValueError:
            assert not masks[node].any()
            continue
        np.testing.assert_array_equal(masks[node], fresh.masks([[]])[0])
    assert matcher.is_complete == bool(allowed(masks)[0][EOS])  # the committed state is as it was
    np.testing.assert_array_equal(matcher.masks(tree.token_paths[::-1]), masks[::-1])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=5, unique=True))
def test_a_choice_lets_every_text_of_it_be_spelled_and_no_other(texts):
    grammar, wanted = {"choice": texts}, [text.encode() for text in texts]
    waiting, ended = [[]], set()
    while waiting:
        path = waiting.pop()
        matcher = matcher_of(grammar)
        matcher.commit(path)
        mask = allowed(matcher.masks([[]]))[0]
        so_far = spelled(path)
        assert mask[EOS] == (so_far in wanted) == matcher.is_complete
        for token_id, token in enumerate(TOKENS[1:], 1):
            # Of text that must come, the library allows the tokenizer's own spelling alone.
            if mask[token_id]:
                assert any(text.startswith(so_far + token) for text in wanted)
                waiting.append([*path, token_id])
        if mask[EOS]:
            ended.add(so_far)
        if matcher.is_finished:
            assert np.flatnonzero(mask).tolist() == [EOS]
    assert ended == set(wanted)


def test_forced_tokens_spell_the_text_that_must_come():
    matcher = matcher_of({"choice": ["abcca", "abccb"]})
    forced = matcher.forced([])
    assert forced
    assert b"abcc".startswith(spelled(forced))
    assert matcher.forced(forced[:1]) == forced[1:]
    matcher.commit(forced)  # they are allowed, too


@pytest.mark.parametrize(
    "value",
    [
        "a*",
        {},
        {"regex": "a", "choice": ["a"]},
        {"regex": ""},
        {"choice": []},
        {"choice": ["a", ""]},
        {"json": "{"},
        {"json": [1]},
        {"json_object": "yes"},
        {"pattern": "a"},
        {"grammar": 3},
    ],
)
def test_a_parameter_of_another_form_is_refused(value):
    with pytest.raises(InvalidRequest, match="structured_outputs"):
        grammar_of(value)


@pytest.mark.parametrize(
    "value",
    [
        {"regex": "("},
        {"grammar": "start: ("},
        {"json": {"type": "foo"}},
        {"json": {"type": "array", "uniqueItems": True}},  # cannot be enforced
    ],
)
def test_a_grammar_that_cannot_be_enforced_is_refused(value):
    with pytest.raises(InvalidRequest, match="cannot be used"):
        matcher_of(value)


def test_choices_are_texts_whatever_signs_they_hold():
    for text in ['a"b\\n', "a|b", "(c)*", "a\nb", "é€"]:
        assert GrammarCompiler(toy_vocabulary()).matcher(grammar_of({"choice": [text]}))


def test_the_least_recently_used_grammar_is_compiled_anew():
    compiler = GrammarCompiler(toy_vocabulary(), max_cached=2)
    first, second, third = (grammar_of({"regex": text}) for text in "abc")
    for grammar in (first, second, first, third):
        compiler.matcher(grammar)
    assert list(compiler._compiled) == [first, third]


def test_whitespace_within_json_is_bounded():
    """A model that likes blanks gets out of them."""
    vocabulary = llguidance.LLTokenizer("byte")
    compiler = GrammarCompiler(vocabulary)
    matcher = compiler.matcher(grammar_of({"json": {"type": "array", "items": {"const": 1}}}))
    matcher.commit(list(b"[1,"))
    num_blanks = 0
    while num_blanks < 100:
        mask = allowed_tokens(matcher.masks([[]]), vocabulary.vocab_size)[0]
        assert mask[ord("1")]
        if not mask[ord(" ")]:
            break
        matcher.commit([ord(" ")])
        num_blanks += 1
    assert 20 <= num_blanks <= 64
