"""Manifests: what a folder or a file must hold, so that damage is noticed.

    <folder>/manifest.json        every file of a folder but its notes (*.md)
    <file>.manifest.json          one file that stands alone

A JSON document that is small enough to be checked whenever it is read carries its own checksum.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
CHECKSUM = "sha256"
CHUNK = 1 << 22
NO_MANIFEST = "no readable manifest"


def file_sha256(path: Path) -> str:
    """Hex digest of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def manifest_path(path: Path) -> Path:
    """Of a folder or a file."""
    return path / MANIFEST if path.is_dir() else path.with_name(f"{path.name}.{MANIFEST}")


def write_manifest(path: Path, origin: str, names: Sequence[str] = ()) -> None:
    """Describe and flush a file or the files of a folder.

    origin: what they were made from. names: of the files that count; (): all of them.
    """
    described = manifest_path(path)
    members = sorted(path.iterdir()) if path.is_dir() else [path]
    members = [member for member in members if not names or member.name in names]
    files = {}
    for member in members:
        if member != described and member.suffix != ".md":
            size = member.stat().st_size
            files[member.name] = {"size": size, CHECKSUM: file_sha256(member)}
            flush(member)
    text = json.dumps({"origin": origin, "files": files}, indent=2) + "\n"
    described.write_text(text, encoding="utf-8")
    flush(described)
    flush(described.parent)


def integrity_error(path: Path, origin: str | None, full: bool) -> str | None:
    """What is wrong with a folder or file, or None.

    origin: what it must be made from; None: anything. Sizes are compared always, contents when
    `full`.
    """
    described = manifest_path(path)
    try:
        manifest = json.loads(described.read_text(encoding="utf-8"))
        expected: dict[str, dict[str, Any]] = manifest["files"]
        if origin not in (None, manifest["origin"]):
            return f"made from {manifest['origin']}, not from {origin}"
        entries = [(name, int(entry["size"]), entry[CHECKSUM]) for name, entry in expected.items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return NO_MANIFEST
    for name, size, checksum in entries:
        member = described.parent / name
        if not member.is_file():
            return f"{name} is missing"
        if member.stat().st_size != size:
            return f"{name} has {member.stat().st_size} bytes, not {size}"
        if full and file_sha256(member) != checksum:
            return f"{name} has another sha256 than the manifest says"
    return None


def with_checksum(document: dict[str, Any]) -> dict[str, Any]:
    """The document of JSON values with its own checksum."""
    return {**document, CHECKSUM: _checksum(document)}


def has_wrong_checksum(document: Any) -> bool:
    """Whether a document says that it was another when it was written."""
    if not isinstance(document, dict) or CHECKSUM not in document:
        return False
    rest = {key: value for key, value in document.items() if key != CHECKSUM}
    return bool(document[CHECKSUM] != _checksum(rest))


def _checksum(document: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def flush(path: Path) -> None:
    """Bring a file, or a directory's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
