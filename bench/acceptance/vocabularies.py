"""Other vocabularies for the default target's text: byte-level, and as SentencePiece spells it.

Both are byte-pair encodings of the texts that ship with Canopy, so nothing has to be fetched.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from canopy.drafter.lookup.text_store import read_texts
from canopy.model_store.assets import SHIPPED_TEXTS

NUM_TOKENS = 16384
_COPIED = ("generation_config.json", "tokenizer_config.json", "chat_template.jinja")


def _byte_level() -> tuple[Tokenizer, list[str]]:
    """Without merges, and the tokens that it starts from."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, pre_tokenizers.ByteLevel.alphabet()


def _sentencepiece() -> tuple[Tokenizer, list[str]]:
    """Spaces are letters of words, rare characters fall back to their bytes."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    spelled = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*spelled, decoders.Strip(content=" ", left=1)])
    return tokenizer, []


VOCABULARIES: dict[str, Callable[[], tuple[Tokenizer, list[str]]]] = {
    "byte_level": _byte_level,
    "sentencepiece": _sentencepiece,
}


def write_model(source: Path, folder: Path, vocabulary: str) -> None:
    """A model folder without weights: the source's, but for its tokenizer.

    vocabulary: a name of VOCABULARIES.
    """
    known = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    special = [token["content"] for token in known]
    tokenizer, alphabet = VOCABULARIES[vocabulary]()
    fallback = [] if alphabet else [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=NUM_TOKENS,
        special_tokens=["<unk>", *fallback, *special],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator((text["answer"] for text in read_texts(SHIPPED_TEXTS)), trainer)
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = [t for t in document["added_tokens"] if t["content"] in special]
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    for name in _COPIED:
        if (source / name).is_file():
            shutil.copy(source / name, folder)
    _write_config(source, folder, tokenizer.get_vocab_size())


def _write_config(source: Path, folder: Path, vocab_size: int) -> None:
    """With the size of the vocabulary and the end of an answer."""
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["vocab_size"] = vocab_size
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
