"""The whole way of one classifier: original in PyTorch, pruned, ONNX, int8; size, speed and metric at each step.

    python -m benchmarks.exports --out exports.json

Units are chosen on training data and tested on the dev set, like every later step. Speed is of one thread, on batches
of texts of median length, all steps in turns. The verdict at the end is of the last step against the original.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from headcount import evaluate, export_onnx, load, load_task, open_onnx, prune, save
from headcount.bench import interleaved
from headcount.bench.timing import median, repeated
from headcount.stats import noninferior, paired_test

SHARED = Path(os.environ.get("HEADCOUNT_SHARED") or Path(__file__).resolve().parents[2] / "shared")
EXAMPLES = 32


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    directory, data = SHARED / options.model, SHARED / options.data
    whole, tokenizer = load(directory, dtype=torch.float32), AutoTokenizer.from_pretrained(directory)
    train = load_task("classification", data / "train.tsv", tokenizer, whole, limit=options.score + options.select)
    score = train.subset(range(options.score))
    select = train.subset(range(options.score, len(train)))
    test = load_task("classification", data / "dev.tsv", tokenizer, whole)
    size = {"flops": options.flops, "step": options.step, "units": "heads,neurons"}
    pruned = prune(whole, score, select, test, options.max_drop, **size, overlap="drop")
    with tempfile.TemporaryDirectory() as folder:
        saved = save(pruned.model, Path(folder) / "pruned", tokenizer=tokenizer)
        exact = export_onnx(pruned.model, Path(folder) / "pruned.onnx")
        small = export_onnx(pruned.model, Path(folder) / "pruned.int8.onnx", int8=True)
        steps = {
            "original, PyTorch": (whole, 4 * sum(weight.numel() for weight in whole.parameters())),
            "pruned, PyTorch": (pruned.model, (saved / "model.safetensors").stat().st_size),
            "pruned, ONNX": (open_onnx(exact.file, threads=1), exact.size),
            "pruned, ONNX int8": (open_onnx(small.file, threads=1), small.size),
        }
        rows = measured(steps, test, options.rounds)
    print(f"{'step':20} {'MB':>6} {'examples/s':>10} {'times':>6} {test.metric.name:>9}  change, 95% interval")
    for row in rows:
        change = "" if row is rows[0] else "  {change:+.4f} ({low:+.4f} to {high:+.4f})".format(**row)
        print("{step:20} {size:6.1f} {speed:10.0f} {times:6.2f} {score:9.4f}".format(**row) + change)
    last = rows[-1]
    bound = f"drop ≤ {options.max_drop:g} points, one-sided bound {-100 * last['bound']:.2f}"
    print(f"{'Non-inferior' if last['noninferior'] else 'Not shown to be non-inferior'}: {bound}, n {len(test)}")
    if options.out:
        facts = {"removed": len(pruned.removed), "n": len(test), "max_drop": options.max_drop, "steps": rows}
        Path(options.out).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def measured(steps: dict[str, tuple[Any, int]], test: Any, rounds: int) -> list[dict[str, Any]]:
    """A row per step: megabytes, examples per second, and the metric against the first step."""
    by_length = sorted(range(len(test)), key=lambda i: test.lengths[i])
    start = max(0, len(by_length) // 2 - EXAMPLES // 2)
    batch = test.batch(by_length[start : start + EXAMPLES])

    def once(model: Any) -> None:
        with torch.inference_mode():
            test.outputs(model, batch)

    runs = [repeated(partial(once, model), "cpu", lambda: None, 2) for model, _ in steps.values()]
    seconds = interleaved(runs, rounds)  # (steps, rounds)
    outcomes = [evaluate(model, test).of() for model, _ in steps.values()]
    metric, rows = test.metric, []
    for number, (name, (_, size)) in enumerate(steps.items()):
        tested = paired_test(outcomes[0], outcomes[number][None], metric, resamples=2000)
        verdict = noninferior(outcomes[0], outcomes[number], metric.of_sums, 0.01 * arguments().max_drop)
        rows.append({
            "step": name, "size": size / 1e6, "speed": EXAMPLES / median(seconds[number]).value,
            "times": median(seconds[0] / seconds[number]).value,
            "score": float(metric.of_sums(outcomes[number].sum(0))), "change": float(tested.change[0]),
            "low": float(tested.low[0]), "high": float(tested.high[0]),
            "noninferior": verdict.shown, "bound": verdict.bound,
        })  # fmt: skip
    return rows


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="models/minilm-sst2", help="below HEADCOUNT_SHARED")
    parser.add_argument("--data", default="data/sst2", help="below HEADCOUNT_SHARED: train.tsv and dev.tsv")
    parser.add_argument("--flops", type=float, default=0.3, help="share of all FLOPs to save")
    parser.add_argument("--step", type=float, default=0.1, help="share of the cost that each step removes")
    parser.add_argument("--max-drop", type=float, default=3.0, help="margin of the verdict, in points of accuracy")
    parser.add_argument("--score", type=int, default=512, help="examples to score units on")
    parser.add_argument("--select", type=int, default=200, help="examples to choose the cut on")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", help="a JSON file for the numbers")
    return parser.parse_args()


if __name__ == "__main__":
    main()
