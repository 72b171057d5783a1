"""M19 table 4: a BERT-base layout with half of its heads removed, timed alternately with the original."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from recipes.reproduce.figures import table
from recipes.reproduce.running import Results
from transformers import BertConfig, BertForSequenceClassification

from headcount import anatomy, benchmark, load, remove
from headcount.errors import HeadcountError
from headcount.runs import RunDirectory, read_run, versions

PUBLISHED = {  # M19 table 4: examples per second of the original and the pruned model, and the gain as printed there
    1: (17.0, 17.3, 0.019), 4: (67.3, 69.1, 0.027), 16: (114.0, 134.0, 0.175), 64: (124.7, 146.6, 0.175),
}  # fmt: skip


def speed(
    out: Path, batches: list[int], rounds: int, compute: bool = True, base: str | None = None, **sizes: int
) -> dict[str, Any] | None:
    """Examples per second of one thread's CPU time, which other work on the machine affects little.

    base: a model of BERT-base's size; without it, or with sizes, a BERT-base layout with random weights.
    """
    base = None if sizes else base
    signature = {"command": "bench", "batches": batches, "rounds": rounds, "sizes": sizes, "versions": versions()}
    path = out / f"speed-{'' if base is None else Path(base).name + '-'}{'-'.join(map(str, batches))}"
    known = read_run(path)
    if known is not None and any(known["signature"].get(key) != signature[key] for key in ("rounds", "sizes")):
        raise HeadcountError(f"{path} was measured with other --rounds or --bench-layers; remove it first")
    if not (known and known.get("finished")) and compute:
        print(f"speed, batches of {batches}", flush=True)
        torch.manual_seed(0)
        model = BertForSequenceClassification(BertConfig(**sizes)) if base is None else load(base, dtype=torch.float32)
        model.eval()
        heads = anatomy(model).heads
        pruned = remove(model, random.Random(0).sample(heads, len(heads) // 2))
        with RunDirectory(path, signature).open() as directory:
            result = benchmark([model, pruned], batches=batches, lengths=[128], rounds=rounds, threads=1, clock="cpu")
            facts = {key: value for key, value in result.to_dict().items() if key != "signature"}
            directory.write({"command": "bench", "model": base or "BERT-base layout", **facts})
        known = read_run(path)
    return known if known and known.get("finished") else None


def speed_table(results: Results, figures: dict[str, str]) -> str:
    """Original and pruned beside the published numbers."""
    if results.speed is None:
        return "Not measured here."
    rows = []
    for row in results.speed["rows"]:
        paper = PUBLISHED.get(row["batch"])
        theirs = f"{paper[0]} → {paper[1]} ({paper[2]:+.1%})" if paper else ""
        ours = f"{row['original']:.2f} → {row['pruned']:.2f}"
        interval = f"{row['low'] - 1:+.1%} to {row['high'] - 1:+.1%}"
        rows.append([row["batch"], ours, f"{row['speedup'] - 1:+.1%}", interval, f"{row['limit'] - 1:+.1%}", theirs])
    layout = "A BERT-base layout (12 layers of 12 heads) with random weights, as speed does not depend on them,"
    if results.speed["model"] != "BERT-base layout":
        layout = f"`{Path(results.speed['model']).name}` (12 layers of 12 heads)"
    columns = ["batch", "examples/s", "gain", "95% interval", "limit by FLOPs", "M19"]
    return (
        f"{table(columns, rows)}\n\n{layout} and a random half of its heads removed; M19 prunes a fine-tuned BERT. "
        "One thread's own CPU time, length 128, original and pruned alternately; the gain is the median over rounds, "
        "not the ratio of the two medians. M19 has a GPU, where a batch of 1 gains little; its batch of "
        f"64 ({PUBLISHED[64][2]:+.1%}) takes 20 seconds a pass here, and is in [speed](speed.md)."
    )
