"""`canopy serve` and `canopy fetch-model`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from canopy.config import DEFAULT_MODEL, Deployment, load_deployment

if TYPE_CHECKING:
    from rich.console import Console


def serve(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="Deployment file; without one, every default."),
    ] = None,
) -> None:
    """Start the Triton server with the four models and keep it alive, in the foreground.

    The model is fetched first if need be, and what trees cost on this machine is measured if it
    is not known (see tree.profile_seconds). SIGTERM or Ctrl-C finishes what runs, then stops.

    Example: canopy serve --config deploy/default.toml
    """
    from rich.console import Console

    from canopy.serve.models import with_model_folders
    from canopy.serve.process import ServerProcess
    from canopy.serve.supervisor import Supervisor

    deployment = load_deployment(config) if config else Deployment()
    with _progress_bar() as progress:
        deployment = with_model_folders(deployment, progress)
    console = Console()
    if seconds := _profile_seconds(deployment):
        _measure_profile(config, seconds, console)
    Supervisor(ServerProcess(deployment), console).run()


def _profile_seconds(deployment: Deployment) -> float:
    """How long to measure: not where nothing is drafted, nor with ranks that have yet to join."""
    if deployment.drafter.source == "none" or deployment.target.rendezvous:
        return 0.0
    return deployment.tree.profile_seconds


def _measure_profile(config: Path | None, seconds: float, console: "Console") -> None:
    """In a process of its own, whose memory is free again before the server starts.

    The server starts whatever comes of it: trees then cost what the built-in default says.
    """
    import signal
    import subprocess
    import sys

    options = ["--if-outdated", "--seconds", f"{seconds:g}"]
    named = ["--config", str(config)] if config else []
    program = [sys.executable, "-c", "from canopy.cli import main; main()"]
    # SIGTERM ends the wait as Ctrl-C does, and `subprocess.run` then ends the process.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        done = subprocess.run([*program, "profile", *options, *named], check=False)
    finally:
        signal.signal(signal.SIGTERM, before)
    if done.returncode != 0:
        console.print("[bold yellow]No profile could be measured[/]: trees may cost more than said")


def fetch_model(
    name: Annotated[str, typer.Argument(help="A published model.")] = DEFAULT_MODEL,
    verify: Annotated[
        bool, typer.Option(help="Check every byte of a model that is there, not only sizes.")
    ] = False,
    force: Annotated[bool, typer.Option(help="Fetch and convert again.")] = False,
) -> None:
    """Download and convert a model, unless it is there and intact.

    Example: canopy fetch-model --verify
    """
    from canopy.serve.models import fetch_model as fetch

    with _progress_bar() as progress:
        folder = fetch(name, progress, verify=verify, force=force)
    print(folder)


@contextmanager
def _progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """A callback (phase, done, total) that draws one bar per phase on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description:>12}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bars:
        tasks = {}

        def progress(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = bars.add_task(phase, total=None)
            bars.update(tasks[phase], completed=done, total=total or None)

        yield progress
