"""Whether a folder whose configuration ties the head to the embedding holds another head.

`transformers` ties the two only where the folder lacks one of them or both are equal. Bytes are
compared, not numbers, so no tensor library is needed. Source of the format: safetensors' README
(8 bytes of length, a JSON header with the offsets of every tensor, the data).
"""

import json
import mmap
from pathlib import Path

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
_CHUNK = 1 << 24


def has_own_head(folder: Path) -> bool:
    """Whether the folder's files hold both tensors, and they differ."""
    found: dict[str, tuple[Path, int, int]] = {}
    for path in sorted(folder.glob("model*.safetensors")):
        found |= _places(path)
    if len(found) < 2:
        return False
    return not _are_equal(*found.values())


def _places(path: Path) -> dict[str, tuple[Path, int, int]]:
    """File, start and end of the two tensors, as far as one file holds them.

    A file that cannot be read has none: whoever loads the weights says so.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if length < path.stat().st_size else {}
        offsets = {
            name: header[name]["data_offsets"] for name in (EMBEDDING, HEAD) if name in header
        }
        return {
            name: (path, 8 + length + start, 8 + length + end)
            for name, (start, end) in offsets.items()
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _are_equal(one: tuple[Path, int, int], other: tuple[Path, int, int]) -> bool:
    (path, start, end), (other_path, other_start, other_end) = one, other
    if end - start != other_end - other_start:
        return False
    with path.open("rb") as file, other_path.open("rb") as other_file:
        left = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        right = mmap.mmap(other_file.fileno(), 0, access=mmap.ACCESS_READ)
        with left, right:
            return all(
                left[start + at : min(start + at + _CHUNK, end)]
                == right[other_start + at : min(other_start + at + _CHUNK, other_end)]
                for at in range(0, end - start, _CHUNK)
            )
