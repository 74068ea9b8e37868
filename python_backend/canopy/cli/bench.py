"""`canopy bench`."""

import runpy
import sys
from pathlib import Path

import typer

from canopy.errors import CanopyError

# Everything behind `bench` is for the benchmarks, `--help` too.
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
_CHECKOUT = Path(__file__).parents[3]


def bench(context: typer.Context) -> None:
    """Run a benchmark, like `python -m bench`; `canopy bench --help` lists them.

    Example: canopy bench acceptance --quick
    """
    if not (_CHECKOUT / "bench" / "__main__.py").is_file():
        raise CanopyError("the benchmarks come with a checkout of Canopy, not with its package")
    sys.path.insert(0, str(_CHECKOUT))
    sys.argv = ["bench", *(context.args or ["--help"])]
    runpy.run_module("bench", run_name="__main__", alter_sys=True)
