"""The int8 kernels hold under every instruction set that this CPU has, not its best alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from instruction_sets import (
    INSTRUCTION_SETS,
    environment_for,
    instruction_set_in_use,
    is_supported,
)

TESTS = Path(__file__).parents[1]
OF_KERNELS = [
    *(f"kernels/test_int8_{name}.py" for name in ("gemm", "tiles", "attention")),
    "kernels/test_int4_gemm.py",
]


def python(name: str, *arguments: str) -> str:
    """The output of a process whose kernels are compiled for an instruction set."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=TESTS,
        env=os.environ | environment_for(name),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", INSTRUCTION_SETS)
def test_the_int8_kernels_hold_under(name):
    if not is_supported(name):
        pytest.skip(f"this CPU has no {name}")
    if name == instruction_set_in_use():
        return  # the tests beside this one run under it
    asked = "import instruction_sets; print(instruction_sets.instruction_set_in_use())"
    assert python(name, "-c", asked).strip() == name
    python(name, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", *OF_KERNELS)
