"""Compute M19's tables and figures for the models at hand, and write docs/results.md and its figures.

    python -m recipes.reproduce --models models             # everything: about two hours on one core
    python -m recipes.reproduce --only curve,speed --limit 200 --sentences 64

Each part is a run directory under `--out`, and the same command resumes where it stopped. The page names every model or
part that is missing; an incomplete page is written to `OUT/docs`, unless `--docs` says where.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from recipes.asking import count, counts, in_one_sentence, place
from recipes.reproduce.experiments import PARTS, placed, read_experiments
from recipes.reproduce.page import write_page
from recipes.reproduce.running import Results, run_part
from recipes.reproduce.speed import speed

from headcount.errors import HeadcountError, unknown

ROOT = Path(__file__).resolve().parent.parent.parent


def main(args: Sequence[str] | None = None) -> None:
    options = arguments(args)
    experiments = read_experiments(options.experiments)
    only = chosen("part", options.only, [*(part.name for part in PARTS), "speed"])
    names = chosen("experiment", options.experiment, [one.name for one in experiments])
    shared, out = Path(options.shared), place(options.out)
    if not (shared / "data").is_dir():
        raise HeadcountError(f"there is no directory {shared / 'data'}; set --shared or HEADCOUNT_SHARED")
    models = [Path(options.models), shared / "models"]
    results = Results()
    for wanted in experiments:
        one = placed(wanted, shared / "data", models)
        results.add_experiment(wanted, found=one is not None)
        for part in PARTS if one is not None else ():
            if part.wanted(one):
                compute = wanted.name in names and part.name in only and not options.write
                limit = part.times * options.sentences if one.translates else options.limit
                results.add(wanted, part, run_part(out, one, part, limit, compute))
    sizes = {"num_hidden_layers": options.bench_layers} if options.bench_layers else {}
    compute = "speed" in only and not options.write and not options.experiment
    results.speed = speed(out, options.batch, options.rounds, compute, **sizes)
    whole = not results.missing and results.speed is not None
    write_page(results, place(options.docs or (ROOT / "docs" if whole else out / "docs")))


def chosen(what: str, given: str | None, known: list[str]) -> list[str]:
    """The given names, or all of them; an unknown one is refused."""
    names = given.split(",") if given else known
    for name in names:
        if name not in known:
            raise HeadcountError(unknown(what, name, known))
    return names


def arguments(args: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m recipes.reproduce", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shared = os.environ.get("HEADCOUNT_SHARED") or str(ROOT.parent / "shared")
    parser.add_argument("--shared", default=shared, help="has data/ and models/; default HEADCOUNT_SHARED")
    parser.add_argument("--models", default="models", help="models made by the recipes: cola, mrpc, en-de")
    parser.add_argument("--experiments", help="a JSON list of other experiments; fields as in experiments.py")
    parser.add_argument("--out", default="reproduce", help="run directories")
    parser.add_argument("--docs", help="where to write results.md and figures/; default docs/ if nothing is missing")
    parser.add_argument("--only", help="some parts: " + ",".join([*(part.name for part in PARTS), "speed"]))
    parser.add_argument("--experiment", help="some experiments: SST-2,CoLA…")
    parser.add_argument("--limit", type=count(), default=872, help="texts to classify")
    parser.add_argument(
        "--sentences",
        type=count(),
        default=200,
        help="sentences to translate; five times as many with one head off",
    )
    parser.add_argument("--batch", type=counts, default="1,4,16", help="batch sizes of the speed test")
    parser.add_argument("--rounds", type=count(2), default=7, help="of the speed test")
    parser.add_argument("--bench-layers", type=count(), help="a smaller model in the speed test")
    parser.add_argument("--write", action="store_true", help="compute nothing, write the page from finished runs")
    return parser.parse_args(args)


if __name__ == "__main__":
    in_one_sentence(main)
