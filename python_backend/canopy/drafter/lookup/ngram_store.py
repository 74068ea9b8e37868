"""The n-gram store: what the target wrote before, and what lookup's candidates are worth.

One safetensors file with the arrays of `ngram.ngram_table.NgramTable` and, once fitted,
`weights` of `ngram.continuations`; its metadata names the vocabulary. The arrays stay in
the file and are read where they are touched.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from canopy.errors import InvalidDeployment
from canopy.model_store.manifest import write_manifest
from canopy_kernels.ngram.continuations import FEATURES
from canopy_kernels.ngram.ngram_table import NgramTable, empty_ngram_table

FORMAT = "2"
_DTYPES = {"U16": "<u2", "U32": "<u4", "I32": "<i4", "F64": "<f8"}


@dataclass(frozen=True)
class NgramStore:
    """Read-only."""

    ngrams: NgramTable
    weights: np.ndarray  # float64 [NUM_FEATURES], or none: see canopy_kernels.ngram.continuations

    @staticmethod
    def empty() -> "NgramStore":
        """Of a target that nothing was learnt from."""
        return NgramStore(empty_ngram_table(), np.zeros(0))

    @staticmethod
    def open(path: Path, vocabulary: str) -> "NgramStore":
        """Map a file. vocabulary: `vocabulary_digest` of the target.

        Raises InvalidDeployment for a file that is damaged, that speaks of another vocabulary, or
        whose weights are of other features.
        """
        ngrams, weights, features = _read(path, vocabulary)
        if len(weights) and features != json.dumps(FEATURES):
            raise InvalidDeployment(
                f"the weights in {path} are of other features: fit them with canopy-train survival"
            )
        return NgramStore(ngrams, weights)

    @staticmethod
    def open_without_weights(path: Path, vocabulary: str) -> "NgramStore":
        """The same, whatever its weights are of. Raises InvalidDeployment."""
        return NgramStore(_read(path, vocabulary)[0], np.zeros(0))

    @staticmethod
    def weights_of(path: Path) -> np.ndarray:
        """The weights in a file of whatever vocabulary. Raises InvalidDeployment as `open` does."""
        return NgramStore.open(path, vocabulary_of(path)).weights

    def save(self, path: Path, vocabulary: str) -> None:
        """Write the file that `open` maps."""
        tensors = dict(self.ngrams._asdict())
        metadata = {"format": FORMAT, "vocabulary": vocabulary}
        if len(self.weights):
            tensors["weights"] = self.weights
            metadata["features"] = json.dumps(FEATURES)
        partial = path.with_suffix(".partial")
        save_file({name: np.ascontiguousarray(t) for name, t in tensors.items()}, partial, metadata)
        partial.replace(path)
        write_manifest(path, f"vocabulary {vocabulary}")


def vocabulary_of(path: Path) -> str:
    """`vocabulary_digest` of the target that a file is for. Raises InvalidDeployment."""
    try:
        return _map_safetensors(path)[1]["vocabulary"]
    except (OSError, ValueError, KeyError) as error:
        raise InvalidDeployment(f"{path} is no n-gram store: {error}") from error


def _read(path: Path, vocabulary: str) -> tuple[NgramTable, np.ndarray, str | None]:
    """(the table, the weights, which may be none, and what they are of)."""
    try:
        arrays, metadata = _map_safetensors(path)
        if metadata.get("format") != FORMAT:
            raise ValueError(f"its format is {metadata.get('format')}, not {FORMAT}")
        ngrams = NgramTable(*(arrays[name] for name in NgramTable._fields))
    except (OSError, ValueError, KeyError) as error:
        raise InvalidDeployment(f"{path} is no n-gram store: {error}") from error
    if metadata.get("vocabulary") != vocabulary:
        raise InvalidDeployment(
            f"{path} was made for another vocabulary than the target's: make one with "
            "canopy-train ngrams"
        )
    return ngrams, np.array(arrays.get("weights", np.zeros(0))), metadata.get("features")


def _map_safetensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Arrays that stay in the file, and its metadata; the library would read them all."""
    mapped = np.memmap(path, np.uint8, mode="r")
    length = int.from_bytes(mapped[:8].tobytes(), "little")
    header = json.loads(mapped[8 : 8 + length].tobytes())
    metadata = header.pop("__metadata__", {})
    arrays = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        data = np.asarray(mapped)[8 + length + start : 8 + length + end]
        arrays[name] = data.view(_DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return arrays, metadata
