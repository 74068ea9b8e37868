"""The float gap rule: two texts may differ only where the target itself was undecided.

In float32 the order of a sum depends on the batch, so a logit moves by some 1e-5. Where two texts
part, both prefixes are equal; the target is run over that prefix and the scores (logit / T + G)
of the two tokens must lie closer than MAX_GAP.
"""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from canopy.text.tokenizer import Tokenizer
from canopy_kernels.sampling.noise import gumbel

MAX_GAP = 1e-3


@cache
def _model(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def _scores(folder: Path, token_ids: list[int], options: dict[str, Any]) -> np.ndarray:
    with torch.inference_mode():
        logits = _model(folder)(torch.tensor([token_ids])).logits[0, -1].numpy()
    temperature = options["temperature"]
    if temperature == 0:
        return logits
    noise = gumbel(options["seed"], len(token_ids), np.arange(len(logits)))
    return logits / temperature + noise


def assert_same_or_tied(
    folder: Path, prompt: str, options: dict[str, Any], text: str, other: str
) -> None:
    """Equal texts, or a tie of the target at the first token where they differ."""
    if text != other:
        encode = Tokenizer(folder).encode
        assert_same_or_tied_tokens(folder, encode(prompt), options, encode(text), encode(other))


def assert_same_or_tied_tokens(
    folder: Path, prompt: list[int], options: dict[str, Any], ids: list[int], other: list[int]
) -> None:
    """The same rule where the tokens are known."""
    if ids == other:
        return
    pairs = enumerate(zip(ids, other, strict=False))
    first = next((i for i, (a, b) in pairs if a != b), min(len(ids), len(other)))
    best, second = np.sort(_scores(folder, prompt + ids[:first], options))[::-1][:2]
    assert best - second < MAX_GAP, f"they differ at token {first}: {ids} and {other}"
