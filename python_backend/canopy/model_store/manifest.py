"""The manifest of a model folder: what must be there, so that a damaged folder is noticed."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
CHUNK = 1 << 22


def file_sha256(path: Path) -> str:
    """Hex digest of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def write_manifest(folder: Path, origin: str) -> None:
    """Describe and flush every file of `folder`; `origin` names what they were made from."""
    files = {}
    for path in sorted(folder.iterdir()):
        files[path.name] = {"size": path.stat().st_size, "sha256": file_sha256(path)}
        flush(path)
    text = json.dumps({"origin": origin, "files": files}, indent=2) + "\n"
    (folder / MANIFEST).write_text(text, encoding="utf-8")
    flush(folder / MANIFEST)
    flush(folder)


def damage(folder: Path, origin: str, full: bool) -> str | None:
    """What is wrong with `folder`, or None. Sizes are compared always, contents when `full`."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        expected: dict[str, dict[str, Any]] = manifest["files"]
        if manifest["origin"] != origin:
            return f"made from {manifest['origin']}, not from {origin}"
    except (OSError, ValueError, KeyError, TypeError):
        return "no readable manifest"
    for name, entry in expected.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != entry["size"]:
            return f"{name} has {path.stat().st_size} bytes, not {entry['size']}"
        if full and file_sha256(path) != entry["sha256"]:
            return f"{name} has another sha256 than the manifest says"
    return None


def flush(path: Path) -> None:
    """Bring a file, or a directory's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
