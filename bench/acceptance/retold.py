"""Lookup without any training for its target: the target's answers told in other vocabularies.

The default target writes each answer once, greedily. Its text is encoded anew for every vocabulary,
and the rounds are walked over those tokens with the store that ships as text. So the figures say
what a model of another family gets that writes such text and that nothing was made for.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

from bench.acceptance.replay import ReplayVerifier, TextWriter
from bench.acceptance.replay_texts import Texts, Written, text_key
from bench.acceptance.report import Outcome, Setting, details_of
from bench.acceptance.vocabularies import VOCABULARIES, write_model
from bench.harness.arguments import positive
from bench.harness.benchmark import Benchmark, Options, Result
from bench.harness.local_engine import LocalEngine
from bench.harness.prompts import Prompt
from canopy.config import Deployment
from canopy.engine.request import GenerationRequest
from canopy.model_store.folders import model_folder
from canopy.progress import progress_bar
from canopy.text.tokenizer import Tokenizer

_NODES = 16
_MAX_TOKENS = 96
_QUICK_MAX_TOKENS = 32


def run(options: Options) -> Result:
    """Write the texts, then walk them in each vocabulary, with the store and without."""
    arguments = options.arguments
    max_tokens = arguments.max_tokens or (_QUICK_MAX_TOKENS if options.is_quick else _MAX_TOKENS)
    own = replace(options.deployment, drafter=replace(options.deployment.drafter, source="lookup"))
    source = model_folder(own.target.model)
    writer = TextWriter([own], arguments.texts)
    requests = _requests(LocalEngine(own, writer.replay()), options.prompts, max_tokens)
    writer.write(requests)
    outcomes: list[Outcome] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        progress_bar("answers", 2 * len(VOCABULARIES) * len(requests)) as advance,
    ):
        for name in VOCABULARIES:
            model = Path(folder) / name
            write_model(source, model, name)
            target = replace(own.target, model=str(model))
            for ngrams in (own.drafter.ngrams, ""):
                drafter = replace(own.drafter, ngrams=ngrams)
                told = _Retelling(replace(own, target=target, drafter=drafter))
                told.take(options.prompts, requests, writer.texts, Tokenizer(source), max_tokens)
                arm = name if ngrams else f"{name}_no_store"
                outcome = Outcome(Setting(arm, "topn", _NODES, 0.0, "greedy"))
                told.walk(options.prompts, outcome)
                outcomes.append(outcome)
                advance(len(requests))
    return Result(_figures(outcomes), details_of(outcomes))


def _requests(
    engine: LocalEngine, prompts: list[Prompt], max_tokens: int
) -> list[GenerationRequest]:
    return [
        engine.chat_request(
            prompt.text,
            temperature=0.0,
            max_tokens=max_tokens,
            speculation="topn",
            node_budget=_NODES,
        )
        for prompt in prompts
    ]


class _Retelling:
    """The engine of one vocabulary, over texts that were written in another."""

    def __init__(self, deployment: Deployment) -> None:
        self._texts: Texts = {}
        self._tokenizer = Tokenizer(model_folder(deployment.target.model))
        verifier = ReplayVerifier(self._texts, deployment.limits.max_step_tokens)
        self._engine = LocalEngine(deployment, verifier)
        self._requests: list[GenerationRequest] = []

    def take(
        self,
        prompts: list[Prompt],
        requests: list[GenerationRequest],
        written: Texts,
        tokenizer: Tokenizer,
        max_tokens: int,
    ) -> None:
        """Encode the answers to `requests` anew. tokenizer: of those who wrote them."""
        # A vocabulary with shorter tokens needs more of them.
        self._requests = _requests(self._engine, prompts, 4 * max_tokens)
        for own, its in zip(self._requests, requests, strict=True):
            text = written[text_key(its.prompt_token_ids, its.params)]
            answer = tokenizer.decode(text.token_ids[len(its.prompt_token_ids) :])
            told = [*own.prompt_token_ids.tolist(), *self._tokenizer.encode_rendered(answer)]
            self._texts[text_key(own.prompt_token_ids, own.params)] = Written(told, text.finish)

    def walk(self, prompts: list[Prompt], outcome: Outcome) -> None:
        """Count the rounds of all answers in."""
        for prompt, answer in zip(prompts, self._engine.run(self._requests), strict=True):
            outcome.add(prompt, answer)


def _figures(outcomes: list[Outcome]) -> dict[str, float]:
    """By vocabulary; `lookup16_tau` is the lowest of those with the store."""
    taus = {outcome.setting.sources: outcome.total.acceptance_length for outcome in outcomes}
    figures = {f"{name}_lookup16_tau": tau for name, tau in taus.items()}
    figures["lookup16_tau"] = min(taus[name] for name in VOCABULARIES)
    return figures


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--max-tokens", type=positive, metavar="N", help="tokens of an answer")
    parser.add_argument(
        "--texts", type=Path, metavar="FILE", help="keep the target's texts here, as .npz"
    )


BENCHMARK = Benchmark(
    "retold",
    "acceptance of lookup with the store that ships as text, in vocabularies made for the test",
    run,
    _add_arguments,
)
