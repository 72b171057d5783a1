"""How close does a cut without labels come to one with labels? Both are judged with labels, on held-out data.

    python -m benchmarks.pruning.unlabeled --models DIR      sst2, translator and embedder; mrpc if DIR has it

Heads are scored, and cuts compensated, on the same sentences: once with their labels, once by `unlabeled`, which
compares with the original model's own predictions or embeddings. MRPC's model is made by recipes/finetune.py.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from benchmarks.pruning.data import read, where
from headcount import evaluate, prune, unlabeled

TASKS = ("sst2", "mrpc", "translator", "embedder")


def main() -> None:
    options = arguments()
    print("| model | heads removed | metric | whole | cut with labels | cut without | same heads | seconds |")
    print("|-|-|-|-|-|-|-|-|")
    for key in options.tasks:
        if where(key, options.models) is None:
            print(f"# {key} is left out: recipes/finetune.py makes its model", flush=True)
            continue
        data = read(key, options.models, examples=options.examples, limit=options.limit)
        alone = unlabeled(data.score, data.model), unlabeled(data.select, data.model)
        whole = evaluate(data.model, data.test).score()
        for share in options.heads:
            started = time.perf_counter()
            cuts = [prune(data.model, *tasks, heads=share, overlap="allow", step=options.step)
                    for tasks in ((data.score, data.select), alone)]  # fmt: skip
            with_labels, without = (evaluate(cut.model, data.test).score() for cut in cuts)
            gone = [set(cut.removed) for cut in cuts]
            print(
                f"| {data.name} | {len(gone[0])} of {len(gone[0]) + cuts[0].left} | {data.test.metric.name} "
                f"| {whole:.4g} | {with_labels:.4g} | {without:.4g} | {len(gone[0] & gone[1])} "
                f"| {time.perf_counter() - started:.0f} |",
                flush=True,
            )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, help="directory with mrpc")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--heads", nargs="+", type=float, default=[0.25, 0.5], help="shares to remove")
    parser.add_argument("--examples", type=int, default=256, help="to score heads on")
    parser.add_argument("--limit", type=int, help="examples to judge on, at most")
    parser.add_argument("--step", type=float, default=0.125, help="share of the heads to remove at a time")
    return parser.parse_args()


if __name__ == "__main__":
    main()
