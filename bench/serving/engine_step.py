"""Where the time of a step goes: by stage with direct calls, and through the real server.

step     = draft + build + verify + commit + the engine's own work
overhead = step - draft - verify
"""

import argparse
from dataclasses import replace

from bench.harness.arguments import listed, positive
from bench.harness.benchmark import Benchmark, Options, Result
from bench.serving.engine_step_direct import measure_direct
from bench.serving.engine_step_plan import Plan
from bench.serving.engine_step_served import measure_served


def run(options: Options) -> Result:
    """Direct stages first; then, unless switched off, the same deployment on a real server."""
    plan = Plan.default(options.is_quick)
    plan = replace(plan, num_sequences=options.arguments.sequences or plan.num_sequences)
    limits = replace(options.deployment.limits, max_running=max(plan.num_sequences))
    deployment = replace(options.deployment, limits=limits)
    results = [measure_direct(deployment, options.prompts, plan)]
    if not options.arguments.direct_only:
        results.append(measure_served(deployment, options.prompts, plan))
    return Result(
        {name: value for result in results for name, value in result.figures.items()},
        {title: records for result in results for title, records in result.details.items()},
    )


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sequences", type=listed(positive), metavar="N,N", help="sequences served at once"
    )
    parser.add_argument("--direct-only", action="store_true", help="start no server")


BENCHMARK = Benchmark(
    "engine_step",
    "time of an engine step by stage, with direct calls and through the server",
    run,
    _add_arguments,
    reads_profile=True,
)
