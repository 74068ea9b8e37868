"""Log-probs of answers and prompts against `transformers` on the whole text."""

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from bench.harness.local_engine import LocalEngine
from canopy.config import CacheConfig, Deployment, DrafterConfig, LimitsConfig, TargetConfig
from canopy.engine.output import Delta
from canopy.engine.request import GenerationRequest

TOLERANCE = 1e-4
PROMPTS = ["abcabcabcabc", "the cat sat on the mat. the cat sat", "x" * 150]


@pytest.fixture(scope="module", params=[32, 512], ids="steps of {} tokens".format)
def engine(request, tiny_folder) -> LocalEngine:
    deployment = Deployment(
        target=TargetConfig(model=str(tiny_folder), dtype="float32"),
        drafter=DrafterConfig(source="lookup"),
        cache=CacheConfig(num_tokens=1024),
        limits=LimitsConfig(max_step_tokens=request.param),
    )
    return LocalEngine(deployment)


@pytest.fixture(scope="module")
def log_probs_of(tiny_folder):
    model = LlamaForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)

    def compute(token_ids: list[int]) -> np.ndarray:
        """float64 [n - 1, V] of what follows every token but the last."""
        with torch.no_grad():
            logits = model(torch.tensor([token_ids])).logits[0, :-1]
        return torch.log_softmax(logits.double(), -1).numpy()

    return compute


def run(engine, prompts=PROMPTS, **options) -> list[tuple[GenerationRequest, list[Delta]]]:
    requests = [engine.chat_request(p, max_tokens=24, ignore_eos=True, **options) for p in prompts]
    return list(zip(requests, engine.run_for_pieces(requests), strict=True))


def check(found, rows: np.ndarray, token_ids: list[int], num_top: int) -> None:
    assert [token.token_id for token in found] == token_ids
    for token, row in zip(found, rows, strict=True):
        assert abs(token.logprob - row[token.token_id]) < TOLERANCE
        assert len(token.top) == num_top
        best = np.sort(row)[::-1][:num_top]
        np.testing.assert_allclose([logprob for _, logprob in token.top], best, atol=TOLERANCE)
        for token_id, logprob in token.top:
            assert abs(row[token_id] - logprob) < TOLERANCE
        num_better = int((row > row[token.token_id] + TOLERANCE).sum())
        num_alike = int((row > row[token.token_id] - TOLERANCE).sum())
        assert num_better < token.rank <= num_alike


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0, "speculation": "topn", "node_budget": 12},
        {"temperature": 0.9, "seed": 4, "speculation": "priced"},
        {"temperature": 0.9, "seed": 4, "acceptance": "traversal", "speculation": "topn"},
        {"temperature": 0.7, "seed": 1, "repetition_penalty": 1.3, "logit_bias": {"97": 9}},
    ],
    ids=["greedy", "coupled", "traversal", "with options"],
)
def test_every_token_of_prompt_and_answer_has_the_targets_own(engine, log_probs_of, options):
    for request, deltas in run(engine, logprobs=3, prompt_logprobs=2, **options):
        prompt_ids = request.prompt_token_ids.tolist()
        emitted = [token_id for delta in deltas for token_id in delta.token_ids]
        rows = log_probs_of(prompt_ids + emitted)
        answer = [token for delta in deltas for token in delta.logprobs]
        prompt = [token for delta in deltas for token in delta.prompt_logprobs]
        check(answer, rows[len(prompt_ids) - 1 :], emitted, num_top=3)
        assert (prompt[0].token_id, prompt[0].logprob) == (prompt_ids[0], None)
        check(prompt[1:], rows[: len(prompt_ids) - 1], prompt_ids[1:], num_top=2)


def test_a_sequence_that_asks_for_none_gets_none_beside_one_that_asks(engine, log_probs_of):
    asks = engine.chat_request(PROMPTS[0], max_tokens=9, prompt_logprobs=0, temperature=0)
    other = engine.chat_request(PROMPTS[1], max_tokens=9, logprobs=0, temperature=0)
    plain = engine.chat_request(PROMPTS[2], max_tokens=9, temperature=0)
    first, second, third = engine.run_for_pieces([asks, other, plain])
    assert [len(d.logprobs) for d in first] == [0] * len(first)
    assert sum(len(d.prompt_logprobs) for d in first) == len(asks.prompt_token_ids)
    assert sum(len(d.logprobs) for d in second) == sum(d.num_tokens for d in second)
    assert not any(d.logprobs or d.prompt_logprobs for d in third)


def test_tokens_behind_a_stop_string_are_told_no_further(engine):
    [(_, whole)] = run(engine, PROMPTS[:1], temperature=0)
    text = "".join(delta.text for delta in whole)
    request = engine.chat_request(
        PROMPTS[0], max_tokens=24, ignore_eos=True, temperature=0, logprobs=0, stop=[text[6:9]]
    )
    [deltas] = engine.run_for_pieces([request])
    num_tokens = sum(delta.num_tokens for delta in deltas)
    assert sum(len(delta.logprobs) for delta in deltas) == num_tokens < 24
