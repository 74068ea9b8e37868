"""Where compiled functions are kept from one process to the next.

Numba keeps a compiled function until the file that defines it changes, although the function also
holds the code of everything it calls. So that nothing outdated runs, each state of this package's
compiled sources has a directory of its own.

Neither Numba nor Triton can do without a directory that they can write. Where the usual one is
read-only or full, a private one in the system's temporary directory takes its place.
"""

import hashlib
import logging
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from numba import config

logger = logging.getLogger(__name__)

_ROOM_BYTES = 64 << 20  # the compiled functions take some 20 MB
_TRITON_CACHE = "TRITON_CACHE_DIR"


def configure_cache() -> None:
    """Set Numba's cache directory, under the one that the user chose or in the user's cache."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    preferred = Path(chosen) if chosen else _user_cache() / "canopy" / "compiled"
    folder = writable(preferred, "compiled")
    config.CACHE_DIR = str(folder / _sources_digest())  # type: ignore[attr-defined]
    if _TRITON_CACHE not in os.environ:
        preferred = Path(os.path.expanduser("~"), ".triton", "cache")
        if (folder := writable(preferred, "triton")) != preferred:
            os.environ[_TRITON_CACHE] = str(folder)


def writable(preferred: Path, name: str) -> Path:
    """The directory, or where it cannot be written a temporary one of that name.

    What lies in it is run, so a temporary one that others can write is passed over.
    Raises OSError when there is none either.
    """
    if _has_room(preferred):
        return preferred
    folder = Path(tempfile.gettempdir(), f"canopy-{os.geteuid()}-{name}")
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if status.st_uid != os.geteuid() or status.st_mode != stat.S_IFDIR | 0o700:
        folder = Path(tempfile.mkdtemp(prefix=f"canopy-{name}-"))
    logger.warning("%s cannot be written: compiled code is kept in %s", preferred, folder)
    return folder


def _has_room(folder: Path) -> bool:
    """Of a directory that is there or can be made."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    is_ours = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    return is_ours and shutil.disk_usage(there).free >= _ROOM_BYTES


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))


def _sources_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        source = path.read_bytes()
        if b"numba" in source or b"llvmlite" in source:
            digest.update(source)
    return digest.hexdigest()[:16]
