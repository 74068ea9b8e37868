"""Makes a corpus, or goes on with one: shard after shard of answered prompts.

Prompts are shuffled by the seed; those that fit are numbered, and shard k holds the answers to
`shard_size` numbers from k * shard_size on. Even numbers are answered greedily, odd ones sampled.
What was in no complete shard when a run ended is answered again.
"""

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from canopy.config import TargetConfig
from canopy.costs.profile_file import model_digest
from canopy.model_store.folders import model_folder
from canopy.model_store.manifest import file_sha256
from canopy.models.config import ModelConfig
from canopy.models.decoder import load_decoder
from canopy.sampling import Acceptance, SamplingParams
from canopy.text.tokenizer import Tokenizer
from canopy_training.corpus.corpus import (
    Answer,
    Manifest,
    complete_shards,
    only_writer,
    write_shard,
)
from canopy_training.corpus.generator import Answering, Keeping, Question

TAP_SHARES = (7 / 30, 15 / 30, 25 / 30)  # of the layers


@dataclass(frozen=True)
class CorpusPlan:
    """What a corpus is to hold."""

    prompts: Path  # JSON lines with `prompt`
    limit: int = 0  # answers; 0: one for every prompt that fits
    max_tokens: int = 128  # of an answer
    max_prompt_tokens: int = 320  # longer prompts are left out
    batch: int = 48  # answers written at once
    seed: int = 0
    temperature: float = 0.8
    num_top: int = 16
    shard_size: int = 200


def aux_layers_of(num_layers: int) -> tuple[int, ...]:
    """Numbers of layers after which hidden states are taken, ascending."""
    return tuple(sorted({min(round(share * num_layers), num_layers - 1) for share in TAP_SHARES}))


def manifest_of(plan: CorpusPlan, target: TargetConfig) -> Manifest:
    """Raises InvalidDeployment for an unusable target, OSError for unreadable prompts."""
    config = ModelConfig.from_folder(model_folder(target.model))
    return Manifest(
        target=model_digest(target.model),
        dtype=target.dtype,
        vocab_size=config.vocab_size,
        prompts=file_sha256(plan.prompts),
        seed=plan.seed,
        temperature=plan.temperature,
        max_tokens=plan.max_tokens,
        max_prompt_tokens=plan.max_prompt_tokens,
        aux_hidden_state_layers=aux_layers_of(config.num_layers),
        num_top=plan.num_top,
        shard_size=plan.shard_size,
    )


def make_corpus(
    plan: CorpusPlan,
    target: TargetConfig,
    folder: Path,
    on_answers: Callable[[int, int], None] = lambda answers, tokens: None,
) -> None:
    """Answer until the limit or the end of the prompts.

    on_answers: called with how many answers were added and their tokens; first of all with the
    number of answers found, and 0. Raises InvalidCorpus for a folder made with other settings, and
    for one that another run is making.
    """
    manifest = manifest_of(plan, target)
    manifest.write(folder)
    with only_writer(folder):
        _answer_what_is_missing(plan, target, folder, manifest, on_answers)


def _answer_what_is_missing(
    plan: CorpusPlan,
    target: TargetConfig,
    folder: Path,
    manifest: Manifest,
    on_answers: Callable[[int, int], None],
) -> None:
    done = set(complete_shards(folder))
    on_answers(len(done) * plan.shard_size, 0)
    source = model_folder(target.model)
    keeping = Keeping(manifest.aux_hidden_state_layers, plan.num_top)
    length = plan.max_prompt_tokens + plan.max_tokens
    decoder = load_decoder(source, target.dtype, target.device)
    answering = Answering(decoder, plan.batch, length, keeping)
    questions = QuestionReader(plan, source)
    writer = _ShardWriter(folder, plan.shard_size)
    missing = (q for q in questions if q.number // plan.shard_size not in done)
    for answer in answering.answer(missing):
        on_answers(1, len(answer.answer_ids))
        writer.add(answer)
    writer.finish()


class QuestionReader:
    """The prompts of a plan that fit, in its order; to be read once."""

    def __init__(self, plan: CorpusPlan, model: Path) -> None:
        self._num_given = 0
        self._plan = plan
        self._tokenizer = Tokenizer(model)
        self._stop_token_ids = ModelConfig.from_folder(model).eos_token_ids

    def __iter__(self) -> Iterator[Question]:
        plan = self._plan
        # Not splitlines: a prompt may hold other line breaks than this one.
        lines = plan.prompts.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        random.Random(plan.seed).shuffle(lines)
        for line in lines:
            if plan.limit and self._num_given >= plan.limit:
                return
            prompt = [{"role": "user", "content": json.loads(line)["prompt"]}]
            token_ids = self._tokenizer.encode_rendered(self._tokenizer.render_chat(prompt))
            if len(token_ids) <= plan.max_prompt_tokens:
                self._num_given += 1
                number = self._num_given - 1
                yield Question(number, np.array(token_ids, np.int32), self._params(number))

    def _params(self, number: int) -> SamplingParams:
        return SamplingParams(
            temperature=self._plan.temperature if number % 2 else 0.0,
            seed=(self._plan.seed << 32) + number,
            max_tokens=self._plan.max_tokens,
            stop_token_ids=self._stop_token_ids,
            acceptance=Acceptance.COUPLED,
        )


class _ShardWriter:
    """Holds answers back until their shard is complete."""

    def __init__(self, folder: Path, shard_size: int) -> None:
        self._folder = folder
        self._shard_size = shard_size
        self._waiting: dict[int, list[Answer]] = defaultdict(list)

    def add(self, answer: Answer) -> None:
        index = answer.number // self._shard_size
        self._waiting[index].append(answer)
        if len(self._waiting[index]) == self._shard_size:
            self._write(index)

    def finish(self) -> None:
        """Write the last shard, which may be short; call it when every question was answered."""
        for index in sorted(self._waiting):
            self._write(index)

    def _write(self, index: int) -> None:
        answers = sorted(self._waiting.pop(index), key=lambda answer: answer.number)
        write_shard(self._folder, index, answers)
