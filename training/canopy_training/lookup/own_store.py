"""A store and survival weights for one target, within a given time and from prompts that ship.

The target answers prompts in this process; nine answers in ten are counted, together with the texts
that ship, which count less, and the weights are fitted to the tenth.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from canopy.config import TargetConfig
from canopy.drafter.lookup.ngram_store import NgramStore
from canopy.drafter.lookup.text_store import read_texts
from canopy.model_store.assets import SHIPPED_TEXTS
from canopy.model_store.folders import model_folder
from canopy.model_store.vocabulary import vocabulary_digest
from canopy.models.decoder import load_decoder
from canopy.text.tokenizer import Tokenizer
from canopy_training.corpus.builder import CorpusPlan, QuestionReader
from canopy_training.corpus.corpus import Answer
from canopy_training.corpus.generator import Answering, Keeping, Question
from canopy_training.lookup.ngrams import count, is_held_out
from canopy_training.lookup.reliability import Check
from canopy_training.lookup.survival import fit_and_check

ANSWERING_SHARE = 0.75  # of the time; then answers that are begun are ended, counted and fitted


@dataclass(frozen=True)
class OwnStore:
    """What was made, and how well its weights foretell answers that they were not fitted to."""

    store: NgramStore
    check: Check
    num_answers: int
    num_tokens: int


def shipped_prompts(path: Path) -> None:
    """Write the prompts that ship as JSON lines with `prompt`, each once."""
    prompts = dict.fromkeys(text["prompt"] for text in read_texts(SHIPPED_TEXTS))
    lines = [json.dumps({"prompt": prompt}, ensure_ascii=False) + "\n" for prompt in prompts]
    path.write_text("".join(lines), encoding="utf-8", newline="\n")


def make_own_store(
    plan: CorpusPlan, target: TargetConfig, minutes: float, max_match: int = 8
) -> OwnStore:
    """Answer prompts for most of the time or until all are answered; then count and fit.

    Raises InvalidDeployment for an unusable target, InvalidCorpus where too little was answered.
    """
    folder = model_folder(target.model)
    until = time.monotonic() + 60.0 * minutes * ANSWERING_SHARE
    decoder = load_decoder(folder, target.dtype, target.device)
    length = plan.max_prompt_tokens + plan.max_tokens
    answering = Answering(decoder, plan.batch, length, Keeping((), 1))
    answers = list(answering.answer(_questions(plan, folder, until)))
    counted = [answer for answer in answers if not is_held_out(answer.number)]
    ngrams = count(counted, _shipped_answers(Tokenizer(folder), answers))
    check, weights = fit_and_check(answers, ngrams, max_match)
    num_tokens = sum(len(answer.answer_ids) for answer in answers)
    return OwnStore(NgramStore(ngrams, weights), check, len(answers), num_tokens)


def write_own_store(
    prompts: Path | None, out: Path, target: TargetConfig, minutes: float, batch: int
) -> OwnStore:
    """Make the file. prompts: JSON lines with `prompt`; none: those that ship."""
    with TemporaryDirectory() as folder:
        shipped = Path(folder) / "prompts.jsonl"
        if prompts is None:
            shipped_prompts(shipped)
        made = make_own_store(CorpusPlan(prompts or shipped, batch=batch), target, minutes)
    out.parent.mkdir(parents=True, exist_ok=True)
    made.store.save(out, vocabulary_digest(model_folder(target.model)))
    return made


def _questions(plan: CorpusPlan, model: Path, until: float) -> Iterator[Question]:
    """Those of the plan, until the time is over."""
    for question in QuestionReader(plan, model):
        if time.monotonic() > until:
            return
        yield question


def _shipped_answers(tokenizer: Tokenizer, answers: Sequence[Answer]) -> list[np.ndarray]:
    """Token ids of the texts that ship, but for those whose prompts are held out."""
    hidden = {tuple(a.prompt_ids.tolist()) for a in answers if is_held_out(a.number)}
    texts = []
    for text in read_texts(SHIPPED_TEXTS):
        asked = [{"role": "user", "content": text["prompt"]}]
        if tuple(tokenizer.encode_rendered(tokenizer.render_chat(asked))) not in hidden:
            texts.append(np.array(tokenizer.encode_rendered(text["answer"]), np.int32))
    return texts
