"""`canopy serve` and `canopy fetch-model`."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from canopy.config import DEFAULT_MODEL, Deployment
from canopy.deployment_file import load_deployment
from canopy.dtypes import AUTO
from canopy.progress import phase_bars

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def serve(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="Deployment file; without one, every default."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check every byte of the deployment's files first.")
    ] = False,
) -> None:
    """Start the Triton server with the four models and keep it alive, in the foreground.

    The model is fetched first if need be, and what trees cost on this machine is measured if it
    is not known (see tree.profile_seconds). SIGTERM or Ctrl-C finishes what runs, then stops.

    Example: canopy serve --config deploy/default.toml
    """
    from rich.console import Console

    from canopy.model_store.folders import with_model_folders
    from canopy.model_store.integrity import check_files
    from canopy.server.process import ServerProcess
    from canopy.server.profile_at_start import measure_if_outdated
    from canopy.server.supervisor import Supervisor

    deployment = load_deployment(config) if config else Deployment()
    with phase_bars() as progress:
        deployment = with_model_folders(deployment, progress, verify)
    deployment = with_learning(deployment)
    console = Console()
    for line in check_files(deployment, full=verify):
        console.print(f"[bold yellow]{line}[/]", soft_wrap=True)
    if not measure_if_outdated(config, deployment):
        console.print("[bold yellow]No profile could be measured[/]: trees may cost more than said")
    Supervisor(ServerProcess(deployment), console).run()


def with_learning(deployment: Deployment) -> Deployment:
    """`drafter.learn_online` as on or off: on where nobody but this machine reaches the server."""
    if deployment.drafter.learn_online != AUTO:
        return deployment
    is_own = deployment.server.host in _LOOPBACK
    drafter = replace(deployment.drafter, learn_online="on" if is_own else "off")
    return replace(deployment, drafter=drafter)


def fetch_model(
    name: Annotated[str, typer.Argument(help="A published model.")] = DEFAULT_MODEL,
    verify: Annotated[
        bool,
        typer.Option(help="Check every byte of a model and its int8 copy, not only sizes."),
    ] = False,
    force: Annotated[bool, typer.Option(help="Fetch and convert again.")] = False,
) -> None:
    """Download and convert a model, unless it is there and intact.

    Example: canopy fetch-model --verify
    """
    from canopy.model_store.folders import fetch_model as fetch
    from canopy.model_store.integrity import drop_damaged_copies

    with phase_bars() as progress:
        folder = fetch(name, progress, verify=verify, force=force)
    for line in drop_damaged_copies(folder) if verify else ():
        print(line, file=sys.stderr)
    print(folder)
