"""The processes of a server's stages."""

import os
import signal
import subprocess


def kill_stub(server, stage: str) -> None:
    """As a stage dies that ran out of memory."""
    (pid,) = stubs(server, stage)
    os.kill(pid, signal.SIGKILL)


def stubs(server, stage: str) -> list[int]:
    """The stub's command line names its model directory and instance."""
    listing = subprocess.run(
        ["ps", "-ww", "-eo", "pid,args"], capture_output=True, text=True, check=True
    )
    pids = [
        int(line.split()[0])
        for line in listing.stdout.splitlines()
        if "triton_python_backend_stub" in line and f"/{stage}/1/model.py" in line
    ]
    return [pid for pid in pids if server.owns(pid)]
