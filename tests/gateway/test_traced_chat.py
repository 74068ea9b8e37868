"""The trace of every round, through the gateway."""

import openai
import pytest

pytestmark = pytest.mark.server

CHAT = {"model": "canopy", "messages": [{"role": "user", "content": "abcabcabc"}]}


def test_the_pieces_of_a_traced_chat_carry_their_rounds(client):
    stream = client.chat.completions.create(
        **CHAT,
        stream=True,
        max_tokens=24,
        temperature=0,
        stream_options={"include_usage": True},
        extra_body={"trace": True, "ignore_eos": True},
    )
    rounds, usage = [], None
    for piece in stream:
        usage = piece.usage or usage
        rounds += [r for choice in piece.choices for r in getattr(choice, "rounds", [])]
    assert [r["round"] for r in rounds] == list(range(1, len(rounds) + 1))
    num_tokens = sum(len(r["accepted"]) + (r["bonus"] is not None) for r in rounds)
    assert num_tokens == usage.completion_tokens == 24


def test_without_a_trace_no_piece_carries_rounds(client):
    stream = client.chat.completions.create(**CHAT, stream=True, max_tokens=8)
    assert not any(hasattr(choice, "rounds") for piece in stream for choice in piece.choices)


def test_a_trace_without_a_stream_is_refused(client):
    with pytest.raises(openai.BadRequestError, match="trace goes with stream"):
        client.chat.completions.create(**CHAT, extra_body={"trace": True})
