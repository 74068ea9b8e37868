"""`canopy worker`."""

from typing import Annotated

import typer

REJOIN_S = 1.0
_MISUSED = 2  # exit code of argparse


def worker(
    rendezvous: Annotated[str, typer.Option(help="host:port of target.rendezvous.")],
    rank: Annotated[int, typer.Option(min=1, help="This rank; rank 0 is the server's verifier.")],
    world_size: Annotated[int, typer.Option(min=2, help="target.tensor_parallel_size.")],
    model: Annotated[str, typer.Option(help="The model's folder here, if it differs.")] = "",
    device: Annotated[str, typer.Option(help='As in "cuda:1"; else as the target\'s.')] = "",
    num_threads: Annotated[int, typer.Option(min=0, help="0: as the target's.")] = 0,
) -> None:
    """Hold one rank of a sharded target whose server runs on another machine.

    Joins again whenever the verifier starts anew, until it is stopped. The network between the
    ranks must be private: nothing on it is encrypted or authenticated.

    Example: canopy worker --rendezvous 10.0.0.1:29500 --rank 1 --world-size 2
    """
    import subprocess
    import sys
    import time

    arguments = {
        "--rendezvous": rendezvous,
        "--rank": rank,
        "--num-ranks": world_size,
        "--model": model,
        "--device": device,
        "--num-threads": num_threads,
    }
    flat = [f"{name}={value}" for name, value in arguments.items()]
    command = [
        sys.executable,
        "-m",
        "canopy.verifier.tensor_parallel.worker",
        *flat,
        "--with-parent",
    ]
    while True:
        # A life of the group is a process: what a lost rank leaves in torch ends with it.
        with subprocess.Popen(command, stdin=subprocess.PIPE) as life:
            code = life.wait()
        if code == _MISUSED:
            raise typer.Exit(_MISUSED)
        print(f"canopy worker: rank {rank} joins {rendezvous} again", file=sys.stderr)
        time.sleep(REJOIN_S)
