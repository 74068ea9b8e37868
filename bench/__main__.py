"""The door: lists the benchmarks, runs one, prints its tables and writes its JSON."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench.harness.arguments import positive
from bench.harness.benchmark import Options, Skipped
from bench.harness.prompts import OWN_PROMPTS, InvalidPrompts, load_prompts, spread
from bench.harness.report import print_result, write_json
from bench.registry import BENCHMARKS
from canopy.config import Deployment
from canopy.deployment_file import load_deployment
from canopy.errors import CanopyError
from canopy.server.profile_at_start import measure_if_outdated

_QUICK_PROMPTS = 9
_PIPED_WIDTH = 100_000  # a table takes what it needs: every record stays on one line


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0, also for what this machine skips; 2 for what the caller has to change."""
    parsed = _parser().parse_args(arguments)
    benchmark = BENCHMARKS[parsed.benchmark]
    try:
        if parsed.json and not parsed.json.parent.is_dir():
            raise NotADirectoryError(f"--json: there is no folder {parsed.json.parent}")
        options = _options(parsed)
        if benchmark.reads_profile and not options.is_quick:
            measure_if_outdated(parsed.deployment, options.deployment)
        result = benchmark.run(options)
    except Skipped as reason:
        print(f"{benchmark.name}: skipped, {reason}")
        return 0
    except (CanopyError, InvalidPrompts, NotADirectoryError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if parsed.json:
        write_json(benchmark.name, result, parsed.json)
    print_result(result, Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH))
    return 0


def _options(parsed: argparse.Namespace) -> Options:
    prompts = load_prompts(parsed.prompts)
    count = parsed.limit or (_QUICK_PROMPTS if parsed.quick else len(prompts))
    return Options(
        deployment=load_deployment(parsed.deployment) if parsed.deployment else Deployment(),
        prompts=spread(prompts, count),
        is_quick=parsed.quick,
        arguments=parsed,
    )


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--prompts", type=Path, default=OWN_PROMPTS, metavar="FILE", help="JSON lines"
    )
    common.add_argument("--json", type=Path, metavar="FILE", help="write the result here")
    common.add_argument("--quick", action="store_true", help="few prompts, few tokens")
    common.add_argument("--limit", type=positive, metavar="N", help="at most N prompts")
    common.add_argument("--deployment", type=Path, metavar="FILE", help="TOML; default: embedded")
    parser = argparse.ArgumentParser(prog="python -m bench", description="Benchmarks of Canopy.")
    choices = parser.add_subparsers(dest="benchmark", metavar="NAME", required=True)
    for benchmark in BENCHMARKS.values():
        own = choices.add_parser(
            benchmark.name,
            parents=[common],
            help=benchmark.description,
            description=benchmark.description,
        )
        benchmark.add_arguments(own)
    return parser


if __name__ == "__main__":
    sys.exit(main())
