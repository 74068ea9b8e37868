"""Every kernel compiles for every supported card and keeps to its means. No GPU is needed."""

import json
import os
import subprocess
import sys

import pytest

from canopy_kernels.aot.inspection import num_repeated_products
from canopy_kernels.aot.report import CAPABILITIES

TWO_WARPGROUPS = """
#mma = #ttg.nvidia_mma<{versionMajor = 3, warpsPerCTA = [8, 1], instrShape = [16, 32, 16]}>
#mma1 = #ttg.nvidia_mma<{versionMajor = 3, warpsPerCTA = [4, 2], instrShape = [16, 64, 16]}>
%0 = ttng.warp_group_dot %a, %b, %c : !x * !y -> tensor<64x64xf32, #mma> loc(#loc1)
%1 = ttng.warp_group_dot %a, %b, %c : !x * !y -> tensor<64x128xf32, #mma1> loc(#loc1)
"""


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    command = [sys.executable, "-W", "ignore", "-m", "canopy_kernels.aot.report", "--json"]
    compiled = {**os.environ, "TRITON_INTERPRET": "0"}
    result = subprocess.run(command, env=compiled, capture_output=True, text=True, check=True)
    return json.loads(result.stdout)


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_every_kernel_keeps_to_its_means(rows, capability):
    chosen = [row for row in rows if row["capability"] == capability]
    assert len(chosen) >= 20
    assert not [row for row in chosen if row["spill_bytes"] > 0]
    assert not [row for row in chosen if row["blocks_per_sm"] < row["min_blocks_per_sm"]]
    assert not [row for row in chosen if row["copies_in_flight"] < row["min_copies_in_flight"]]
    attention = [row for row in chosen if row["kernel"] == "attend_kernel"]
    assert len(attention) >= 9
    assert not [row for row in attention if row["repeated_products"] > 0]


def test_a_product_that_two_warpgroups_repeat_is_found():
    assert num_repeated_products(TWO_WARPGROUPS) == 1
