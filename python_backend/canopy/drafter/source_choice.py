"""Which source a deployment gets. Only those with a model need torch: without it the process
starts sooner and stays small."""

import logging
from pathlib import Path

from canopy.config import DEFAULT_NGRAMS, Deployment
from canopy.drafter.lookup.learned_answers import LearnedAnswers, learned_answers_path
from canopy.drafter.lookup.ngram_store import NgramStore, vocabulary_of
from canopy.drafter.lookup.online_ngrams import MAX_TOKENS, OnlineNgrams
from canopy.drafter.lookup.source import LookupSource
from canopy.drafter.lookup.text_store import open_text_store
from canopy.drafter.source import NoSource, ProposalSource
from canopy.errors import InvalidDeployment
from canopy.model_store.assets import NGRAM_STORE
from canopy.model_store.folders import model_folder
from canopy.model_store.vocabulary import vocabulary_digest

logger = logging.getLogger(__name__)

# With these a drafter that cannot be used is left out, and what is left goes on.
_OPTIONAL = ("block", "markov", "all")


def make_source(deployment: Deployment) -> tuple[ProposalSource, int]:
    """The source, and how many parts of it had to be left out. Raises InvalidDeployment."""
    source = deployment.drafter.source
    if source == "none":
        return NoSource(), 0
    if source == "lookup":
        return _make_lookup(deployment)
    from canopy.drafter.model_sources import make_model_source

    lookup, num_missing = _make_lookup(deployment) if source == "all" else (None, 0)
    try:
        return make_model_source(deployment, lookup), num_missing
    except InvalidDeployment as error:
        if source not in _OPTIONAL:
            raise
        logger.error("the drafter is left out: %s", error)
        return lookup or NoSource(), num_missing + 1


def _make_lookup(deployment: Deployment) -> tuple[LookupSource, int]:
    """Compiled and ready; without its store where that does not fit."""
    drafter = deployment.drafter
    store, num_missing = _ngram_store(drafter.ngrams, model_folder(deployment.target.model))
    learning = _learning(deployment, store) if drafter.learn_online == "on" else None
    source = LookupSource(drafter.min_match, drafter.max_match, store, learning, drafter.coupling)
    source.warm_up()
    return source, num_missing


def _learning(deployment: Deployment, store: NgramStore) -> OnlineNgrams:
    """With the answers of earlier runs; where their file cannot be had, those of this run alone."""
    vocabulary = vocabulary_digest(model_folder(deployment.target.model))
    try:
        file = LearnedAnswers(learned_answers_path(deployment, vocabulary), MAX_TOKENS)
    except (OSError, InvalidDeployment) as error:  # no home directory, or no writing there
        logger.warning("what is learned ends with this process: %s", error)
        return OnlineNgrams(store.ngrams)
    return OnlineNgrams(store.ngrams, file=file)


def _ngram_store(ngrams: str, target: Path) -> tuple[NgramStore, int]:
    """The store that a deployment names, or an empty one, and how many had to be left out."""
    if not ngrams:
        return NgramStore.empty(), 0
    try:
        vocabulary = vocabulary_digest(target)
        if ngrams == DEFAULT_NGRAMS:
            return _shipped_store(target, vocabulary), 0
        return NgramStore.open(Path(ngrams).expanduser(), vocabulary), 0
    except InvalidDeployment as error:
        logger.error("no n-gram store: %s", error)
        return NgramStore.empty(), 1


def _shipped_store(target: Path, vocabulary: str) -> NgramStore:
    """Counted by the default model's own tokens, or for another vocabulary from the same texts."""
    if vocabulary_of(NGRAM_STORE) == vocabulary:
        return NgramStore.open(NGRAM_STORE, vocabulary)
    return open_text_store(target, vocabulary, NgramStore.weights_of(NGRAM_STORE))
