"""The pruned model in use: measured speed beside the limit that FLOPs set, memory and size."""

from headcount.bench.flops import count_flops
from headcount.bench.run import Benchmark, benchmark
from headcount.bench.verdict import Row, verdict

__all__ = ["Benchmark", "Row", "benchmark", "count_flops", "verdict"]
