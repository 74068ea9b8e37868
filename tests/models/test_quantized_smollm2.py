"""The embedded model keeps its quality on integers, and its exactness at its real sizes."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from canopy.errors import InvalidDeployment
from canopy.model_store.folders import model_folder
from canopy.models.decoder import Decoder, load_decoder
from canopy.models.step_batch import Segment, assemble_step

BLOCK_SIZE = 16
PROMPTS = Path(__file__).parents[2] / "bench" / "prompts.jsonl"
TEXT = """\
A lighthouse keeper on a small island wrote down the weather every evening for thirty years. He
noted the direction of the wind, the height of the waves and the color of the sky at sunset. When
he retired, the notebooks filled a whole shelf. A student from the mainland read all of them and
found that storms came more often in years when the spring had been unusually warm. She wrote a
short program to count them:

    def count_storms(days):
        return sum(1 for day in days if day.wind > 60)

The numbers were clear. In the first ten years there were 41 storms, in the last ten there were
67. The keeper was not surprised. "You could have asked me," he said, and poured her a cup of tea.
"""


@pytest.fixture(scope="module")
def folder() -> Path:
    try:
        return model_folder("smollm2-135m-instruct")
    except InvalidDeployment as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def token_ids(folder: Path) -> list[int]:
    return list(Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT).ids)


@pytest.fixture(scope="module", params=["int4", "int8"])
def quantized(request, folder: Path) -> Decoder:
    return load_decoder(folder, request.param, "cpu")


def logits_of(decoder: Decoder, token_ids: list[int], chunk: int) -> torch.Tensor:
    """float32 [n, V]."""
    cache, table = decoder.new_cache(32, BLOCK_SIZE), list(range(32))
    parts = []
    for start in range(0, len(token_ids), chunk):
        part = np.array(token_ids[start : start + chunk])
        rows = np.arange(len(part))
        segment = Segment(start, table, part, rows - 1, rows)
        parts.append(decoder.forward(assemble_step([segment], BLOCK_SIZE, "cpu"), cache).clone())
    return torch.cat(parts)


def perplexity(decoder: Decoder, passages: list[list[int]]) -> float:
    losses = []
    for token_ids in passages:
        logits, following = logits_of(decoder, token_ids, 512)[:-1], torch.tensor(token_ids[1:])
        losses.append(torch.nn.functional.cross_entropy(logits, following, reduction="none"))
    return float(torch.cat(losses).mean().exp())


@pytest.fixture(scope="module")
def passages(folder: Path) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompts = "\n".join(json.loads(line)["prompt"] for line in PROMPTS.open(encoding="utf-8"))
    token_ids = tokenizer.encode(f"{TEXT}\n{prompts}").ids
    return [list(token_ids[start : start + 500]) for start in range(0, 2000, 500)]


@pytest.fixture(scope="module")
def exact_perplexity(folder: Path, passages: list[list[int]]) -> float:
    return perplexity(load_decoder(folder, "float32", "cpu"), passages)


def test_perplexity_is_within_two_percent_of_float32(passages, quantized, exact_perplexity):
    assert abs(perplexity(quantized, passages) / exact_perplexity - 1) < 0.02


def test_chunks_change_no_bit(quantized, token_ids):
    whole = logits_of(quantized, token_ids[:60], 60)
    assert torch.equal(logits_of(quantized, token_ids[:60], 13), whole)
    assert torch.equal(logits_of(quantized, token_ids[:60], 1), whole)
