"""Made-up runs of every command, with numbers that a test can foresee: a classifier of 4 layers x 6 heads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HEADS = [f"encoder.{layer}.{index}" for layer in range(4) for index in range(6)]
REMOVED = [head for place, head in enumerate(HEADS) if place % 5 in (1, 3)]
SIGNATURE = {
    "model": {"name": "toy", "class": "BertForSequenceClassification", "fingerprint": "0123456789abcdef"},
    "tasks": [{"task": "classification", "n": 400, "fingerprint": "feedbeef", "metric": "accuracy"}],
    "seed": 0,
    "versions": {"headcount": "0.1.0", "torch": "2.13.0", "transformers": "5.22.2"},
}


# What every result says of its metric, for some metrics.
METRICS = {
    "accuracy": {"higher_is_better": True, "points": 0.01, "relative": False},
    "bleu": {"higher_is_better": True, "points": 1.0, "relative": False},
    "perplexity": {"higher_is_better": False, "points": 0.01, "relative": True},
    "word_errors": {"higher_is_better": False, "points": 0.01, "relative": False},  # a user's own
}


def change(place: int) -> float:
    """What turning off the head at this place changes: mostly little, much for a few."""
    return round(-0.08 if place == 7 else -0.035 if place == 20 else ((place * 37) % 11 - 5) / 1000, 4)


def ablate() -> dict[str, Any]:
    rows = []
    for place, head in enumerate(HEADS):
        moved = change(place)
        p = 0.0001 if moved < -0.03 else 0.4
        rows.append(
            {"head": head, "score": 0.9 + moved, "change": moved, "low": moved - 0.01, "high": moved + 0.01}
            | {"p": p, "p_holm": min(1.0, p * 24), "p_bh": p}
        )
    return {"base": 0.9, "heads": rows, "significant": [HEADS[7], HEADS[20]], "test": "McNemar", "mode": "each"}


def importance(method: str = "gradient") -> dict[str, Any]:
    scores = {head: ((place * 29) % 24 + 1) / 100 for place, head in enumerate(HEADS)}
    rows = [{"head": head, "score": score, "normalized": 3 * score} for head, score in scores.items()]
    return {
        "method": method,
        "order_by": "normalized",
        "heads": rows,
        "order": sorted(HEADS, key=lambda head: scores[head]),
        "convergence": {"stable_at": 256, "sizes": [64, 128, 256], "agreement": [0.8, 0.9, 0.96], "target": 0.95},
    }


def all_but_one() -> dict[str, Any]:
    rows = [
        {"kind": "encoder", "layer": layer, "best": f"encoder.{layer}.{layer}", "score": 0.9 - 0.01 * layer**2}
        | {"change": -0.01 * layer**2, "low": -0.01 * layer**2 - 0.02, "high": -0.01 * layer**2 + 0.02}
        | {"p": 0.001 if layer == 3 else 0.3, "changes": {}}
        for layer in range(4)
    ]
    return {"base": 0.9, "layers": rows, "chosen_apart": True, "mode": "all-but-one"}


def curve() -> dict[str, Any]:
    curves = []
    for method, bend in (("gradient", 3.0), ("random", 1.3)):
        points = []
        for tenth in range(11):
            gone, score = round(24 * tenth / 10), round(0.9 - 0.4 * (tenth / 10) ** bend, 4)
            heads = HEADS[:gone]
            points.append({"pruned": gone / 24, "removed": heads, "score": score, "low": score - 0.02})
            points[-1] |= {"high": score + 0.02, "change": score - 0.9, "relative": score / 0.9}
            points[-1] |= {"change_low": score - 0.92, "change_high": score - 0.88}
        curves.append({"method": method, "kind": None, "points": points})
    return {"base": 0.9, "curves": curves}


def prune() -> dict[str, Any]:
    tried = []
    for gone in (4, 7, len(REMOVED), 12, 15):
        moved = round(0.004 - 0.00009 * gone**2, 5)
        tried.append({"removed": gone, "chosen": gone == len(REMOVED), "score": 0.9 + moved, "change": moved})
        tried[-1] |= {"change_low": moved - 0.012, "change_high": moved + 0.012}
    return {
        "removed": REMOVED,
        "kept": [head for head in HEADS if head not in REMOVED],
        "left": len(HEADS) - len(REMOVED),
        "before": 0.9,
        "after": 0.898,
        "change": -0.002,
        "low": -0.0045,
        "high": 0.0005,
        "max_drop": 0.5,
        "verdict": "Non-inferior: drop \u2264 0.5 points, 95% confidence (one-sided bound 0.40).",
        "noninferior": True,
        "bound": -0.004,
        "examples_needed": None,
        "parameters_before": 1000000,
        "parameters_after": 900000,
        "speed": {"before": 100.0, "after": 121.0, "speedup": 1.21, "low": 1.19, "high": 1.23},
        "method": "search",
        "tried": tried,
        "path": "small/model",
    }


def with_neurons() -> dict[str, Any]:
    """What `prune --units heads,neurons` says beside or instead of the above: 4 feed-forward layers of 64 neurons."""
    ranges = ["encoder_ffn.0.5", "encoder_ffn.0.8-14", "encoder_ffn.1.0-39", "encoder_ffn.3.0-63"]
    kept = [head for head in HEADS if head not in REMOVED]
    attention = [sum(head.startswith(f"encoder.{layer}.") for head in kept) for layer in range(4)]
    tried = [
        {"removed": gone, "pruned": share, "chosen": gone == 122, "score": 0.9 - share / 100, "change": -share / 100}
        | {"change_low": -share / 100 - 0.01, "change_high": -share / 100 + 0.01}
        for gone, share in ((60, 0.3), (90, 0.2), (122, 0.5))  # fewer units can cost more
    ]
    return {
        "removed": [*REMOVED, *ranges],
        "sites": [
            *({"kind": "encoder", "layer": layer, "left": left, "of": 6} for layer, left in enumerate(attention)),
            *({"kind": "encoder_ffn", "layer": i, "left": n, "of": 64} for i, n in enumerate((56, 24, 64, 0))),
        ],
        "flops_before": 2000000,
        "flops_after": 800000,
        "saved": {"heads": 0.15, "neurons": 0.45},
        "units": ["heads", "neurons"],
        "cost": "flops",
        "speed": {"before": 100.0, "after": 210.0, "speedup": 2.1, "low": 2.0, "high": 2.2},
        "tried": tried,
    }


def bench() -> dict[str, Any]:
    rows = [
        {"model": "pruned", "batch": batch, "length": 128, "original": 40.0 * batch, "pruned": 40.0 * batch * times}
        | {"speedup": times, "low": times - 0.02, "high": times + 0.02, "limit": 1.23}
        for batch, times in ((1, 1.0), (4, 1.12), (16, 1.21))
    ]
    size = {"parameters": 1000000, "disk": 4000000, "memory": 9000000}
    said = "faster by 21% (limit 23%) at batch 16; faster by 12% (limit 23%) at batch 4; no gain at batch 1"
    return {
        "pruned": "small/model",
        "rows": rows,
        "decoding": [],
        "sizes": {"original": size, "pruned": {name: round(0.9 * value) for name, value in size.items()}},
        "threads": 1,
        "clock": "wall",
        "rounds": 7,
        "compiled": False,
        "verdict": said,
    }


def compare() -> dict[str, Any]:
    rows = [
        {"head": head, "change": change(place), "change_against": 0.7 * change(place) + ((place * 7) % 5 - 2) / 400}
        for place, head in enumerate(HEADS)
    ]
    return {"pearson": 0.83, "spearman": 0.61, "p": 0.00002, "spearman_p": 0.001, "remark": None, "heads": rows}


def roles() -> dict[str, Any]:
    named = {"encoder.0.1": ("positional", "-1"), "encoder.0.4": ("rare", None), "encoder.1.2": ("syntactic", "nsubj")}
    rows = [
        {"head": head, "role": role, "detail": detail, "score": 0.91, "baseline": 0.35, "low": 0.88, "high": 0.94}
        for head, (role, detail) in (named | {f"encoder.3.{index}": ("idle", "[SEP]") for index in (0, 3, 5)}).items()
    ]
    return {"heads": rows}


def track() -> dict[str, Any]:
    shots = []
    for epoch, bend in ((1, 1.0), (2, 1.2), (5, 2.0), (10, 3.0)):
        points = []
        for fifth in range(6):
            for method, order in (("gradient", bend), ("random", 1.0)):
                left = 1 - (fifth / 5) ** order
                points.append({"method": method, "pruned": fifth / 5, "removed": None, "score": 0.9 * left})
                points[-1] |= {"low": 0.9 * left - 0.02, "high": 0.9 * left + 0.02, "relative": left}
        shots.append({"name": f"epoch-{epoch}", "base": 0.7 + 0.02 * epoch, "points": points, "advantage": bend / 10})
    agreed = {"with_last": [0.3, 0.7, 0.95], "with_next": [0.5, 0.8, 0.95]}
    return {"checkpoints": shots, "settled": "epoch-5", "settled_from": 0.9, **agreed}


def gates() -> dict[str, Any]:
    stages = []
    for price, left in ((0.05, 16), (0.1, 9)):
        notes = [
            {"step": step, "loss": 0.6 - 0.003 * step, "open": 24 - (24 - left) * step / 100, "lambda": price}
            for step in range(0, 101, 10)
        ]
        moved = -0.001 * (24 - left)
        stages.append({"name": f"lambda-{price}", "price": price, "left": left, "score": 0.9 + moved, "change": moved})
        stages[-1] |= {"low": moved - 0.01, "high": moved + 0.01, "decided": 0.96, "notes": notes}
    return {"removed": HEADS[:15], "left": 9, "before": 0.9, "after": 0.885, "stages": stages, "decided": 0.96}


def causal() -> dict[str, Any]:
    roles = ("facilitating", "irrelevant", "interfering")
    rows = []
    for place, head in enumerate(HEADS):
        scores = {role: 0.9 if number == place % 3 else 0.05 for number, role in enumerate(roles)}
        rows.append({"head": head, "role": roles[place % 3], **scores, "agreement": 1.0 if place % 2 else 0.6})
    return {"causal_roles": dict.fromkeys(roles, 8), "lambda": 0.01, "seeds": 5, "heads": rows, "remarks": []}


def evaluate() -> dict[str, Any]:
    return {"score": 0.898, "low": 0.87, "high": 0.92, "off": HEADS[:2], "base": 0.9, "change": -0.002, "p": 0.7}


RUNS = {
    "ablate": ablate, "importance": importance, "all-but-one": all_but_one, "curve": curve, "prune": prune,
    "bench": bench, "compare": compare, "roles": roles, "gates": gates, "track": track, "evaluate": evaluate,
    "causal": causal,
}  # fmt: skip


def run_json(name: str, model: str = "models/toy", metric: str = "accuracy", **more: Any) -> dict[str, Any]:
    """What such a command writes into `run.json`."""
    command = {"all-but-one": "ablate", "causal": "gates --causal"}.get(name, name)
    typed = [command, model, "--data", "dev data.tsv", "--out", name]
    return {
        "signature": {"command": command, **SIGNATURE},
        "arguments": {"model": model, "data": "data/dev data.tsv", "against": "data/other.tsv", "command_line": typed},
        "finished": True,
        "command": command,
        "model": model,
        "metric": metric,
        **METRICS[metric],
        "n": 400,
        **RUNS[name](),
        **more,
    }


def write(directory: Path, content: dict[str, Any]) -> Path:
    """A run directory that holds this."""
    (directory / "outcomes").mkdir(parents=True)
    (directory / "run.json").write_text(json.dumps(content), encoding="utf-8")
    return directory


def write_all(root: Path) -> list[Path]:
    """One run of every command, of one model."""
    return [write(root / name, run_json(name)) for name in RUNS]
