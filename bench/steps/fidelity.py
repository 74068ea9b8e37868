"""How near a target's weights in fewer bits come to the same model's in float32.

The float32 decoder answers each prompt greedily. Every decoder then reads prompt and answer, and
its distributions over the answer's tokens are compared with those of float32:

    kl     mean over tokens of sum p log(p / q), in nats; p is float32's, q the decoder's
    top1   tokens at which both hold the same token to be the most probable
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean

import numpy as np
import torch

from bench.harness.arguments import listed, one_of, positive
from bench.harness.benchmark import Benchmark, Options, Record, Result
from bench.harness.prompts import spread
from canopy.config import TargetConfig
from canopy.dtypes import DTYPES
from canopy.model_store.folders import model_folder, with_model_folders
from canopy.models.decoder import Decoder
from canopy.models.step_batch import Segment, assemble_step
from canopy.progress import phase_bars, progress_bar
from canopy.text.tokenizer import Tokenizer
from canopy.verifier.tensor_parallel.decoder import load_target

BLOCK_SIZE = 16
MAX_PROMPT_TOKENS = 512
_EXACT = "float32"
_QUANTIZED = ("int4", "int8")
_PROMPTS, _QUICK_PROMPTS = 12, 3
_TOKENS, _QUICK_TOKENS = 48, 16


class Reader:
    """A decoder with a cache for one text."""

    def __init__(self, decoder: Decoder, max_tokens: int) -> None:
        num_blocks = -(-max_tokens // BLOCK_SIZE)
        self._decoder = decoder
        self._table = list(range(num_blocks))
        self._cache = decoder.new_cache(num_blocks, BLOCK_SIZE)
        self._length = 0

    def log_probs(self, token_ids: Sequence[int]) -> torch.Tensor:
        """float64 [n, V] of the tokens after each of these, which follow what was read before."""
        rows = np.arange(len(token_ids))
        segment = Segment(self._length, self._table, np.array(token_ids), rows - 1, rows)
        self._length += len(token_ids)
        logits = self._decoder.forward(assemble_step([segment], BLOCK_SIZE, "cpu"), self._cache)
        return torch.log_softmax(logits.double(), dim=1)


def run(options: Options) -> Result:
    """Raises InvalidDeployment when the target cannot be loaded."""
    arguments = options.arguments
    with phase_bars() as progress:
        target = with_model_folders(options.deployment, progress).target
    tokenizer = Tokenizer(model_folder(target.model))
    num_prompts = arguments.num_prompts or (_QUICK_PROMPTS if options.is_quick else _PROMPTS)
    num_tokens = arguments.tokens or (_QUICK_TOKENS if options.is_quick else _TOKENS)
    prompts = [
        tokenizer.encode_rendered(tokenizer.render_chat([{"role": "user", "content": p.text}]))
        for p in spread(options.prompts, num_prompts)
    ]
    decoders = {name: _load(target, name) for name in dict.fromkeys((_EXACT, *arguments.dtypes))}
    kls: dict[str, list[float]] = {name: [] for name in arguments.dtypes}
    agreements: dict[str, list[float]] = {name: [] for name in arguments.dtypes}
    with progress_bar("prompts", len(prompts)) as advance:
        for prompt in prompts:
            prompt = prompt[:MAX_PROMPT_TOKENS]
            answer, exact = greedy_answer(decoders[_EXACT], prompt, num_tokens)
            for name in arguments.dtypes:
                reader = Reader(decoders[name], len(prompt) + num_tokens)
                found = reader.log_probs([*prompt, *answer[:-1]])[len(prompt) - 1 :]
                kls[name] += (exact.exp() * (exact - found)).sum(1).tolist()
                agreements[name] += (exact.argmax(1) == found.argmax(1)).tolist()
            advance()
    records: list[Record] = [
        {"dtype": name, "tokens": len(kls[name]), "kl": mean(kls[name])}
        | {"top1": mean(map(float, agreements[name]))}
        for name in arguments.dtypes
    ]
    return Result(
        {f"{record['dtype']}_{key}": record[key] for record in records for key in ("kl", "top1")},
        {f"distributions beside {_EXACT}": records},
    )


def greedy_answer(
    decoder: Decoder, prompt: Sequence[int], num_tokens: int
) -> tuple[list[int], torch.Tensor]:
    """Tokens of an answer, and float64 [num_tokens, V] log-probs of each."""
    reader = Reader(decoder, len(prompt) + num_tokens)
    rows = [reader.log_probs(prompt)[-1]]
    while len(rows) < num_tokens:
        rows.append(reader.log_probs([int(rows[-1].argmax())])[-1])
    return [int(row.argmax()) for row in rows], torch.stack(rows)


def _load(target: TargetConfig, dtype: str) -> Decoder:
    return load_target(replace(target, dtype=dtype))


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dtypes",
        type=listed(one_of(DTYPES)),
        default=_QUANTIZED,
        metavar="DTYPE,DTYPE",
        help=f"default: {','.join(_QUANTIZED)}",
    )
    parser.add_argument("--num-prompts", type=positive, metavar="N", help="prompts answered")
    parser.add_argument("--tokens", type=positive, metavar="N", help="tokens of each answer")


BENCHMARK = Benchmark(
    "fidelity",
    "distance of quantized weights from float32: KL divergence and agreement of the best token",
    run,
    _add_arguments,
)
