"""What the tests of this folder share, and what they borrow from those of other folders."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ranks import LoopingRanks

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / "models")]


@pytest.fixture(scope="session")
def ranks() -> Iterator[LoopingRanks]:
    """Ranks 1 and 2 in processes of their own."""
    looping = LoopingRanks()
    yield looping
    looping.kill()
