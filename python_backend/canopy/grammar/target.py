"""The grammars of one target model."""

import logging
from pathlib import Path

from canopy.errors import InvalidDeployment
from canopy.grammar.compiler import GrammarCompiler, make_vocabulary
from canopy.models.config import ModelConfig
from canopy.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


def target_grammars(folder: Path) -> GrammarCompiler | None:
    """For the model in a folder; None, and a line in the log, where its tokenizer allows none.

    Raises InvalidDeployment for a folder that cannot be read.
    """
    config, tokenizer = ModelConfig.from_folder(folder), Tokenizer(folder)
    eos_token_ids = tokenizer.eos_token_ids(config.eos_token_ids, config.vocab_size)
    try:
        content = (folder / "tokenizer.json").read_text(encoding="utf-8")
        return GrammarCompiler(make_vocabulary(content, config.vocab_size, eos_token_ids))
    except InvalidDeployment as error:
        logger.warning("%s", error)
        return None
