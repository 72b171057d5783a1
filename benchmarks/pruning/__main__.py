"""Test score against FLOPs and measured speed: headcount beside Kwon et al. 2022 and TextPruner, without training.

    python -m benchmarks.pruning --models DIR --out RESULTS --data sst2,mrpc,cola,snli,translator \\
        --speedups 1.25,1.5,2,2.4,3 --methods heads,neurons,ours,kwon,textpruner

DIR has the models mrpc, cola and snli, made by recipes/finetune.py. Units are scored and calibrated on training data;
the test data only judges, and nothing is chosen on it. Cuts are compared by their scores, and by how far their
predictions on the test data are from the whole model's (Kullback-Leibler divergence), which tells apart cuts that score
alike.

Every part (a data set, a method, a speed) is kept in RESULTS: the same command resumes, and prints and writes the table
(table.md, table.json) of all parts that are there. With --retime, the speed of these parts is measured again, if the
machine was busy before. TextPruner runs in an environment of its own: see benchmarks/pruning/textpruner.py.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.pruning import textpruner
from benchmarks.pruning.data import JOBS, Data, read, where
from benchmarks.pruning.judge import Difference, difference, pooled
from benchmarks.pruning.methods import BASELINES, METHODS, OURS, maker
from benchmarks.pruning.parts import MEASURES, WHOLE, Parts, Timing, metrics
from benchmarks.pruning.show import tables
from headcount.errors import HeadcountError
from headcount.files import to_json, write_whole


def main(args: Sequence[str] | None = None) -> None:
    options = arguments(args)
    torch.set_num_threads(options.threads)
    results: dict[str, Any] = {"data": [], "versus": []}
    compared: dict[tuple[str, str], dict[str, dict[str, Difference]]] = {
        pair: {} for pair in product(BASELINES, MEASURES)
    }
    for key in options.data:
        if where(key, options.models) is None:
            print(f"# {key} is left out: recipes/finetune.py makes its model", flush=True)
            continue
        data = read(key, options.models, examples=options.examples, limit=options.limit, seed=options.seed)
        found = measured(data, options)
        results["data"].append(rows(data, found, options))
        for method, measure in compared:
            if one := against(method, measure, data, found, options.speedups):
                compared[method, measure][data.name] = one
        del data, found
        gc.collect()
    results["versus"] = [compare(*pair, by_data, options.speedups) for pair, by_data in compared.items() if by_data]
    text = tables(results)
    write_whole(options.out / "table.md", text.encode())
    write_whole(options.out / "table.json", to_json(results).encode())
    print(text)


def measured(data: Data, options: argparse.Namespace) -> dict[tuple[str, float], dict[str, Any]]:
    """Every part of one data set: read, or measured now."""
    parts = Parts(data, options.out, Timing(options.clock, options.threads, options.rounds))
    found = {(WHOLE, 1.0): parts.read(WHOLE, 1) or parts.measure(WHOLE, 1, lambda ratio: data.model)}
    for method in options.methods:
        make = None
        for ratio in options.speedups:
            if options.retime:
                parts.retime(method, ratio)
            part = parts.read(method, ratio)
            if part is None:
                if method == "textpruner" and textpruner.written(data, options.out, ratio) is None:
                    print(f"# TextPruner has not been run on {data.key} at {ratio:g}", flush=True)
                    continue
                make = make or maker(method, data, options.out, **({"step": options.step} if options.step else {}))
                part = parts.measure(method, ratio, make)
                print(f"# {data.key}, {method}, {ratio:g}: {part.get('score', part.get('remark'))}", flush=True)
            found[method, ratio] = part
    return found


def rows(data: Data, found: dict[tuple[str, float], dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    """One data set of the table: by speed, then by method, each with its change from the whole model."""
    metric, whole = data.test.metric, found[WHOLE, 1.0]
    before = whole["measures"]["score"]
    listed = []
    for ratio in options.speedups:
        for method in options.methods:
            row = dict(found.get((method, ratio), {}))
            if "score" in row:
                after = row.pop("measures")["score"]
                row["change"] = asdict(difference([before], [after], metric, whole["score"]))
            if row:
                listed.append(row)
    plain = {name: value for name, value in whole.items() if name != "measures"}
    return {"name": data.name, "whole": plain, "rows": listed}


def against(
    method: str,
    measure: str,
    data: Data,
    found: dict[tuple[str, float], dict[str, Any]],
    speedups: Sequence[float],
) -> dict[str, Difference]:
    """Ours against a baseline by one measure, at every speed that both reached, and in the mean over these speeds."""
    both = [ratio for ratio in speedups if all("score" in found.get((one, ratio), {}) for one in (OURS, method))]
    if not both:
        return {}
    theirs, ours = ([found[one, ratio]["measures"][measure] for ratio in both] for one in (method, OURS))
    metric, base = metrics(data)[measure], found[WHOLE, 1.0][measure]
    each = {f"{ratio:g}": difference([a], [b], metric, base) for ratio, a, b in zip(both, theirs, ours, strict=True)}
    return {**each, "mean": difference(theirs, ours, metric, base)}


def compare(
    method: str, measure: str, by_data: dict[str, dict[str, Difference]], speedups: Sequence[float]
) -> dict[str, Any]:
    """Pooled over data sets: at each speed, and for the mean of the speeds, whose tests are not independent."""
    together = {}
    for speed in [*(f"{ratio:g}" for ratio in speedups), "mean"]:
        if tests := [found[speed] for found in by_data.values() if speed in found]:
            together[speed] = asdict(pooled(tests))
    data = {name: {speed: asdict(one) for speed, one in found.items()} for name, found in by_data.items()}
    what = {"method": OURS, "against": method, "by": measure}
    return {**what, "speeds": list(speedups), "data": data, "pooled": together}


def arguments(args: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, help="directory with the models mrpc, cola and snli")
    parser.add_argument("--out", type=Path, required=True, help="directory of the results")
    parser.add_argument("--data", type=names(JOBS), default=list(JOBS), help=",".join(JOBS))
    usual = [method for method in METHODS if method != "kwon-clip"]
    parser.add_argument("--methods", type=names(METHODS), default=usual, help=",".join(METHODS))
    parser.add_argument("--speedups", type=ratios, default=[1.25, 1.5, 2, 2.4, 3], help="how many times fewer FLOPs")
    parser.add_argument("--examples", type=int, default=2048, help="training examples to score and calibrate on")
    parser.add_argument("--limit", type=int, help="at most this many test examples, to try it out")
    parser.add_argument("--step", type=float, help="of headcount's searches, if not the usual one; take another --out")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: on a machine with other users")
    parser.add_argument("--retime", action="store_true", help="measure the speed of finished parts again")
    parser.add_argument("--rounds", type=int, default=9, help="of timing")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(args)


def names(known: Any) -> Any:
    """Names with commas between them, each one known."""

    def read_names(text: str) -> list[str]:
        given = text.split(",")
        for name in given:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
        return given

    return read_names


def ratios(text: str) -> list[float]:
    values = [float(part) for part in text.split(",")]
    if min(values) <= 1:
        raise argparse.ArgumentTypeError(f"each must be above 1, not {min(values):g}")
    return values


if __name__ == "__main__":
    try:
        main()
    except HeadcountError as error:
        sys.exit(f"error: {error}")
