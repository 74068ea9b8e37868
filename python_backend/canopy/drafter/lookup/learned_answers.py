"""Answers that a deployment served, in a file of its own that lasts over restarts.

    <cache directory>/learned/<deployment>.answers

Records of int32: the number of prompt tokens kept, that of all tokens, the tokens. A record that a
crash cut short ends the file. The file is its owner's alone to read, and belongs to one process at
a time.
"""

import fcntl
import hashlib
import logging
import os
from pathlib import Path

import numpy as np

from canopy.config import Deployment
from canopy.drafter.lookup.counting import Text
from canopy.model_store.folders import canopy_home

logger = logging.getLogger(__name__)

_HEADER = 2


def learned_answers_path(deployment: Deployment, vocabulary: str) -> Path:
    """The file of a deployment: of its target, its vocabulary and where it listens."""
    target, server = deployment.target, deployment.server
    owner = f"{target.model} {vocabulary} {server.host} {server.grpc_port}"
    name = hashlib.sha256(owner.encode()).hexdigest()[:16]
    return canopy_home() / "learned" / f"{name}.answers"


class LearnedAnswers:
    """Reads what is there, the latest `max_tokens` of it, and appends."""

    def __init__(self, path: Path, max_tokens: int) -> None:
        """Raises OSError for a file that cannot be written or that another process has."""
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._file = os.fdopen(descriptor, "r+b", buffering=0)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.texts = _latest(_records(self._file.read()), max_tokens)
            self._rewrite()
        except OSError:
            self._file.close()
            raise

    def append(self, text: Text) -> None:
        """Keep one more; where the disk refuses, this process alone knows it."""
        try:
            self._file.write(_record(text))
        except OSError as error:
            logger.warning("an answer could not be kept: %s", error)

    def _rewrite(self) -> None:
        """Drop what is forgotten or was cut short."""
        self._file.truncate(0)
        self._file.write(b"".join(map(_record, self.texts)))


def _record(text: Text) -> bytes:
    token_ids, num_prompt = text
    return np.array([num_prompt, len(token_ids), *token_ids], "<i4").tobytes()


def _records(content: bytes) -> list[Text]:
    numbers = np.frombuffer(content[: len(content) // 4 * 4], "<i4").astype(np.int32)
    texts, place = list[Text](), 0
    while place + _HEADER <= len(numbers):
        num_prompt, length = numbers[place : place + _HEADER].tolist()
        end = place + _HEADER + length
        if not 0 <= num_prompt < length or end > len(numbers):
            break
        texts.append((numbers[place + _HEADER : end], num_prompt))
        place = end
    return texts


def _latest(texts: list[Text], max_tokens: int) -> list[Text]:
    kept = np.cumsum([len(token_ids) for token_ids, _ in reversed(texts)]) <= max_tokens
    return texts[len(texts) - int(kept.sum()) :]
