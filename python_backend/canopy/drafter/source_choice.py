"""Which source a deployment gets. Only those with a model need torch: without it the process
starts sooner and stays small."""

import logging

from canopy.config import DEFAULT_NGRAMS, Deployment
from canopy.drafter.lookup.ngram_store import NgramStore
from canopy.drafter.lookup.online_ngrams import OnlineNgrams
from canopy.drafter.lookup.source import LookupSource
from canopy.drafter.source import NoSource, ProposalSource
from canopy.errors import InvalidDeployment
from canopy.model_store.assets import ngram_store_path
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
    drafter, store, num_missing = deployment.drafter, NgramStore.empty(), 0
    if path := ngram_store_path(drafter.ngrams):
        try:
            store = NgramStore.open(path, vocabulary_digest(model_folder(deployment.target.model)))
        except InvalidDeployment as error:
            # The default is for the default model, and for others of its vocabulary.
            is_wanted = drafter.ngrams != DEFAULT_NGRAMS
            num_missing = int(is_wanted)
            logger.log(logging.ERROR if is_wanted else logging.INFO, "no n-gram store: %s", error)
    learning = OnlineNgrams(store.ngrams) if drafter.learn_online else None
    source = LookupSource(drafter.min_match, drafter.max_match, store, learning, drafter.coupling)
    source.warm_up()
    return source, num_missing
