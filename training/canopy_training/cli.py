"""The command `canopy-train`. Heavy imports wait inside the commands."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from canopy.config import Deployment, TargetConfig
from canopy.deployment_file import load_deployment
from canopy.errors import CanopyError
from canopy.progress import progress_bar
from canopy_training.block_drafter.cli import drafter, export, mix
from canopy_training.lookup.cli import ngrams, survival
from canopy_training.small_drafter.cli import autoregressive

app = typer.Typer(
    name="canopy-train",
    help="Teach Canopy's drafters from the target's own answers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="Deployment file; its target answers."),
]
Threads = Annotated[int, typer.Option(min=1, help="Threads of the target.")]


@app.callback()
def training() -> None:
    """Keeps the commands named while there is one alone."""


@app.command()
def corpus(
    prompts: Annotated[Path, typer.Option(exists=True, help="JSON lines, each with a prompt.")],
    out: Annotated[Path, typer.Option(help="Folder; one that exists is gone on with.")],
    config: Config = None,
    limit: Annotated[int, typer.Option(min=0, help="Answers; 0: all prompts.")] = 0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Of an answer.")] = 128,
    max_prompt_tokens: Annotated[int, typer.Option(min=1, help="Longer ones are skipped.")] = 320,
    batch: Annotated[int, typer.Option(min=1, help="Answers written at once.")] = 48,
    seed: Annotated[int, typer.Option(min=0, help="Of the order and the sampling.")] = 0,
    threads: Threads = 1,
) -> None:
    """Have the target answer prompts; keep answers, hidden states and log-probs.

    Stop it at any time: the next run goes on behind the last complete shard.

    Example: canopy-train corpus --prompts prompts.jsonl --out corpus --limit 2000
    """
    target = _target(config, threads)
    from canopy_training.corpus.builder import CorpusPlan, make_corpus
    from canopy_training.corpus.corpus import InvalidCorpus

    plan = CorpusPlan(prompts, limit, max_tokens, max_prompt_tokens, batch, seed)
    total = limit or sum(1 for line in prompts.open(encoding="utf-8") if line.strip())
    try:
        with _answers_bar(total) as advance:
            make_corpus(plan, target, out, advance)
    except InvalidCorpus as error:
        raise typer.BadParameter(str(error)) from error


@app.command()
def store(
    out: Annotated[Path, typer.Option(help="File; drafter.ngrams names it.")],
    config: Config = None,
    prompts: Annotated[
        Path | None, typer.Option(exists=True, help="JSON lines, each with a prompt.")
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.1, help="That it takes at most.")] = 20.0,
    batch: Annotated[int, typer.Option(min=1, help="Answers written at once.")] = 48,
    threads: Threads = 1,
) -> None:
    """Make lookup's n-gram store and its weights for a target: corpus, ngrams, survival in one.

    Without prompts of your own, which are better, those that come with Canopy are answered.

    Example: canopy-train store --config my.toml --out ngrams.safetensors --threads 2
    """
    target = _target(config, threads)
    from canopy_training.corpus.corpus import InvalidCorpus
    from canopy_training.lookup.own_store import write_own_store
    from canopy_training.lookup.reliability import reliability_table

    try:
        made = write_own_store(prompts, out, target, minutes, batch)
    except InvalidCorpus as error:
        raise typer.BadParameter(str(error)) from error
    typer.echo(reliability_table(made.check))
    typer.echo(
        f"{made.num_answers} answers, {made.num_tokens} tokens: {len(made.store.ngrams.keys)} "
        f"contexts in {out}"
    )


for command in (ngrams, survival, drafter, export, mix, autoregressive):
    app.command()(command)


def _target(config: Path | None, threads: int) -> TargetConfig:
    """The target of a deployment, with so many threads from now on."""
    import os

    from canopy.server.runtime import THREAD_VARIABLES

    os.environ.update(THREAD_VARIABLES)  # as on the server; read once, when torch is loaded
    import torch

    torch.set_num_threads(threads)
    deployment = load_deployment(config) if config else Deployment()
    return replace(deployment.target, num_threads=threads)


@contextmanager
def _answers_bar(total: int) -> Iterator[Callable[[int, int], None]]:
    """Shows answers and their tokens; yields `advance(answers, tokens)`."""
    num_tokens = 0
    with progress_bar("answers", total, "{task.fields[tokens]} tokens", tokens=0) as advance:

        def add(answers: int, tokens: int) -> None:
            nonlocal num_tokens
            num_tokens += tokens
            advance(answers, tokens=num_tokens)

        yield add


def main() -> None:
    """Run one command; exit code 0, 1 failed, 2 misused."""
    try:
        app()
    except CanopyError as error:
        print(f"canopy-train: {error}", file=sys.stderr)
        sys.exit(1)
