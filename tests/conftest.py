import gc
from pathlib import Path

import kernel_interpreter  # noqa: F401 - before anything that imports Triton
import pytest
from hypothesis import settings
from instruction_sets import INSTRUCTION_SETS, instruction_set_in_use
from tiny_model import write_tiny_model

# The same examples in every run, and no limit on the time of one: a run fails for its code alone.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small random model with a byte tokenizer."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module", autouse=True)
def no_garbage_of_other_modules() -> None:
    """Collect it now: a finalizer that runs while Triton's interpreter parses a kernel breaks
    CPython 3.11's parser ("AST constructor recursion depth mismatch")."""
    gc.collect()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say under which instruction sets the int8 kernels were tested."""
    passed = [report.nodeid for report in terminalreporter.stats.get("passed", [])]
    tested = [
        name
        for name in INSTRUCTION_SETS
        if any(nodeid.endswith(f"test_the_int8_kernels_hold_under[{name}]") for nodeid in passed)
    ]
    if tested:
        others = [name for name in INSTRUCTION_SETS if name not in tested]
        terminalreporter.write_line(
            f"int8 kernels: tested under {', '.join(tested)} "
            f"(by default {instruction_set_in_use()}); not under {', '.join(others) or 'none'}"
        )
