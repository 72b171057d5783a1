"""What oneDNN's matrix products gain here over torch's own, in the passes that headcount makes.

    python -m benchmarks.products --models classifier,translator

Each pass runs with and without, in turn, in one thread: evaluation, importance, and an epoch of training, on the real
models and data that HEADCOUNT_SHARED has. The ratio is that of processor time, its median over the rounds. Where
headcount does not take oneDNN by itself, because it expects no gain, this measures what it would be.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from benchmarks.one_search import classifier, timed, translator
from headcount.engine import products
from headcount.evaluation import evaluate
from headcount.scoring import head_gradients
from headcount.training import fit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="classifier,translator")
    parser.add_argument("--examples", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"headcount takes oneDNN here: {'yes' if products.onednn_is_faster() else 'no'}")
    print("| model | pass | torch / oneDNN | largest difference |\n|-|-|-|-|", flush=True)
    for name in options.models.split(","):
        model, task, *_ = (classifier if name == "classifier" else translator)()
        task = task.subset(range(options.examples))
        for what, run in passes(model, task).items():
            print(f"| {name} | {what} | {' | '.join(compare(run, options.rounds))} |", flush=True)


def passes(model: Any, task: Any) -> dict[str, Callable[[], np.ndarray]]:
    def train() -> np.ndarray:
        trained = copy.deepcopy(model)
        fit(trained, task, epochs=1, lr=1e-5, tokens=1024)
        return torch.cat([weight.detach().flatten() for weight in trained.parameters()]).numpy()

    return {
        "evaluation": lambda: evaluate(model, task).of(),
        "importance": lambda: head_gradients(model, task),
        "training": train,
    }


def compare(run: Callable[[], np.ndarray], rounds: int) -> tuple[str, str]:
    """The ratio of processor times, and how far the results are apart."""
    results: dict[bool, np.ndarray] = {}
    ratios = []
    for number in range(rounds + 1):
        seconds: dict[str, float] = {}
        for onednn in (False, True):
            with taken(onednn):
                results[onednn] = timed(run, seconds, str(onednn))()
        if number:  # the first is to warm up
            ratios.append(seconds["False"] / seconds["True"])
    apart = float(np.abs(results[True] - results[False]).max())
    return f"{np.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})", f"{apart:.1g}"


@contextmanager
def taken(onednn: bool) -> Any:
    """Let headcount take oneDNN, or not, whatever the processor."""
    before = products.onednn_is_faster
    products.onednn_is_faster = lambda: onednn  # type: ignore[assignment]
    try:
        yield
    finally:
        products.onednn_is_faster = before


if __name__ == "__main__":
    main()
