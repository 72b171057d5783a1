"""The pruned model in use: measured speed beside the limit that FLOPs set, memory and size."""

from headcount.bench.comparison import Benchmark, benchmark
from headcount.bench.cost import count_flops
from headcount.bench.timing import Speed, measure_speed, seconds_per_token
from headcount.bench.verdict import Row, verdict

__all__ = [
    "Benchmark",
    "Row",
    "Speed",
    "benchmark",
    "count_flops",
    "measure_speed",
    "seconds_per_token",
    "verdict",
]
