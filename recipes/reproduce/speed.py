"""M19 table 4: a BERT-base layout with half of its heads really removed, original and pruned in turns."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification

from headcount import anatomy, benchmark, remove
from headcount.errors import HeadcountError
from headcount.runs import RunDirectory, read_run, versions


def speed(out: Path, batches: list[int], rounds: int, compute: bool = True, **sizes: int) -> dict[str, Any] | None:
    """Examples per second of one thread's own time, so that others on the machine slow both alike or not at all."""
    signature = {"command": "bench", "batches": batches, "rounds": rounds, "sizes": sizes, "versions": versions()}
    path = out / f"speed-{'-'.join(map(str, batches))}"
    known = read_run(path)
    if known is not None and any(known["signature"].get(key) != signature[key] for key in ("rounds", "sizes")):
        raise HeadcountError(f"{path} was measured with other --rounds or --bench-layers; remove it first")
    if not (known and known.get("finished")) and compute:
        print(f"speed, batches of {batches}", flush=True)
        torch.manual_seed(0)
        model = BertForSequenceClassification(BertConfig(**sizes)).eval()
        heads = anatomy(model).heads
        pruned = remove(model, random.Random(0).sample(heads, len(heads) // 2))
        with RunDirectory(path, signature).open() as directory:
            result = benchmark([model, pruned], batches=batches, lengths=[128], rounds=rounds, threads=1, clock="cpu")
            facts = {key: value for key, value in result.to_dict().items() if key != "signature"}
            directory.write({"command": "bench", "model": "BERT-base layout", **facts})
        known = read_run(path)
    return known if known and known.get("finished") else None
