"""One search for a cut in a process of its own, by whichever version of headcount PYTHONPATH names.

    python -m benchmarks.one_search '{"model": "classifier", "max_drop": 1, "select": 872, "test": 436, "knobs": {}}'

Prints JSON: the heads removed, the cuts that were measured and on how many examples, the verdict, the processor seconds
of `prune`, without loading, and those of the parts of its search. It uses only names that both versions have. Real
models and data are found by HEADCOUNT_SHARED (default ../shared).
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from headcount import Classification, Translation, load, prune
from headcount.pruning import search as search_module

SHARED = Path(os.environ.get("HEADCOUNT_SHARED") or Path(__file__).resolve().parents[2] / "shared")
PAIRS = 4000  # of the translator's 29,000, to score heads on
PARTS = {"head_gradients": "scoring", "compensate": "compensation", "evaluate": "measuring"}


def search(model: str, max_drop: float, select: int, test: int, knobs: dict[str, Any]) -> dict[str, Any]:
    """Prune a model on its own data; select, test: how many examples to choose the cut on and to test it on."""
    whole, score_task, select_task, test_task = (classifier if model == "classifier" else translator)()
    select_task, test_task = (task.subset(range(n)) for task, n in ((select_task, select), (test_task, test)))
    parts: dict[str, float] = {}
    for name, part in PARTS.items():
        setattr(search_module, name, timed(getattr(search_module, name), parts, part))
    start = time.process_time()
    pruned = prune(whole, score_task, select_task, test_task, max_drop=max_drop, overlap="drop", **knobs)
    return {
        "seconds": time.process_time() - start,
        "removed": [str(head) for head in pruned.removed],
        "cuts": [[len(point.removed), len(point.statistics)] for point in pruned.path],
        "shown": bool(pruned.verdict.shown),
        "parts": parts,
    }


def timed(function: Any, parts: dict[str, float], part: str) -> Any:
    """The function, adding its processor seconds to those of a part."""

    def run(*args: Any, **kwargs: Any) -> Any:
        start = time.process_time()
        try:
            return function(*args, **kwargs)
        finally:
            parts[part] = parts.get(part, 0.0) + time.process_time() - start

    return run


def classifier() -> tuple[Any, Any, Any, Any]:
    """MiniLM on SST-2, which has no labelled test set: a part of the training data, which is not scored on, tests."""
    directory, data = SHARED / "models" / "minilm-sst2", SHARED / "data" / "sst2"
    tokenizer = AutoTokenizer.from_pretrained(directory)
    train, dev = (Classification(data / f"{name}.tsv", tokenizer) for name in ("train", "dev"))
    half = len(train) // 2
    return _load(directory), train.subset(range(half)), dev, train.subset(range(half, len(train)))


def translator() -> tuple[Any, Any, Any, Any]:
    """The English-French translator of Multi30k."""
    directory, data = SHARED / "models" / "multi30k-en-fr", SHARED / "data" / "multi30k"
    tokenizer = AutoTokenizer.from_pretrained(directory)
    names = ("train", "val", "test_2017_mscoco")
    pairs = (Translation(data / f"{name}.en", tokenizer, target_data=data / f"{name}.fr") for name in names)
    train, select, test = pairs
    return _load(directory), train.subset(range(PAIRS)), select, test


def _load(directory: Path) -> Any:
    return load(directory, dtype=torch.float32)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(search(**json.loads(sys.argv[1]))))
