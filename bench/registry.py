"""The one list of benchmarks."""

from bench import acceptance, peers, step, turn
from bench.benchmark import Benchmark

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (acceptance.BENCHMARK, turn.BENCHMARK, peers.BENCHMARK, step.BENCHMARK)
}
