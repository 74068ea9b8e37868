"""A drafter speaks the target's token ids: their tokenizers must agree on every one of them."""

import hashlib
import json
from pathlib import Path

from tokenizers import Tokenizer

from canopy.errors import InvalidDeployment


def require_same_vocabulary(target_folder: Path, drafter_folder: Path) -> int:
    """Compare the token strings of two model folders, added tokens included.

    Returns the number of ids that the vocabulary spans. Raises InvalidDeployment that names the
    first id on which they differ.
    """
    target, drafter = _token_strings(target_folder), _token_strings(drafter_folder)
    for token_id in sorted(target.keys() | drafter.keys()):
        ours, theirs = target.get(token_id), drafter.get(token_id)
        if ours != theirs:
            raise InvalidDeployment(
                f"the drafter's vocabulary is not the target's: token {token_id} is "
                f"{_shown(theirs)} in {drafter_folder.name}, {_shown(ours)} in {target_folder.name}"
            )
    return max(target, default=-1) + 1


def vocabulary_digest(model: Path) -> str:
    """Of the tokens and their ids in a model folder. Raises InvalidDeployment."""
    try:
        tokenizer = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
        added = [(token["content"], token["id"]) for token in tokenizer.get("added_tokens", [])]
        vocabulary = tokenizer["model"]["vocab"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidDeployment(f"{model} has no usable tokenizer.json: {error}") from error
    tokens = vocabulary.items() if isinstance(vocabulary, dict) else enumerate(map(str, vocabulary))
    known = sorted(map(str, [*tokens, *added]))
    return hashlib.sha256("\n".join(known).encode()).hexdigest()[:16]


def _token_strings(folder: Path) -> dict[int, str]:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise InvalidDeployment(f"{folder} has no tokenizer.json")
    vocabulary = Tokenizer.from_file(str(path)).get_vocab(with_added_tokens=True)
    return {token_id: token for token, token_id in vocabulary.items()}


def _shown(token: str | None) -> str:
    return "absent" if token is None else repr(token)
