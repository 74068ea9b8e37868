"""The one list of benchmarks."""

from bench import (
    acceptance,
    gpu,
    kernels,
    load,
    load_step,
    peers,
    perf_analyzer,
    simulate,
    step,
    strategies,
    threads,
    turn,
)
from bench.benchmark import Benchmark

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        acceptance.BENCHMARK,
        turn.BENCHMARK,
        peers.BENCHMARK,
        step.BENCHMARK,
        kernels.BENCHMARK,
        gpu.BENCHMARK,
        strategies.BENCHMARK,
        load.BENCHMARK,
        load_step.BENCHMARK,
        threads.BENCHMARK,
        perf_analyzer.BENCHMARK,
        simulate.BENCHMARK,
    )
}
