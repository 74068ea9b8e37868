"""`canopy profile`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from canopy.config import Deployment
from canopy.deployment_file import load_deployment
from canopy.progress import phase_bars

_CALM_SPREAD = 0.25  # of step times on a machine that does nothing else


def profile(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="Deployment file; without one, every default."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File; by default where serve looks.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the step times into this SVG.")] = None,
    if_outdated: Annotated[
        bool, typer.Option("--if-outdated", help="Do nothing if the profile fits.")
    ] = False,
    seconds: Annotated[float, typer.Option(min=1.0, max=600.0, help="Time to measure.")] = 75.0,
) -> None:
    """Measure what trees cost and bring on this machine, for `canopy serve` to price them by.

    Run it while the machine is idle. `canopy serve` does so by itself, if shorter, when there is
    no profile or the model, the dtype, the drafter, the machine or the kernels have changed.

    Example: canopy profile --plot step-times.svg
    """
    import os
    import time

    started_s = time.monotonic()
    from canopy.server.runtime import THREAD_VARIABLES

    os.environ.update(THREAD_VARIABLES)  # as on the server; read once, when torch is loaded
    from canopy.costs.profile_file import find_profile, profile_path
    from canopy.profiling.measurement import measure_profile
    from canopy.profiling.profile_writer import require_writable, write_plot, write_profile

    deployment = load_deployment(config) if config else Deployment()
    if if_outdated:
        if not (fault := find_profile(deployment).fault):
            return
        print(f"Measuring for about {seconds:.0f} s what trees cost here: {fault}", flush=True)
    path = output or profile_path(deployment)
    require_writable(path)
    with phase_bars(is_bytes=False) as show:
        left_s = max(seconds - (time.monotonic() - started_s), seconds / 2)
        measurement = measure_profile(
            deployment, left_s, lambda phase, share: show(phase, share, 1.0)
        )
    write_profile(measurement, path)
    if (spread := measurement.steps.spread) > _CALM_SPREAD:
        print(
            f"Step times vary by {spread:.0%}: the machine is busy. Profile again when it is idle.",
            file=sys.stderr,
        )
    if measurement.profile.is_coarse:
        print("There was time for a coarse profile only: the server refines it while it is idle.")
    print(path)
    if plot:
        write_plot(measurement, plot)
        print(plot)
