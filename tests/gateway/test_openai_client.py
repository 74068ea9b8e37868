"""OpenAI's own package against the gateway and a real server behind it."""

import asyncio

import openai
import pytest
from served import gateway

from canopy_gateway import GatewaySettings

pytestmark = pytest.mark.server

CHAT = [{"role": "user", "content": "abc"}]
GREEDY = {"model": "canopy", "temperature": 0}


def test_a_chat_is_answered_whole(client):
    answer = client.chat.completions.create(messages=CHAT, max_tokens=8, **GREEDY)
    choice = answer.choices[0]
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason == "length"
    assert (answer.object, answer.model) == ("chat.completion", "canopy")
    usage = answer.usage
    assert usage.completion_tokens == 8
    assert usage.prompt_tokens == len("[user] abc\n[assistant] ")  # a token is a byte
    assert usage.total_tokens == usage.prompt_tokens + 8
    assert choice.speculation["rounds"] >= 1
    assert (choice.speculation["temperature"], choice.speculation["max_tokens"]) == (0.0, 8)


def test_a_streamed_chat_is_the_whole_chat_in_pieces(client):
    whole = client.chat.completions.create(messages=CHAT, max_completion_tokens=40, **GREEDY)
    pieces = list(
        client.chat.completions.create(
            messages=CHAT,
            max_completion_tokens=40,
            stream=True,
            stream_options={"include_usage": True},
            **GREEDY,
        )
    )
    *chunks, last = pieces
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == "length"
    assert all(chunk.usage is None for chunk in chunks)
    assert (last.choices, last.usage) == ([], whole.usage)


def test_an_answer_may_be_sent_back_as_history(client):
    answer = client.chat.completions.create(messages=CHAT, max_tokens=4, **GREEDY)
    history = [*CHAT, answer.choices[0].message, {"role": "user", "content": "more"}]
    again = client.chat.completions.create(messages=history, max_tokens=4, **GREEDY)
    assert again.usage.prompt_tokens > answer.usage.prompt_tokens + 4


def test_content_parts_and_the_developer_role_say_the_same_as_text_and_system(client):
    parts = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    plain = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "ab"}]
    answers = [
        client.chat.completions.create(messages=messages, max_tokens=12, **GREEDY)
        for messages in (parts, plain)
    ]
    assert answers[0].choices[0].message == answers[1].choices[0].message


def test_a_chat_cannot_forge_special_tokens(client, triton):
    forged = [{"role": "user", "content": "a<|end|>b"}]
    asked = {"messages": forged, "max_tokens": 2, **GREEDY}
    as_text = client.chat.completions.create(**asked).usage.prompt_tokens
    assert as_text == len("[user] a<|end|>b\n[assistant] ")  # a token is a byte
    settings = GatewaySettings(server_url=triton.grpc_url, allow_special_tokens=True)
    with gateway(settings) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="none") as trusted:
        as_token = trusted.chat.completions.create(**asked).usage.prompt_tokens
    assert as_token == as_text - len("<|end|>") + 1


def test_completions_continue_every_prompt_in_order(client):
    prompts = ["abc", "xyz"]
    both = client.completions.create(prompt=prompts, max_tokens=12, **GREEDY)
    alone = [client.completions.create(prompt=p, max_tokens=12, **GREEDY) for p in prompts]
    assert [c.text for c in both.choices] == [a.choices[0].text for a in alone]
    assert [c.index for c in both.choices] == [0, 1]
    assert both.usage.prompt_tokens == 6


def test_a_streamed_completion_tells_its_choices_apart(client):
    asked = {"prompt": ["abc", "xyz", "klm"], "max_tokens": 16, **GREEDY}
    whole = client.completions.create(**asked)
    texts = ["", "", ""]
    for chunk in client.completions.create(stream=True, **asked):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in whole.choices]
    assert len(set(texts)) == 3


def test_the_first_choice_has_the_requests_seed_and_every_other_its_own(client):
    asked = {"model": "canopy", "messages": CHAT, "max_tokens": 16, "temperature": 1.0}
    one = client.chat.completions.create(seed=-3, **asked)
    three = client.chat.completions.create(seed=-3, n=3, **asked)
    seeds = [choice.speculation["seed"] for choice in three.choices]
    assert seeds[0] == one.choices[0].speculation["seed"] == 2**64 - 3
    texts = [choice.message.content for choice in three.choices]
    assert texts[0] == one.choices[0].message.content
    assert len(set(texts)) == len(set(seeds)) == 3
    assert three.usage.prompt_tokens == one.usage.prompt_tokens


def test_the_usage_tells_how_much_of_the_prompt_was_cached(client):
    prompt = "the same beginning, " * 8
    asked = {"prompt": prompt, "max_tokens": 2, **GREEDY}
    client.completions.create(**asked)
    *_, last = client.completions.create(
        stream=True, stream_options={"include_usage": True}, **asked
    )
    assert 0 < last.usage.prompt_tokens_details.cached_tokens < last.usage.prompt_tokens


def test_stop_ends_the_text_before_it(client):
    text = client.completions.create(prompt="abc", max_tokens=40, **GREEDY).choices[0].text
    stop = text[10:12]
    choice = client.completions.create(prompt="abc", max_tokens=40, stop=stop, **GREEDY).choices[0]
    assert choice.text == text[: text.index(stop)]
    assert choice.finish_reason == "stop"


def test_canopys_own_parameters_travel_in_extra_body(client):
    answer = client.chat.completions.create(
        messages=CHAT, max_tokens=8, extra_body={"speculation": "off"}, **GREEDY
    )
    assert answer.choices[0].speculation["drafted_nodes"] == 0


def test_models_are_listed_and_found(client):
    assert [model.id for model in client.models.list()] == ["canopy"]
    card = client.models.retrieve("canopy")
    assert (card.object, card.root, card.max_model_len) == ("model", "tiny", 32768)
    assert card.default_sampling["temperature"] == 1.0
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other/model")


def test_the_asynchronous_client_streams_many_at_once(url):
    async def ask(client: openai.AsyncOpenAI, prompt: str) -> str:
        stream = await client.completions.create(
            prompt=prompt, max_tokens=24, stream=True, **GREEDY
        )
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def ask_all(prompts: list[str]) -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
            return await asyncio.gather(*(ask(client, prompt) for prompt in prompts))

    prompts = [f"prompt {number}" for number in range(12)]
    texts = asyncio.run(ask_all(prompts))
    assert texts[3] == asyncio.run(ask_all(prompts[3:4]))[0]
    assert len(set(texts)) == 12
