"""Every kernel compiles for every supported card and keeps to its means. No GPU is needed."""

import json
import os
import subprocess
import sys

import pytest

from canopy_kernels.aot.report import CAPABILITIES

# Bytes a block may take: CUDA programming guide, technical specifications by compute capability.
MAX_SHARED = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10, 120: 99 << 10}


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    command = [sys.executable, "-W", "ignore", "-m", "canopy_kernels.aot.report", "--json"]
    compiled = {**os.environ, "TRITON_INTERPRET": "0"}
    result = subprocess.run(command, env=compiled, capture_output=True, text=True, check=True)
    return json.loads(result.stdout)


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_no_register_spills_and_shared_memory_fits(rows, capability):
    chosen = [row for row in rows if row["capability"] == capability]
    assert len(chosen) >= 14
    assert not [row for row in chosen if row["spill_bytes"] > 0]
    assert not [row for row in chosen if row["shared_bytes"] > MAX_SHARED[capability]]
