"""The one list of benchmarks."""

from bench import acceptance, turn
from bench.benchmark import Benchmark

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark for benchmark in (acceptance.BENCHMARK, turn.BENCHMARK)
}
