"""GuideLLM against the gateway: synthetic prompts, streamed, one at a time."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.server

NUM_REQUESTS = 3


def test_guidellm_completes_every_request(url, triton, tmp_path):
    report = tmp_path / "report.json"
    command = [
        Path(sys.executable).parent / "guidellm",
        "benchmark",
        f"--target={url}",
        "--model=canopy",
        f"--processor={triton.deployment.target.model}",
        "--rate-type=synchronous",
        f"--max-requests={NUM_REQUESTS}",
        "--data=prompt_tokens=24,output_tokens=12",
        f"--output-path={report}",
        "--disable-progress",
    ]
    offline = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache")}
    done = subprocess.run(command, env=offline, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    [benchmark] = json.loads(report.read_text())["benchmarks"]
    assert benchmark["request_totals"]["successful"] == NUM_REQUESTS
    assert benchmark["request_totals"]["errored"] == 0
