"""The one list of benchmarks."""

from bench.acceptance import acceptance, retold
from bench.gpu import gpu, kernels
from bench.harness.benchmark import Benchmark
from bench.peers import peers
from bench.serving import (
    engine_step,
    load,
    load_step,
    perf_analyzer,
    strategies,
    thread_limits,
)
from bench.simulation import simulate
from bench.steps import fidelity, grammar, step

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        acceptance.BENCHMARK,
        retold.BENCHMARK,
        engine_step.BENCHMARK,
        peers.BENCHMARK,
        step.BENCHMARK,
        fidelity.BENCHMARK,
        grammar.BENCHMARK,
        kernels.BENCHMARK,
        gpu.BENCHMARK,
        strategies.BENCHMARK,
        load.BENCHMARK,
        load_step.BENCHMARK,
        thread_limits.BENCHMARK,
        perf_analyzer.BENCHMARK,
        simulate.BENCHMARK,
    )
}
