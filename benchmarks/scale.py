"""Many workers: what Ray adds to the work, and what a sweep costs anywhere.

    python -m benchmarks.scale                     # workers against threads, then the cost model against measured runs
    python -m benchmarks.scale --repeats 5 --examples 300
    python -m benchmarks.scale --part model        # the cost model alone, and what it says of a large model

Local with n threads and Ray with n workers of one thread take turns on the same shards; ratios, not seconds, count. The
classifier is MiniLM on SST-2, found by HEADCOUNT_SHARED (default ../shared).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.sweep import classifier
from headcount import anatomy, evaluate
from headcount.engine import Local, Ray, shards, using


@dataclass(frozen=True)
class Sweep:
    """One head off at a time, for all heads: what the cost model needs to know.

    weights: of one layer, outside of embeddings. after: the share of them that lies behind the heads' outputs.
    """

    layers: int
    heads: int
    weights: float
    examples: int
    length: float
    hidden: int
    after: float = 0.75

    @property
    def operations(self) -> float:
        """Multiplications and additions, times two.

        The whole model runs once. A head of layer l that is off changes the rest of its layer and the L - l - 1
        layers after it; all before it is replayed. A layer's token costs two operations for each weight, and four for
        each hidden unit of each token that it attends to.
        """
        layer = 2 * self.weights + 4 * self.hidden * self.length
        again = self.heads / self.layers * sum(self.layers - 1 - at + self.after for at in range(self.layers))
        return self.examples * self.length * layer * (self.layers + again)

    def seconds(self, speed: float, workers: int = 1) -> float:
        """speed: operations per second of one worker."""
        return self.operations / speed / workers


def of(model: Any, task: Any) -> Sweep:
    """What the sweep over a BERT layout costs on a task."""
    config = model.config
    weights = sum(weight.numel() for weight in model.base_model.encoder.parameters()) / config.num_hidden_layers
    return Sweep(
        config.num_hidden_layers, len(anatomy(model).heads), weights, len(task), statistics.mean(task.lengths),
        config.hidden_size,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--tokens", type=int, default=340, help="in a batch, the least that a shard can be")
    parser.add_argument("--part", choices=("workers", "model"), help="only one of the two")
    options = parser.parse_args()
    shards.WORK = 1.0  # a batch is a shard
    model, task, _ = classifier(6)
    task = task.subset(range(options.examples))
    if options.part != "model":
        overhead(model, task, [int(count) for count in options.workers.split(",")], options.repeats, options.tokens)
    if options.part == "workers":
        return
    speed = check(model, task)
    forecast(speed)


def overhead(model: Any, task: Any, counts: list[int], repeats: int, tokens: int) -> None:
    """Ray with n workers of one thread, beside this process with n threads; and n workers beside one."""
    masks = [(), *([head] for head in anatomy(model).heads)]
    number = len(shards.cut_shards(task.lengths, len(masks), tokens, model))
    print(f"{len(masks)} masks on {len(task)} examples, {number} shards")
    taken: dict[int, list[float]] = {}
    for count in counts:
        torch.set_num_threads(count)
        begun = time.monotonic()
        with Ray(workers=count) as engine:
            with using(engine):
                evaluate(model, task.subset(range(8)), masks[:2])  # workers load the model
            print(f"{count} worker(s) ready after {time.monotonic() - begun:.1f} s")
            pairs = [
                (_seconds(Local(), model, task, masks, tokens), _seconds(engine, model, task, masks, tokens))
                for _ in range(repeats)
            ]
        taken[count] = [there for _, there in pairs]
        ratios = [there / here for here, there in pairs]
        print(
            f"{count} worker(s) of one thread take {statistics.median(ratios):.3f} of the time of this process with "
            f"{count} thread(s) (each time: {', '.join(f'{ratio:.3f}' for ratio in ratios)}), "
            f"{count * statistics.median(taken[count]) / number:.1f} s a shard"
        )
    first = statistics.median(taken[counts[0]])
    for count in counts[1:]:
        print(f"{count} workers: {first / statistics.median(taken[count]):.2f} times the throughput of {counts[0]}")


def check(model: Any, task: Any) -> float:
    """Measure one sweep to learn the speed of this machine, foretell others, measure them too."""
    torch.set_num_threads(1)
    known = of(model, task)
    speed = known.operations / _cpu(lambda: _all_heads(model, task))
    print(f"one thread makes {speed / 1e9:.0f} billion operations a second here")
    half, deep = task.subset(range(len(task) // 2)), classifier(12)[0]
    longest = sorted(range(len(task)), key=lambda index: -task.lengths[index])[: len(task) // 2]
    for what, other, data in (
        ("half of the examples", model, half),
        ("the longer half", model, task.subset(sorted(longest))),
        ("twice the layers and heads, a quarter of the examples", deep, task.subset(range(len(task) // 4))),
    ):
        foretold, measured = of(other, data).seconds(speed), _cpu(lambda o=other, d=data: _all_heads(o, d))
        print(f"{what}: foretold {foretold:.1f} s, measured {measured:.1f} s, ratio {measured / foretold:.2f}")
    return speed


def forecast(speed: float) -> None:
    """A Llama of 70 billion parameters: 80 layers, 64 heads each, on 1,000 texts of 512 tokens."""
    large = Sweep(80, 5120, 70e9 / 80, 1000, 512, 8192, after=0.8)
    print(f"70 billion parameters, 5,120 heads, 1,000 texts of 512 tokens: {large.operations:.2e} operations")
    naive = large.examples * large.length * (2 * 70e9) * (1 + large.heads)
    print(f"  one whole pass for each head would be {naive / large.operations:.2f} times as much")
    for what, each, count in (
        ("one core of this machine", speed, 1),
        ("64 GPUs at 200 trillion a second each", 2e14, 64),
        ("512 GPUs at 200 trillion a second each", 2e14, 512),
    ):
        print(f"  {what}: {large.seconds(each, count) / 3600:,.1f} hours")


def _all_heads(model: Any, task: Any) -> None:
    evaluate(model, task, [(), *([head] for head in anatomy(model).heads)])


def _seconds(engine: Any, model: Any, task: Any, masks: list[Any], tokens: int) -> float:
    begun = time.monotonic()
    with using(engine):
        evaluate(model, task, masks, tokens=tokens)
    return time.monotonic() - begun


def _cpu(work: Callable[[], None]) -> float:
    """Processor time of this thread alone: others on the machine do not count."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


if __name__ == "__main__":
    main()
