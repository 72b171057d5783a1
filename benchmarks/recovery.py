"""Settings of recovery side by side: one pruned classifier, fine-tuned anew with each of them.

    headcount prune MODEL --score-data train.tsv --data dev.tsv --flops 75% --out RUN
    python -m benchmarks.recovery RUN/model lr=5e-5 lr=2e-4,distill=1,hidden=1 lr=2e-4,distill=1,hidden=1,augment=0.1

Each setting is a list of fields of `Recovery`; what it leaves out has its default value. A part of the training data is
held out from recovery: settings are chosen there, and the test data only tell what the choice is worth. No epoch is
chosen either: the last one counts. Beside the score it prints the divergence from the whole model's predictions on the
same examples, which is less noisy: it sees every example change, not only those that cross the decision boundary.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoTokenizer

from headcount import evaluate, load, load_task
from headcount.engine import batches_by_length
from headcount.stats import paired_test
from headcount.training import Recovery
from headcount.training.recovery import Recovering, varied

SHARED = Path(os.environ.get("HEADCOUNT_SHARED") or Path(__file__).resolve().parents[2] / "shared")


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    directory, data = SHARED / options.model, SHARED / options.data
    whole, tokenizer = load(directory, dtype=torch.float32), AutoTokenizer.from_pretrained(directory)
    given = {name: getattr(options, name) for name in ("text", "pair", "label", "metric")}
    columns = {name: value for name, value in given.items() if value is not None}
    everything, test = (
        load_task("classification", data / file, tokenizer, whole, limit=limit, **columns)
        for file, limit in ((options.train, options.limit), (options.test, None))
    )
    order = np.random.default_rng(0).permutation(len(everything)).tolist()
    held_out, train = everything.subset(order[: options.held_out]), everything.subset(order[options.held_out :])
    judges = {"held out": Judge(whole, held_out), "test": Judge(whole, test)}
    for name, judge in judges.items():
        print(f"the whole model, {name}, {len(judge.task)} examples: {test.metric.name} {judge.score:.4f}, "
              f"entropy of its predictions {entropy(judge.wanted):.3f}", flush=True)  # fmt: skip
    unseen = entropy(predictions(whole, varied(held_out, 0.1, [0])))
    print(f"the whole model, held out, with other words: entropy of its predictions {unseen:.3f}", flush=True)
    rows = []
    for text in ["", *options.settings]:
        for seed in map(int, options.seeds.split(",")) if text else [0]:
            pruned, started = load(options.pruned, dtype=torch.float32), time.process_time()
            if text:
                settings = Recovery(**{"epochs": options.epochs, "seed": seed, **parse(text)})
                Recovering(pruned, train, settings, whole).run(0, lambda epoch: None)
            spent = time.process_time() - started
            row = {"settings": text or "no recovery", "seed": seed, "seconds": spent}
            row |= {name: judge(pruned) for name, judge in judges.items()}
            said = "; ".join(
                "{0} {score:.4f} ({change:+.4f}, 95% {low:+.4f} to {high:+.4f}), divergence {divergence:.3f}".format(
                    name, **row[name]
                )
                for name in judges
            )
            print(f"{row['settings']}, seed {seed}: {said}; {spent:.0f} s of processor time", flush=True)
            rows.append(row)
            if options.json:
                Path(options.json).write_text(json.dumps(rows, indent=2))


class Judge:
    """Compares models with the whole one on the same examples."""

    def __init__(self, whole: Any, task: Any) -> None:
        self.task, self.base, self.wanted = task, evaluate(whole, task).of(), predictions(whole, task)
        self.score = float(task.metric.of_sums(self.base.sum(0)))

    def __call__(self, pruned: Any) -> dict[str, float]:
        statistics, of_sums = evaluate(pruned, self.task).of(), self.task.metric.of_sums
        tested = paired_test(self.base, statistics[None], self.task.metric, resamples=2000)
        ours, theirs = (F.log_softmax(logits, -1) for logits in (predictions(pruned, self.task), self.wanted))
        divergence = F.kl_div(ours, theirs, reduction="batchmean", log_target=True)
        return {
            "score": float(of_sums(statistics.sum(0))), "change": float(tested.change[0]),
            "low": float(tested.low[0]), "high": float(tested.high[0]), "divergence": float(divergence),
        }  # fmt: skip


def predictions(model: Any, task: Any) -> Tensor:
    """(examples, classes) logits, in the order of batches by length."""
    with torch.no_grad():
        return torch.cat([task.outputs(model.eval(), task.batch(b)) for b in batches_by_length(task.lengths, 2048)])


def entropy(logits: Tensor) -> float:
    """In nats, the mean over examples: how much a prediction tells beyond a label."""
    return float(torch.distributions.Categorical(logits=logits).entropy().mean())


def parse(text: str) -> dict[str, Any]:
    """`lr=2e-4,tokens=512` as fields of `Recovery`."""
    pairs = (part.split("=") for part in text.split(","))
    return {name: (int if name in ("epochs", "tokens", "seed") else float)(value) for name, value in pairs}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pruned", help="directory of the pruned model")
    parser.add_argument("settings", nargs="*", help="fields of Recovery, such as lr=2e-4,tokens=512")
    parser.add_argument("--model", default="models/minilm-sst2", help="the whole one, relative to the shared directory")
    parser.add_argument("--data", default="data/sst2", help="relative to the shared directory")
    parser.add_argument("--train", default="train.tsv", help="file to recover on")
    parser.add_argument("--test", default="dev.tsv", help="file to test on")
    parser.add_argument("--metric", default="accuracy")
    for name in ("--text", "--pair", "--label"):
        parser.add_argument(name, help="column, by name or number; guessed if left out")
    parser.add_argument("--held-out", type=int, default=800, help="training examples to choose settings on")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--limit", type=int, help="at most this many training examples")
    parser.add_argument("--seeds", default="0", help="one run with each: 0,1")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", help="file for the results")
    return parser.parse_args()


if __name__ == "__main__":
    main()
