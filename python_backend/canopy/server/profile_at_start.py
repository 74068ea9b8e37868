"""Has a profile measured before a server starts, where a deployment has none that fits."""

import signal
import subprocess
import sys
from pathlib import Path

from canopy.config import Deployment

_PROGRAM = (sys.executable, "-c", "from canopy.cli import main; main()")


def profile_seconds(deployment: Deployment) -> float:
    """How long to measure: not where nothing is drafted, nor with ranks that have yet to join."""
    if deployment.drafter.source == "none" or deployment.target.rendezvous:
        return 0.0
    return deployment.tree.profile_seconds


def measure_if_outdated(config: Path | None, deployment: Deployment) -> bool:
    """Whether all went well. A server can start in any case: trees then cost what the built-in
    default says.

    config: the file of the deployment; none: the default. Measuring happens in a process of its
    own, whose memory is free again before the server starts.
    """
    seconds = profile_seconds(deployment)
    if not seconds:
        return True
    named = ["--config", str(config)] if config else []
    command = [*_PROGRAM, "profile", "--if-outdated", "--seconds", f"{seconds:g}", *named]
    # SIGTERM ends the wait as Ctrl-C does, and `subprocess.run` then ends the process.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return subprocess.run(command, check=False).returncode == 0
    finally:
        signal.signal(signal.SIGTERM, before)
