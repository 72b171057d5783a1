"""Benchmarks of a pruned model: measured speed beside the limit that FLOPs set, memory and size."""

from headcount.bench.comparison import Benchmark, SpeedRow, benchmark, is_cut_of, verdict
from headcount.bench.cost import count_flops, site_flops, unit_flops
from headcount.bench.timing import Speed, interleaved, kept_memory, measure_speed, seconds_per_token

__all__ = [
    "Benchmark",
    "Speed",
    "SpeedRow",
    "benchmark",
    "count_flops",
    "interleaved",
    "is_cut_of",
    "kept_memory",
    "measure_speed",
    "seconds_per_token",
    "site_flops",
    "unit_flops",
    "verdict",
]
