"""The n-gram store for any target: answers that ship as text, counted in the target's own tokens.

The texts are JSON lines with `prompt` and `answer`, xz-compressed. The prompt is rendered by the
target's chat template, since contexts of an answer's first tokens reach into it. What was counted
is kept in the cache directory, a file for every vocabulary and template.
"""

import hashlib
import json
import logging
import lzma
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from canopy.drafter.lookup.counting import Text, count
from canopy.drafter.lookup.ngram_store import FORMAT, NgramStore
from canopy.errors import InvalidDeployment, InvalidRequest
from canopy.model_store.assets import SHIPPED_TEXTS
from canopy.model_store.folders import canopy_home
from canopy.text.tokenizer import Tokenizer
from canopy_kernels.ngram.candidates import LONGEST_GRAM

logger = logging.getLogger(__name__)

# With fewer tokens than this a token is little more than a letter, and n of them tell nothing.
LEAST_VOCABULARY = 1024
_PROBE = "x"


def open_text_store(model: Path, vocabulary: str, weights: np.ndarray) -> NgramStore:
    """The store of a target; the first time it is counted, in some seconds.

    model: the target's folder. vocabulary: its `vocabulary_digest`. weights: float64
    [NUM_FEATURES] of lookup's candidates, or none. Raises InvalidDeployment.
    """
    tokenizer = Tokenizer(model)
    if tokenizer.vocab_size < LEAST_VOCABULARY:
        return NgramStore.empty()
    kept = _kept_file(tokenizer, vocabulary)
    if kept.is_file():
        try:
            return NgramStore(NgramStore.open_without_weights(kept, vocabulary).ngrams, weights)
        except InvalidDeployment as error:
            logger.warning("the store is counted again: %s", error)
    store = NgramStore(count(_tokenized(tokenizer, SHIPPED_TEXTS)), weights)
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        store.save(kept, vocabulary)
    except OSError as error:
        logger.warning("the store is not kept, so every start counts it again: %s", error)
    return store


def read_texts(path: Path) -> Iterator[dict[str, str]]:
    """The texts of a file, each with `prompt` and `answer`. Raises InvalidDeployment."""
    try:
        with lzma.open(path, "rt", encoding="utf-8", newline="\n") as lines:
            yield from map(json.loads, lines)
    except (OSError, EOFError, ValueError, lzma.LZMAError) as error:
        raise InvalidDeployment(f"{path} is damaged, install Canopy again: {error}") from error


def _kept_file(tokenizer: Tokenizer, vocabulary: str) -> Path:
    texts = hashlib.sha256(SHIPPED_TEXTS.read_bytes()).hexdigest()
    made_of = f"{FORMAT} {texts} {_rendered(tokenizer, _PROBE)}"
    name = f"{vocabulary}-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.safetensors"
    return canopy_home() / "ngrams" / name


def _tokenized(tokenizer: Tokenizer, path: Path) -> list[Text]:
    texts = []
    for text in read_texts(path):
        prompt = tokenizer.encode_rendered(_rendered(tokenizer, text["prompt"]))[-LONGEST_GRAM:]
        answer = tokenizer.encode_rendered(text["answer"])
        texts.append((np.array([*prompt, *answer], np.int32), len(prompt)))
    return texts


def _rendered(tokenizer: Tokenizer, prompt: str) -> str:
    try:
        return tokenizer.render_chat([{"role": "user", "content": prompt}])
    except InvalidRequest:  # a model that only continues text
        return f"{prompt}\n\n"
