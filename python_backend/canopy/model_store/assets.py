"""The files that ship with Canopy, for its default model: the one list of them."""

from pathlib import Path

from canopy.config import DEFAULT_MODEL, DEFAULT_NGRAMS

_SHIPPED = Path(__file__).parents[1] / "shipped"

NGRAM_STORE = _SHIPPED / "ngrams" / f"{DEFAULT_MODEL}.safetensors"
SHIPPED_TEXTS = _SHIPPED / "texts" / f"{DEFAULT_MODEL}.jsonl.xz"  # its answers, with their prompts
BLOCK_DRAFTER = _SHIPPED / "drafters" / DEFAULT_MODEL
SMALL_DRAFTER = _SHIPPED / "drafters" / f"{DEFAULT_MODEL}-small"


def ngram_store_path(ngrams: str) -> Path | None:
    """The file that a deployment's `drafter.ngrams` names."""
    if ngrams == DEFAULT_NGRAMS:
        return NGRAM_STORE
    return Path(ngrams).expanduser() if ngrams else None
