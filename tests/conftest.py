from pathlib import Path

import kernel_interpreter  # noqa: F401 - before anything that imports Triton
import pytest
from hypothesis import settings
from tiny_model import write_tiny_model

# The same examples in every run, and no limit on the time of one: a run fails for its code alone.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small random model with a byte tokenizer."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
