"""Gates beside the methods that need no training, at the same number of heads and the same training cost (V19, M19).

    python -m benchmarks.gates                     a quarter of the encoder heads of the shared directory's translator
    python -m benchmarks.gates --heads 24,12,6     a path
    python -m benchmarks.gates --pruned RUN/model  heads and neurons of the shared directory's classifier, at the FLOPs
                                                   of what `headcount prune --flops 75% --out RUN` made of it
    python -m benchmarks.gates --cost              what gates add to a training step

Everything is trained and scored on training data; BLEU and accuracy are on held-out validation data.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from headcount import anatomy, evaluate, load, load_task, remove, train_gates
from headcount.engine import batches_by_length
from headcount.gates import Gating
from headcount.gates.gate_training import GateTraining
from headcount.gates.hard_concrete import GatedUnits, HardConcrete
from headcount.pruning import Pruning
from headcount.pruning.search import CutSearch
from headcount.pruning.unit_costs import flops_of
from headcount.stats import paired_test
from headcount.training import Training, fit

SHARED = Path(os.environ.get("HEADCOUNT_SHARED") or Path(__file__).resolve().parents[2] / "shared")
SCORED = 384  # examples that the methods without training score and compensate on


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    if options.pruned:
        results = compare_flops(options)
        if options.json:
            Path(options.json).write_text(json.dumps(results, indent=2))
        return
    directory = SHARED / options.model
    model, tokenizer = load(directory, dtype=torch.float32), AutoTokenizer.from_pretrained(directory)
    text = SHARED / "data" / "multi30k"
    train, test = (
        load_task("translation", text / f"{name}.en", tokenizer, model, target_data=text / f"{name}.fr", limit=limit)
        for name, limit in (("train", options.limit), ("val", options.test))
    )
    settings = Gating(epochs=options.epochs, lr=options.lr, gate_lr=options.gate_lr, seed=options.seed)
    if options.cost:
        print(cost(model, train, settings, options.repeats))
        return
    results = compare(model, train, test, settings, [int(count) for count in options.heads.split(",")])
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=2))


def compare(model: Any, train: Any, test: Any, settings: Gating, wanted: list[int]) -> list[dict[str, Any]]:
    """Every way at every number of encoder heads left."""
    base = evaluate(model, test).of()
    total = sum(head.kind == "encoder" for head in anatomy(model).heads)
    scoring = train.subset(range(min(SCORED, len(train))))
    print(f"BLEU of the whole model on {len(test)} sentences: {test.metric.of_sums(base.sum(0)):.2f}", flush=True)
    results: list[dict[str, Any]] = []

    def tell(way: str, left: int, smaller: Any, trained: int, **more: float) -> None:
        statistics = evaluate(smaller.eval(), test).of()
        tested = paired_test(base, statistics[None], test.metric, resamples=2000)
        results.append({
            "way": way, "left": left, "bleu": float(test.metric.of_sums(statistics.sum(0))), "epochs": trained,
            "change": float(tested.change[0]), "low": float(tested.low[0]), "high": float(tested.high[0]),
            "p": float(tested.p[0]), **more,
        })  # fmt: skip
        one = results[-1]
        more_said = "".join(f", {name} {value:.0%}" for name, value in more.items())
        print(f"{left:3} of {total} heads, {way}: {one['bleu']:.2f} ({one['change']:+.2f}, 95% {one['low']:+.2f} to "
              f"{one['high']:+.2f}, p {one['p']:.4f}){more_said}", flush=True)  # fmt: skip

    for way, method, how in (("M19's order", "michel", "none"), ("prune's default", "search", "refit")):
        counts = [total - left for left in wanted]
        tenths = sorted({*counts, *(round(total * share / 10) for share in range(1, 10))})
        pruning = Pruning(heads=max(counts), method=method, compensation=how, kinds=("encoder",))
        for number, cut in zip(tenths, CutSearch(model, scoring, pruning).cuts(tenths), strict=True):
            if number in counts:
                tell(f"{way}, no training", total - number, cut.model, 0)
                if method == "search":
                    smaller = copy.deepcopy(cut.model)
                    spent = settings.epochs * (wanted.index(total - number) + 1)  # as much as the path of gates
                    _train(smaller, train, settings, spent)
                    tell(f"{way}, then trained", total - number, smaller, spent)
            if number >= max(counts):
                break

    def stage_done(stage: Any, smaller: Any) -> None:
        trained = settings.epochs * (wanted.index(stage.left) + 1)
        tell("gates", stage.left, smaller, trained, decided=stage.decided)

    train_gates(model, train, test, target_heads=wanted, kinds=["encoder"], settings=settings, on_stage=stage_done)
    return results


def compare_flops(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Heads and neurons of a classifier: gates beside `prune` at the same FLOPs, as it is and trained as long."""
    directory, data = SHARED / options.classifier, SHARED / options.data
    model, tokenizer = load(directory, dtype=torch.float32), AutoTokenizer.from_pretrained(directory)
    train, test = (
        load_task("classification", data / f"{name}.tsv", tokenizer, model, limit=limit)
        for name, limit in (("train", options.limit), ("dev", options.test))
    )
    base, whole, results = evaluate(model, test).of(), flops_of(model, test), list[dict[str, Any]]()
    print(f"{test.metric.name} of the whole model on {len(test)} examples: {test.metric.of_sums(base.sum(0)):.4f}")

    def tell(way: str, smaller: Any, trained: int, **more: float) -> None:
        statistics = evaluate(smaller.eval(), test).of()
        tested = paired_test(base, statistics[None], test.metric, resamples=2000)
        results.append({
            "way": way, "flops": flops_of(smaller, test) / whole, "epochs": trained,
            "score": float(test.metric.of_sums(statistics.sum(0))), "change": float(tested.change[0]),
            "low": float(tested.low[0]), "high": float(tested.high[0]), "p": float(tested.p[0]), **more,
        })  # fmt: skip
        print("{way}, {flops:.2%} of the FLOPs: {score:.4f} ({change:+.4f}, 95% {low:+.4f} to {high:+.4f}, "
              "p {p:.4f})".format(**results[-1]), flush=True)  # fmt: skip

    pruned = load(options.pruned, dtype=torch.float32)
    tell("prune, no training", pruned, 0)
    share = results[0]["flops"]
    settings = Gating(epochs=options.epochs, lr=options.lr, gate_lr=options.gate_lr, seed=options.seed)
    gated = train_gates(model, train, test, units="heads,neurons", target_flops=share, settings=settings)
    tell("gates", gated.model, settings.epochs, decided=gated.stages[-1].decided)
    fit(pruned, train, epochs=settings.epochs, lr=settings.lr, tokens=settings.tokens, seed=options.seed)
    tell("prune, then trained", pruned, settings.epochs)
    return results


def _train(smaller: Any, train: Any, settings: Gating, epochs: int) -> None:
    """Only the encoder's layers are trained, as with the gates."""
    chosen = {id(p) for site in anatomy(smaller).sites if site.kind == "encoder" for p in site.block.parameters()}
    for parameter in smaller.parameters():
        parameter.requires_grad_(id(parameter) in chosen and parameter.requires_grad)
    fit(smaller, train, epochs=epochs, lr=settings.lr, tokens=settings.tokens)


def cost(model: Any, train: Any, settings: Gating, repeats: int) -> str:
    """Processor time of steps with gates beside plain ones of the same model on the same batches, alternately."""
    units = GatedUnits.find(model)
    whole, batches = remove(model, []), batches_by_length(train.lengths, settings.tokens)
    plain = Training(whole, train, [{"params": whole.parameters(), "lr": 1e-6}], batches=batches, epochs=1, seed=0)
    gates = HardConcrete(units.count)
    gated = GateTraining(remove(model, []), train, gates, units, settings, price=1e-3)
    ratios = []
    for step in range(repeats + 2):
        times = []
        for training in (plain, gated) if step % 2 else (gated, plain):
            training.model.train()
            batch = train.batch(training.batches[len(training.batches) // 2])
            started = time.process_time()
            training.step(step, batch)
            times.append(time.process_time() - started)
        ratios.append(times[1] / times[0] if step % 2 else times[0] / times[1])
    low, middle, high = np.quantile(ratios[2:], [0.25, 0.5, 0.75])
    return f"a step with gates costs {middle:.3f} of a plain one (quartiles {low:.3f} to {high:.3f}, {repeats} pairs)"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/multi30k-en-fr", help="relative to the shared directory")
    parser.add_argument("--heads", default="12", help="encoder heads to leave; a path with commas")
    parser.add_argument("--pruned", help="instead, a classifier that `headcount prune` has cut")
    parser.add_argument("--classifier", default="models/minilm-sst2", help="relative to the shared directory")
    parser.add_argument("--data", default="data/sst2", help="train.tsv and dev.tsv, relative to the shared directory")
    parser.add_argument("--epochs", type=int, default=2, help="of each stage")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--gate-lr", type=float, default=0.1)
    parser.add_argument("--limit", type=int, default=12_000, help="training sentences")
    parser.add_argument("--test", type=int, help="at most this many validation sentences")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--json", help="file for the results")
    return parser.parse_args()


if __name__ == "__main__":
    main()
