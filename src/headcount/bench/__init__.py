"""Benchmarks of a pruned model: measured speed beside the limit that FLOPs set, memory and size."""

from headcount.bench.allocator import kept_memory
from headcount.bench.comparison import Benchmark, benchmark, is_cut_of
from headcount.bench.cost import count_flops, site_flops, unit_flops
from headcount.bench.speed_verdict import SpeedRow, verdict
from headcount.bench.timing import Speed, interleaved, measure_speed, seconds_per_token

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
