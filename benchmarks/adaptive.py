"""What deciding early saves, and whether its errors are as rare as it says.

    python -m benchmarks.adaptive --part errors                      simulated sweeps with heads of known effect
    python -m benchmarks.adaptive --part sst2 --statistics DIR       a full sweep against adaptive ones
    python -m benchmarks.adaptive --part translator --statistics DIR
    python -m benchmarks.adaptive --part prune --examples 256 --before CHECKOUT/src    prune, now and before

`errors`: in every trial, a sweep over heads of which half change nothing and half lose exactly the margin. A decision
is false if the first kind is "missed" or the second "within"; at most 5% of sweeps may have any.

`sst2`, `translator`: the full sweep gives statistics of every example under every head, kept in DIR chunk by chunk. An
adaptive sweep on n of them sees the same numbers, so that its decisions, and the work until them, follow without
running the model again; where n is larger than what was measured, examples are drawn from it with replacement. Work is
counted in passes: examples times heads. With `--run N`, one adaptive sweep really runs on the first N examples, and is
compared with the full one in processor time.

`prune`: the classifier and the translator are pruned within a drop, scored on this many training examples, by this
version, by this version without early decisions (`--late`) and by the one whose source is given (`--before`), in turn,
each in a process of its own with one thread: the cuts, the examples that were measured, and processor time. Real models
and data are found by HEADCOUNT_SHARED (default ../shared).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from benchmarks.one_search import PARTS
from headcount import Classification, Translation, anatomy, evaluate, load
from headcount.ablation import ablate_each
from headcount.stats import Deciding, corrected, paired_test
from headcount.stats.intervals import are_outcomes, in_blocks
from headcount.stats.sequential import BLOCKS
from headcount.tasks import Metric
from headcount.tasks.metrics import CLASSIFICATION, TRANSLATION

SHARED = Path(os.environ.get("HEADCOUNT_SHARED") or Path(__file__).resolve().parents[2] / "shared")
CHUNK = 128  # examples whose statistics are kept in one file
ALPHA = 0.05
SEARCHES = (
    {"model": "classifier", "max_drop": 1, "select": 872, "test": 436},
    {"model": "translator", "max_drop": 3, "select": 400, "test": 461},
)
COLUMNS = (
    *("model", "max drop", "version", "heads removed", "of them as now", "cuts", "examples of all cuts"),
    *("non-inferior", ", ".join(PARTS.values()), "processor time / now"),
)


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    if options.part == "errors":
        print_errors(options)
    elif options.part == "prune":
        print_searches(options)
    else:
        print_savings(options)


# --------------------------------------------------------------------------------------------------------------- errors


def print_errors(options: argparse.Namespace) -> None:
    print("| metric | heads | n | sweeps with a false decision | missed falsely | within falsely | decided |")
    print("|-|-|-|-|-|-|-|")
    for name in ("accuracy", "bleu"):
        for n in options.sizes or (300, 1000):
            rates = error_rates(name, n, options.heads, options.trials, options.seed)
            print(f"| {name} | {options.heads} | {n:,} | {' | '.join(f'{rate:.1%}' for rate in rates)} |", flush=True)


def error_rates(name: str, n: int, heads: int, trials: int, seed: int = 0) -> tuple[float, float, float, float]:
    """Shares of simulated sweeps with any false decision, with one of each kind, and of heads that were decided."""
    rng = np.random.default_rng(seed)
    draw, metric = (outcomes, CLASSIFICATION["accuracy"]) if name == "accuracy" else (sentences, TRANSLATION["bleu"])
    losing = np.arange(heads) % 2 == 1
    base, masked = draw(np.random.default_rng(1), 400_000, np.array([True]))
    margin = float(metric.of(base) - metric.of(masked[0]))  # the true loss
    false = np.zeros((trials, 2), bool)
    decided = 0
    for trial in range(trials):
        base, masked = draw(rng, n, losing)
        deciding = Deciding(metric, masks=heads, examples=n, margin=margin, alpha=ALPHA, seed=trial)
        follow(deciding, base, masked)
        missed, within = deciding.decisions == "missed", deciding.decisions == "within"
        false[trial] = (missed & ~losing).any(), (within & losing).any()
        decided += int((missed | within).sum())
    return float(false.any(1).mean()), *map(float, false.mean(0)), decided / trials / heads


def follow(deciding: Deciding, base: np.ndarray, masked: np.ndarray) -> None:
    """Let an adaptive sweep see statistics (N, S) and (M, N, S) of which it would compute a part."""
    for size in deciding.looks:
        if deciding.open.size:
            deciding.look(base[:size], masked[deciding.open, :size])


def outcomes(rng: np.random.Generator, n: int, losing: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Right or wrong, (n, 2) and (heads, n, 2): 4% of the examples flip either way, and 3% more are lost."""
    right = rng.random(n) < 0.85
    chance = rng.random((len(losing), n))
    lost = np.where(losing, 0.07, 0.04)[:, None] / 0.85
    still = np.where(right, chance >= lost, chance < 0.04 / 0.15)
    ones = np.ones((len(losing), n))
    return np.stack([ones[0], right], axis=-1), np.stack([ones, still], axis=-1)


def sentences(rng: np.random.Generator, n: int, losing: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """sacrebleu's statistics of translations, (n, 10) and (heads, n, 10): 30% change, for the worse if a head loses."""
    lengths = rng.integers(6, 25, n)
    base = _translated(rng, lengths, np.full(n, 0.8))
    changed = rng.random((len(losing), n)) < 0.3
    worse = [_translated(rng, lengths, np.full(n, 0.72 if loses else 0.8)) for loses in losing]
    return base, np.where(changed[..., None], np.stack(worse), base)


def _translated(rng: np.random.Generator, lengths: np.ndarray, quality: np.ndarray) -> np.ndarray:
    """[length, reference's length, n-grams that are right, n-grams], n from 1 to 4, of one translation each."""
    system = np.maximum(4, lengths + rng.integers(-2, 3, len(lengths)))
    totals = [np.maximum(system - k, 0) for k in range(4)]
    right = [rng.binomial(totals[0], quality)]
    for total in totals[1:]:  # an n-gram can only be right if its parts are
        right.append(np.minimum(rng.binomial(right[-1], quality), total))
    return np.stack([system, lengths, *right, *totals], axis=1).astype(float)


# -------------------------------------------------------------------------------------------------------------- savings


def print_savings(options: argparse.Namespace) -> None:
    model, task = classifier() if options.part == "sst2" else translator()
    found = anatomy(model)
    layers = None if options.layers is None else [int(layer) for layer in options.layers.split(",")]
    heads = [head for site in found.sites_of(None, layers) for head in site.heads]
    order = np.random.default_rng(options.seed).permutation(len(task))[: options.examples].tolist()
    values, seconds = full_sweep(model, task, heads, order, options.statistics / f"{options.part}-{options.layers}")
    if options.timed:
        start = time.process_time()
        part = task.subset(order[: options.timed])
        ran = ablate_each(model, part, layers=layers, adaptive=True, margin=options.margins[0], seed=options.seed)
        taken = time.process_time() - start
        assert ran.adaptive is not None
        passes = options.timed * len(heads) / int(ran.adaptive.examples.sum())
        whole = seconds * options.timed / values.shape[1]
        print(f"run on {options.timed:,}: {passes:.2f} times fewer passes, {whole / taken:.2f} times less time\n")
    print(f"{len(heads)} heads, statistics of {values.shape[1]:,} examples")
    columns = ("margin, points", "n", "times less work", "missed by the full sweep", "of these, within the margin by")
    print(f"| {' | '.join(columns)} the adaptive | missed by the adaptive | by both | within | undecided |")
    print("|" + "-|" * 9)
    rng = np.random.default_rng(options.seed)
    for margin in options.margins:
        for n in options.sizes or (1000, 4000, 16000):
            rows = np.arange(n) if n <= values.shape[1] else rng.integers(values.shape[1], size=n)
            print(row_of(task.metric, values[:, rows], margin, options), flush=True)


def row_of(metric: Metric, values: np.ndarray, margin: float, options: argparse.Namespace) -> str:
    """An adaptive sweep on these statistics (1 + heads, n, S), beside the tests of a full one."""
    base, masked = values[0], values[1:]
    deciding = Deciding(
        metric,
        masks=len(masked),
        examples=len(base),
        margin=margin * metric.points,
        alpha=ALPHA,
        seed=options.seed,
    )
    follow(deciding, base, masked)
    exact = are_outcomes(base, metric)
    summed = (one if exact else in_blocks(one, BLOCKS) for one in (base, masked))  # a bootstrap of so many takes hours
    tested = paired_test(*summed, metric, alpha=ALPHA)
    full = (corrected(tested.p, "holm") < ALPHA) & (tested.change < 0)
    missed, within = deciding.decisions == "missed", deciding.decisions == "within"
    fewer = masked.shape[0] * len(base) / deciding.examples.sum()
    kinds = (full, full & within, missed, missed & full, within, ~missed & ~within)
    return f"| {margin:g} | {len(base):,} | {fewer:.2f} | {' | '.join(str(int(kind.sum())) for kind in kinds)} |"


def full_sweep(model: Any, task: Any, heads: list[Any], order: list[int], directory: Path) -> tuple[np.ndarray, float]:
    """Statistics (1 + heads, n, S) of the examples in this order, as kept or measured now, and processor seconds."""
    directory.mkdir(parents=True, exist_ok=True)
    parts, seconds = [], 0.0
    for first in range(0, len(order), CHUNK):
        file = directory / f"{first:06d}.npz"
        if not file.exists():
            start = time.process_time()
            some = evaluate(model, task.subset(order[first : first + CHUNK]), [(), *([head] for head in heads)])
            taken = time.process_time() - start
            partial = file.with_suffix(".partial")
            with open(partial, "wb") as opened:
                np.savez_compressed(opened, values=some.values, seconds=taken)
            partial.rename(file)
            print(f"# {first + CHUNK:,} of {len(order):,} examples, {taken:.0f} s", flush=True)
        kept = np.load(file)
        parts.append(kept["values"])
        seconds += float(kept["seconds"])
    return np.concatenate(parts, axis=1), seconds


def print_searches(options: argparse.Namespace) -> None:
    versions: dict[str, tuple[Path, dict[str, Any]]] = {"now": (Path(__file__).resolve().parents[1] / "src", {})}
    if options.late:
        versions["now, --no-early"] = versions["now"][0], {"early": False}
    if options.before:
        versions["before"] = options.before, {}
    print(f"| {' | '.join(COLUMNS)} |\n{'|-' * len(COLUMNS)}|", flush=True)
    for job in (job for job in SEARCHES if job["model"] in options.models.split(",")):
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in versions}
        for _ in range(options.repeats):
            for name, (source, knobs) in versions.items():  # in turn: a busy machine slows all of them
                knobs = {"score_examples": options.examples, "step": options.step, **knobs}
                runs[name].append(searched(source, {**job, "knobs": knobs}))
        seconds = {name: np.array([run["seconds"] for run in some]) for name, some in runs.items()}
        for name, (found, *_) in runs.items():
            cells = [
                *(job["model"], f"{job['max_drop']:g}", name, len(found["removed"])),
                len(set(found["removed"]) & set(runs["now"][0]["removed"])),
                *(len(found["cuts"]), f"{sum(n for _, n in found['cuts']):,}", "yes" if found["shown"] else "no"),
                ", ".join(f"{found['parts'][part] / found['seconds']:.0%}" for part in PARTS.values()),
                f"{np.median(seconds[name] / seconds['now']):.2f}",
            ]
            print(f"| {' | '.join(map(str, cells))} |", flush=True)


def searched(source: Path, job: dict[str, Any]) -> dict[str, Any]:
    """What a version of headcount finds in a process of its own, with one thread."""
    root = Path(__file__).resolve().parents[1]
    python = {"PYTHONPATH": os.pathsep.join(map(str, (Path(source).resolve(), root)))}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [sys.executable, "-m", "benchmarks.one_search", json.dumps(job)]
    answer = subprocess.run(command, env={**os.environ, **python, **threads}, cwd=root, stdout=subprocess.PIPE)
    answer.check_returncode()
    return json.loads(answer.stdout.splitlines()[-1])


def classifier() -> tuple[Any, Any]:
    directory = SHARED / "models" / "minilm-sst2"
    task = Classification(SHARED / "data" / "sst2" / "dev.tsv", AutoTokenizer.from_pretrained(directory))
    return load(directory, dtype=torch.float32), task


def translator() -> tuple[Any, Any]:
    directory, data = SHARED / "models" / "multi30k-en-fr", SHARED / "data" / "multi30k"
    tokenizer = AutoTokenizer.from_pretrained(directory)
    task = Translation(data / "val.en", tokenizer, target_data=data / "val.fr")
    return load(directory, dtype=torch.float32), task


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("errors", "sst2", "translator", "prune"), required=True)
    parser.add_argument("--statistics", type=Path, default=Path("statistics"), help="where sweeps are kept")
    parser.add_argument("--examples", type=int, default=1000, help="of the full sweep; prune: to score on")
    parser.add_argument("--step", type=float, default=0.05, help="prune: of the search")
    parser.add_argument("--models", default="classifier,translator", help="prune: which of them")
    parser.add_argument("--before", type=Path, help="prune: the folder that holds another version of headcount")
    parser.add_argument("--late", action="store_true", help="prune: also without early decisions")
    parser.add_argument("--repeats", type=int, default=1, help="prune: of all versions, in turn")
    parser.add_argument("--layers", help="only the heads of these, as 3,4,5")
    parser.add_argument("--sizes", type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--margins", type=lambda text: [float(x) for x in text.split(",")], default=[1.0, 2.0, 3.0])
    parser.add_argument("--run", dest="timed", type=int, help="also run an adaptive sweep on this many examples")
    parser.add_argument("--heads", type=int, default=20, help="errors: of a simulated sweep")
    parser.add_argument("--trials", type=int, default=1000, help="errors: simulated sweeps")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
