"""What the tests of this folder borrow from those of the models and of the verifier."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / "models"), str(TESTS / "stages")]
