"""Settings of recovery side by side: one pruned classifier, fine-tuned anew with each of them.

    headcount prune MODEL --score-data train.tsv --data dev.tsv --heads 85% --out RUN
    python -m benchmarks.recovery RUN/model lr=5e-5,distill=0,hidden=0 lr=2e-4 lr=2e-4,tokens=512

Each setting is a list of fields of `Recovery`; what it leaves out has its default value. No epoch is chosen on the test
data: the last one counts. Beside accuracy it prints the divergence from the whole model's predictions on the same
examples, which is less noisy: it sees every example change, not only those that cross the decision boundary.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoTokenizer

from headcount import evaluate, load, load_task
from headcount.engine import batches_by_length
from headcount.stats import paired_test
from headcount.training import Recovery
from headcount.training.recovery import Recovering

SHARED = Path(os.environ.get("HEADCOUNT_SHARED") or Path(__file__).resolve().parents[2] / "shared")


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    directory, data = SHARED / options.model, SHARED / options.data
    whole, tokenizer = load(directory, dtype=torch.float32), AutoTokenizer.from_pretrained(directory)
    train = load_task("classification", data / "train.tsv", tokenizer, whole, limit=options.limit)
    test = load_task("classification", data / "dev.tsv", tokenizer, whole)
    base, wanted = evaluate(whole, test).of(), predictions(whole, test)
    print(f"{test.metric.name} of the whole model on {len(test)} examples: {test.metric.of_sums(base.sum(0)):.4f}")
    rows = []
    for text in ["", *options.settings]:
        pruned, started = load(options.pruned, dtype=torch.float32), time.process_time()
        if text:
            settings = Recovery(**{"epochs": options.epochs, "seed": options.seed, **parse(text)})
            Recovering(pruned, train, settings, whole).run(0, lambda epoch: None)
        spent, statistics = time.process_time() - started, evaluate(pruned, test).of()
        tested = paired_test(base, statistics[None], test.metric, resamples=2000)
        theirs = F.log_softmax(wanted, -1)
        divergence = F.kl_div(F.log_softmax(predictions(pruned, test), -1), theirs, reduction="none", log_target=True)
        row = {
            "settings": text or "no recovery", "score": float(test.metric.of_sums(statistics.sum(0))),
            "change": float(tested.change[0]), "low": float(tested.low[0]), "high": float(tested.high[0]),
            "divergence": float(divergence.sum(-1).mean()), "seconds": spent,
        }  # fmt: skip
        print("{settings}: {score:.4f} ({change:+.4f}, 95% {low:+.4f} to {high:+.4f}), divergence {divergence:.3f}, "
              "{seconds:.0f} s of processor time".format(**row), flush=True)  # fmt: skip
        rows.append(row)
        if options.json:
            Path(options.json).write_text(json.dumps(rows, indent=2))


def predictions(model: Any, task: Any) -> Tensor:
    """(examples, classes) logits, in the order of batches by length."""
    with torch.no_grad():
        return torch.cat([task.outputs(model.eval(), task.batch(b)) for b in batches_by_length(task.lengths, 2048)])


def parse(text: str) -> dict[str, Any]:
    """`lr=2e-4,tokens=512` as fields of `Recovery`."""
    pairs = (part.split("=") for part in text.split(","))
    return {name: (int if name in ("epochs", "tokens", "seed") else float)(value) for name, value in pairs}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pruned", help="directory of the pruned model")
    parser.add_argument("settings", nargs="+", help="fields of Recovery, such as lr=2e-4,tokens=512")
    parser.add_argument("--model", default="models/minilm-sst2", help="the whole one, relative to the shared directory")
    parser.add_argument("--data", default="data/sst2", help="train.tsv and dev.tsv, relative to the shared directory")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--limit", type=int, help="at most this many training examples")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", help="file for the results")
    return parser.parse_args()


if __name__ == "__main__":
    main()
