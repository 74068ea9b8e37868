from pathlib import Path

import kernel_interpreter  # noqa: F401 - before anything that imports Triton
import pytest
from tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small random model with a byte tokenizer."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
