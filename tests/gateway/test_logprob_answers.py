"""Log-probs, echo, prompts of tokens and several answers, as OpenAI's package asks for them."""

import math

import openai
import pytest
from tiny_model import byte_tokenizer

pytestmark = pytest.mark.server

CHAT = [{"role": "user", "content": "abc"}]
GREEDY = {"model": "canopy", "temperature": 0}
SAMPLED = {"model": "canopy", "temperature": 1.0, "seed": 5}


def test_a_chat_tells_each_token_and_the_likeliest_in_its_place(client):
    answer = client.chat.completions.create(
        messages=CHAT, max_tokens=12, logprobs=True, top_logprobs=3, **GREEDY
    )
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    for token in content:
        assert len(token.top_logprobs) == 3
        best = token.top_logprobs[0]
        assert (best.token, best.logprob) == (token.token, token.logprob)  # greedy
        assert sorted(token.top_logprobs, key=lambda top: -top.logprob) == token.top_logprobs
    told = bytes(byte for token in content for byte in token.bytes)
    assert told.decode("utf-8", "replace") == answer.choices[0].message.content


def test_a_stream_tells_the_same(client):
    options = {"messages": CHAT, "max_tokens": 20, "logprobs": True, "top_logprobs": 1, **GREEDY}
    whole = client.chat.completions.create(**options).choices[0].logprobs.content
    chunks = list(client.chat.completions.create(stream=True, **options))
    told = [c.choices[0].logprobs for c in chunks]
    assert [token for each in told if each for token in each.content] == whole
    plain = client.chat.completions.create(messages=CHAT, max_tokens=3, **GREEDY)
    assert plain.choices[0].logprobs is None


def test_an_echoed_prompt_is_scored_as_lm_evaluation_harness_reads_it(client):
    """Tokens of context and continuation in, one token out that is thrown away."""
    token_ids = byte_tokenizer().encode("the cat sat").ids
    answer = client.completions.create(
        prompt=[token_ids, token_ids[:5]], max_tokens=1, logprobs=1, echo=True, **GREEDY
    )
    first, second = (choice.logprobs for choice in answer.choices)
    assert [len(first.tokens), len(second.tokens)] == [len(token_ids) + 1, 6]
    assert "".join(first.tokens[:-1]) == "the cat sat"
    assert answer.choices[0].text.startswith("the cat sat")
    assert first.token_logprobs[0] is None
    assert first.top_logprobs[0] is None
    assert all(logprob < 0 for logprob in first.token_logprobs[1:])
    assert first.token_logprobs[1:5] == second.token_logprobs[1:5]
    assert first.text_offset[:4] == [0, 1, 2, 3]
    for logprob, top in zip(first.token_logprobs[1:], first.top_logprobs[1:], strict=True):
        assert logprob <= max(top.values())


def test_a_streamed_echo_begins_with_the_prompt_and_goes_on_in_its_offsets(client):
    options = {"prompt": "hello", "max_tokens": 12, "logprobs": 0, "echo": True, **GREEDY}
    whole = client.completions.create(**options).choices[0]
    chunks = [c.choices[0] for c in client.completions.create(stream=True, **options)]
    assert "".join(chunk.text for chunk in chunks) == whole.text
    offsets = [o for chunk in chunks if chunk.logprobs for o in chunk.logprobs.text_offset]
    assert offsets == whole.logprobs.text_offset


def test_a_prompt_of_tokens_is_the_prompt_of_its_text(client):
    text = client.completions.create(prompt="hello", max_tokens=9, **GREEDY)
    tokens = client.completions.create(
        prompt=byte_tokenizer().encode("hello").ids,
        max_tokens=9,
        extra_body={"return_token_ids": True},
        **GREEDY,
    )
    assert tokens.choices[0].text == text.choices[0].text
    assert len(tokens.choices[0].token_ids) == 9
    with pytest.raises(openai.BadRequestError, match="vocabulary"):
        client.completions.create(prompt=[70_000], max_tokens=9, **GREEDY)


def test_best_of_gives_the_likeliest_of_the_answers_that_n_would_give(client):
    options = {"prompt": "hello", "max_tokens": 16, "logprobs": 0, **SAMPLED}
    every = client.completions.create(n=4, **options).choices
    best = client.completions.create(best_of=4, n=2, **options)
    means = [sum(c.logprobs.token_logprobs) / len(c.logprobs.token_logprobs) for c in every]
    ranked = sorted(range(4), key=lambda index: -means[index])
    assert [choice.text for choice in best.choices] == [every[i].text for i in ranked[:2]]
    assert best.usage.completion_tokens == 4 * 16
    unasked = client.completions.create(best_of=2, prompt="hello", max_tokens=4, **SAMPLED)
    assert unasked.choices[0].logprobs is None
    assert math.isfinite(means[0])


def test_the_answers_of_one_prompt_share_what_was_computed_of_it(client):
    prompt = "a prompt that nobody has sent yet, and long enough to fill some blocks. " * 8
    answer = client.completions.create(prompt=prompt, n=3, max_tokens=4, **SAMPLED)
    cached = [choice.speculation["cached_prompt_tokens"] for choice in answer.choices]
    assert cached[0] == 0
    assert min(cached[1:]) > len(prompt) // 2
