"""The commands of `canopy-train` about lookup: the n-gram store and its weights."""

from pathlib import Path
from typing import Annotated

import typer

from canopy.config import DEFAULT_MODEL
from canopy_training.options import CorpusFolder, ReliabilityPlot, Target


def ngrams(
    corpus: CorpusFolder,
    out: Annotated[Path, typer.Option(help="File; drafter.ngrams names it.")],
    prompts: Annotated[Path | None, typer.Option(help="Counted, too, but less.")] = None,
    model: Target = DEFAULT_MODEL,
) -> None:
    """Count what followed the n-grams of the target's answers; one answer in ten is held out.

    Fit the weights next, with `canopy-train survival`.

    Example: canopy-train ngrams --corpus corpus --out ngrams.safetensors
    """
    from canopy.model_store.folders import model_folder
    from canopy.model_store.vocabulary import vocabulary_digest
    from canopy.text.tokenizer import Tokenizer
    from canopy_training.corpus.corpus import Corpus
    from canopy_training.lookup.ngrams import further_texts, write_store

    answers, target = Corpus(corpus), model_folder(model)
    further = further_texts(prompts, answers, Tokenizer(target)) if prompts else ()
    store = write_store(answers, out, vocabulary_digest(target), further)
    typer.echo(
        f"{answers.num_answer_tokens} answer tokens: {len(store.ngrams.keys)} contexts, "
        f"{len(store.ngrams.follower_ids)} followers, {out.stat().st_size / 1e6:.1f} MB in {out}"
    )


def survival(
    corpus: CorpusFolder,
    ngrams: Annotated[Path, typer.Option(exists=True, help="The store; gets the weights.")],
    model: Target = DEFAULT_MODEL,
    max_match: Annotated[int, typer.Option(min=1, max=8, help="As drafter.max_match.")] = 8,
    plot: ReliabilityPlot = None,
) -> None:
    """Fit what lookup's candidates are worth, on the answers that the store has not seen.

    Half of them are fitted and the other half is reported on; then the weights are fitted to all.

    Example: canopy-train survival --corpus corpus --ngrams ngrams.safetensors
    """
    from canopy.drafter.lookup.ngram_store import NgramStore
    from canopy.model_store.folders import model_folder
    from canopy.model_store.vocabulary import vocabulary_digest
    from canopy_training.corpus.corpus import Corpus
    from canopy_training.lookup.reliability import reliability_table, write_plot
    from canopy_training.lookup.survival import fit_and_check

    vocabulary = vocabulary_digest(model_folder(model))
    grams = NgramStore.open_without_weights(ngrams, vocabulary).ngrams
    check, weights = fit_and_check(Corpus(corpus), grams, max_match)
    typer.echo(reliability_table(check))
    NgramStore(grams, weights).save(ngrams, vocabulary)
    if plot:
        write_plot(check, plot)
        typer.echo(plot)
