"""The benchmark `fidelity` on a tiny random model."""

from argparse import Namespace

import pytest
import torch

from bench.harness.benchmark import Options
from bench.harness.prompts import Prompt
from bench.steps import fidelity
from canopy.config import Deployment, TargetConfig
from canopy.models.decoder import load_decoder

PROMPTS = [Prompt("a", "one two three"), Prompt("b", "four five")]


def test_float32_is_at_no_distance_from_itself_and_int8_near_it(tiny_folder):
    deployment = Deployment(target=TargetConfig(model=str(tiny_folder), dtype="float32"))
    arguments = Namespace(dtypes=["float32", "int8"], num_prompts=2, tokens=5)
    result = fidelity.run(Options(deployment, PROMPTS, arguments=arguments))
    assert result.figures["float32_kl"] == pytest.approx(0.0, abs=1e-6)
    assert result.figures["float32_top1"] >= 0.9
    assert 0.0 < result.figures["int8_kl"] < 0.1
    [records] = result.details.values()
    assert [record["tokens"] for record in records] == [10, 10]


def test_an_answer_and_its_distributions_are_those_of_one_pass(tiny_folder):
    decoder = load_decoder(tiny_folder, "float32", "cpu")
    prompt = [3, 1, 4, 1, 5]
    answer, log_probs = fidelity.greedy_answer(decoder, prompt, 6)
    whole = fidelity.Reader(decoder, 16).log_probs([*prompt, *answer[:-1]])[4:]
    torch.testing.assert_close(log_probs, whole, atol=1e-4, rtol=0)
    assert log_probs.argmax(1).tolist() == answer
