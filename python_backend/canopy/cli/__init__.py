"""The command `canopy`. Heavy imports wait inside the commands, so that `--help` is instant."""

import sys

import typer

from canopy.cli.bench import PASSED_ON, bench
from canopy.cli.chat import chat
from canopy.cli.generate import generate, health
from canopy.cli.models import models
from canopy.cli.profile import profile
from canopy.cli.serve import fetch_model, serve
from canopy.cli.worker import worker
from canopy.errors import CanopyError

EXIT_FAILED = 1

app = typer.Typer(
    name="canopy",
    help="Serve a language model on a Triton server, faster and losslessly.",
    epilog='Start with "canopy serve", then, elsewhere: canopy generate "Name three rivers."',
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (serve, generate, chat, health, fetch_model, models, profile, worker):
    app.command()(command)
app.command(context_settings=PASSED_ON)(bench)


def main() -> None:
    """Run one command; exit code 0, 1 failed, 2 misused, 3 unavailable, 130 interrupted."""
    try:
        app()
    except CanopyError as error:
        print(f"canopy: {error}", file=sys.stderr)
        sys.exit(EXIT_FAILED)
    except OSError as error:  # a folder that cannot be written, a disk that is full
        name = f"{error.filename}: " if error.filename else ""
        print(f"canopy: {name}{error.strerror or error}", file=sys.stderr)
        sys.exit(EXIT_FAILED)
