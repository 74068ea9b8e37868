"""Where compiled functions are kept from one process to the next.

Numba keeps a compiled function until the file that defines it changes, although the function also
holds the code of everything it calls. So that nothing outdated runs, each state of this package's
compiled sources has a directory of its own.
"""

import hashlib
import os
from pathlib import Path

from numba import config


def keep_by_sources() -> None:
    """Set Numba's cache directory, under the one that the user chose or in the user's cache."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "canopy" / "compiled"
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    config.CACHE_DIR = str(Path(chosen or home) / _sources_digest())  # type: ignore[attr-defined]


def _sources_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        source = path.read_bytes()
        if b"numba" in source or b"llvmlite" in source:
            digest.update(source)
    return digest.hexdigest()[:16]
