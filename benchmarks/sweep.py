"""How fast is a sweep over all heads, beside what one would write by hand? Ratios within one interleaved run.

    python -m benchmarks.sweep                    both classifiers and the translator
    python -m benchmarks.sweep --part translator --examples 200 --repeats 5
    python -m benchmarks.sweep --part cuts --examples 500 --threads 1
    python -m benchmarks.sweep --part scores --threads 1 --repeats 7

(a) is a loop of one mask at a time on the same batches, (b) the usual loop: batches of 32, padded to 128 tokens. The
FLOP bound is what (a) multiplies divided by what the sweep multiplies, counted by torch. `cuts` decodes cuts of the
translator, the whole model first, as `prune` does and with `generate`. `refit` compares one pass per layer with one
per site. `scores` compares the per-example gradients of all heads and neurons with a training step on the same batches:
forward, and backward to the weights. Real models and data are found by HEADCOUNT_SHARED (default ../shared).
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from headcount import Classification, Translation, anatomy, evaluate, importance, load, remove
from headcount.engine import TOKENS, batches_by_length, fast_products
from headcount.pruning import calibration, compensate
from headcount.scoring import unit_moments
from headcount.tasks import Batch

SHARED = Path(os.environ.get("HEADCOUNT_SHARED") or Path(__file__).resolve().parents[2] / "shared")


class Padded(Classification):
    """The same task in batches as most scripts make them: padded to 128 tokens, whatever the texts need."""

    width = 128

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lengths = [self.width] * len(self)

    def batch(self, indices: Any) -> Batch:
        batch = super().batch(indices)
        missing = self.width - batch.inputs["input_ids"].shape[1]
        inputs = {name: torch.nn.functional.pad(x, (0, missing)) for name, x in batch.inputs.items()}
        return Batch(inputs, batch.labels, batch.indices)


def classifier(layers: int) -> tuple[Any, Any, Any]:
    """MiniLM on SST-2, or the same layout with more layers and random weights; plainly padded as well."""
    directory = SHARED / "models" / "minilm-sst2"
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model: Any = load(directory, dtype=torch.float32)
    if layers != model.config.num_hidden_layers:
        torch.manual_seed(0)
        config = BertConfig(**{**model.config.to_dict(), "num_hidden_layers": layers, "dtype": "float32"})
        model = BertForSequenceClassification(config).eval()
    data = SHARED / "data" / "sst2" / "dev.tsv"
    return model, Classification(data, tokenizer), Padded(data, tokenizer)


def translator() -> tuple[Any, Any, None]:
    directory, data = SHARED / "models" / "multi30k-en-fr", SHARED / "data" / "multi30k"
    task = Translation(data / "val.en", AutoTokenizer.from_pretrained(directory), target_data=data / "val.fr")
    return load(directory, dtype=torch.float32), task, None


def interleaved(ways: dict[str, Callable[[], Any]], repeats: int) -> dict[str, tuple[float, float]]:
    """Median wall and processor seconds of each way, run in turn."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            wall, cpu = time.perf_counter(), time.process_time()
            way()
            seconds[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    return {
        name: (statistics.median(s[0] for s in taken), statistics.median(s[1] for s in taken))
        for name, taken in seconds.items()
    }


def flops(way: Callable[[], Any]) -> float:
    with FlopCounterMode(display=False) as counter:
        way()
    return counter.get_total_flops()


def peak() -> float:
    """Matrix multiplication as fast as this machine does it, in FLOP/s."""
    a, b = torch.randn(2048, 1024), torch.randn(1024, 1024)
    taken = []
    for _ in range(10):
        start = time.perf_counter()
        a @ b
        taken.append(time.perf_counter() - start)
    return 2 * 2048 * 1024 * 1024 / min(taken)


def spread(task: Any, count: int, longest: int) -> Any:
    """Examples over the whole range of lengths, of at most `longest` tokens."""
    sizes = [len(ids) for ids in task.features["input_ids"]]
    order = sorted((index for index in range(len(task)) if sizes[index] <= longest), key=lambda index: sizes[index])
    return task.subset(order[:: max(1, len(order) // count)][:count])


def compare(name: str, model: Any, task: Any, padded: Any, repeats: int, rate: float) -> None:
    heads = anatomy(model).heads
    masks = [(), *([head] for head in heads)]
    ways = {"headcount": lambda: evaluate(model, task, masks), "(a)": lambda: evaluate(model, task, masks, fast=False)}
    if padded is not None:  # every tenth mask of the slowest loop tells its speed
        few = masks[::10]
        ways["(b)"] = lambda: evaluate(model, padded, few, fast=False, tokens=32 * Padded.width)
    seconds = interleaved(ways, repeats)
    if padded is not None:
        share = len(masks) / len(few)
        seconds["(b)"] = seconds["(b)"][0] * share, seconds["(b)"][1] * share
    ours = seconds["headcount"]
    print(f"\n{name}: {len(task)} examples, {len(heads)} heads")
    for way in seconds:
        if way != "headcount":
            wall, cpu = (seconds[way][i] / ours[i] for i in (0, 1))
            print(f"  {wall:5.2f} times {way} by the clock, {cpu:5.2f} by processor time", flush=True)
    if padded is not None:
        counted = {way: flops(ways[way]) for way in ("headcount", "(a)")}
        bound, reached = counted["(a)"] / counted["headcount"], seconds["(a)"][1] / ours[1]
        print(f"  FLOP bound of (a): {bound:.2f}, reached {reached / bound:.0%} by processor time")
        print(f"  {counted['headcount'] / ours[0] / rate:.0%} of the machine's matrix multiplication peak")


def cuts(model: Any, task: Any, repeats: int) -> None:
    """Greedy BLEU of really pruned copies, less and less left of them, beside what `generate` takes for the same."""
    order = importance(model, task.subset(range(min(len(task), 200)))).order()
    print(f"\nCuts of the translator, {len(task)} sentences, greedy")
    for share in (0.0, 0.1, 0.2, 0.4, 0.6):
        cut = remove(model, order[: round(share * len(order))])
        found: dict[str, Any] = {}

        def measure(name: str, fast: bool, cut: Any = cut, found: dict[str, Any] = found) -> None:
            found[name] = evaluate(cut, task, fast=fast)

        seconds = interleaved({name: partial(measure, name, name == "ours") for name in ("ours", "generate")}, repeats)
        wall, cpu = (seconds["generate"][i] / seconds["ours"][i] for i in (0, 1))
        others = int((found["ours"].values != found["generate"].values).any(axis=(0, 2)).sum())
        print(
            f"  {share:4.0%} of the heads removed, BLEU {found['ours'].score():5.2f}: {wall:.2f} times by the clock, "
            f"{cpu:.2f} by processor time; {others} sentences differ, {found['ours'].near_ties} near ties",
            flush=True,
        )


def refits(name: str, model: Any, task: Any, repeats: int) -> None:
    """Refit a copy without a fifth of its heads, beside running each layer again for every one of its sites."""
    seen = calibration.Calibration(model, task)
    without = remove(model, anatomy(model).heads[::5])

    def refit() -> Any:
        return compensate(copy.deepcopy(without), model, task, "refit", calibration=seen)

    def again() -> Any:
        with mock.patch.object(calibration, "answer_at"):
            return refit()

    seconds = interleaved({"once": refit, "again": again}, repeats)
    wall, cpu = (seconds["again"][i] / seconds["once"][i] for i in (0, 1))
    print(f"\nRefit of the {name}: {wall:.2f} times by the clock, {cpu:.2f} by processor time", flush=True)


def growth(task: Any, model: Any) -> None:
    """How the cost of a sweep grows: processor seconds for one more of everything."""
    print("\nGrowth (processor seconds of a whole sweep)")
    for label, values in (
        ("examples", (8, 16, 32)),
        ("tokens", (8, 16, 32)),
        ("heads", (4, 12)),
        ("layers", (2, 4, 6)),
    ):
        costs = []
        for value in values:
            some, chosen = task.subset(range(16)), model
            if label == "examples":
                some = task.subset(range(value))
            elif label == "tokens":
                order = sorted(range(len(task)), key=lambda index: abs(task.lengths[index] - value))
                some = task.subset(order[:16])
            elif label in ("heads", "layers"):
                key = {"heads": "num_attention_heads", "layers": "num_hidden_layers"}[label]
                chosen = BertForSequenceClassification(BertConfig(**{**model.config.to_dict(), key: value})).eval()
            masks = [(), *([head] for head in anatomy(chosen).heads)]
            start = time.process_time()
            evaluate(chosen, some, masks)
            costs.append(f"{value}: {time.process_time() - start:.1f}")
        print(f"  {label:9s} {', '.join(costs)}")


def scores(model: Any, task: Any, repeats: int) -> None:
    """The gradient of every unit for each example, beside a training step (without the optimizer's)."""
    batches = [task.batch(indices) for indices in batches_by_length(task.lengths, TOKENS)]

    def train() -> None:
        with fast_products():
            for batch in batches:
                model.zero_grad()
                task.losses(task.outputs(model, batch), batch).mean().backward()

    ways: dict[str, Callable[[], Any]] = {"training": train}
    for units in ("heads", "neurons", "sublayers", "heads,neurons,sublayers"):
        ways[units] = partial(unit_moments, model, task, units)
    seconds = interleaved(ways, repeats)
    print(f"\nGradients of {len(task)} examples, in training steps")
    for way in list(ways)[1:]:
        wall, cpu = (seconds[way][i] / seconds["training"][i] for i in (0, 1))
        print(f"  {way:25s} {wall:5.2f} by the clock, {cpu:5.2f} by processor time", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--part", choices=["6", "12", "translator", "cuts", "refit", "growth", "scores", "all"], default="all"
    )
    parser.add_argument("--examples", type=int, default=64)
    parser.add_argument("--longest", type=int, default=10_000, help="only sentences of at most this many tokens")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    if not SHARED.is_dir():
        raise SystemExit(f"no models and data in {SHARED}; point HEADCOUNT_SHARED to them")
    torch.set_num_threads(args.threads)
    rate = peak()
    print(f"{args.threads} threads, matrix multiplication peak {rate / 1e9:.0f} GFLOP/s")
    for part in ("6", "12", "translator"):
        if args.part in (part, "all"):
            model, task, padded = translator() if part == "translator" else classifier(int(part))
            title = (
                "translator, 6 + 6 layers x 8 heads, greedy" if part == "translator" else f"classifier, {part} layers"
            )
            some = spread(task, args.examples, args.longest)
            compare(title, model, some, padded and spread(padded, args.examples, args.longest), args.repeats, rate)
    if args.part in ("cuts", "all"):
        model, task, _ = translator()
        cuts(model, spread(task, args.examples, args.longest), args.repeats)
    if args.part in ("refit", "all"):
        for name, (model, task, _) in (("translator", translator()), ("classifier", classifier(6))):
            refits(name, model, task, args.repeats)
    if args.part in ("growth", "all"):
        model, task, _ = classifier(6)
        growth(task, model)
    if args.part in ("scores", "all"):
        model, task, _ = classifier(6)
        scores(model, spread(task, args.examples, args.longest), args.repeats)


if __name__ == "__main__":
    main()
