"""Compute M19's and V19's tables and figures for the models at hand, and write docs/results.md and its figures.

    python -m recipes.reproduce --models models             # everything
    python -m recipes.reproduce --forecast                  # only say how long that takes here
    python -m recipes.reproduce --only curve,speed --limit 200 --sentences 64
    python -m recipes.reproduce --paper M19 --experiment "SST-2 base" --base-limit 300
    python -m recipes.reproduce --paper V19 --gate-sentences 29000 --scratch 0.01

Before it computes, it says how long each part will take here (`headcount … --dry-run`). Each part is a run directory
under `--out`, and the same command resumes where it stopped. With `--records docs/records`, finished parts are kept
there as small files, too, so that the page can be computed part by part, on several machines. The page names every
model or part that is missing; an incomplete page is written to `OUT/docs`, unless `--docs` says where.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from recipes.asking import count, counts, in_one_sentence, place
from recipes.reproduce.experiments import PARTS, Experiment, Part, placed, read_experiments
from recipes.reproduce.page import write_page
from recipes.reproduce.records import Records
from recipes.reproduce.resampling import resample
from recipes.reproduce.running import Results, directory_of, forecast, run_part
from recipes.reproduce.speed import speed
from recipes.reproduce.voita_parts import KINDS, control, control_part, gates_name, has_gates, voita_parts

from headcount.errors import HeadcountError, unknown

ROOT = Path(__file__).resolve().parent.parent.parent


def main(args: Sequence[str] | None = None) -> None:
    options = arguments(args)
    experiments = read_experiments(options.experiments)
    shared, out = Path(options.shared), place(options.out)
    parts = {"M19": PARTS, "V19": voita_parts(options, out)}
    asked = Asked(
        chosen("part", options.only, [*(part.name for some in parts.values() for part in some), "control", "speed"]),
        chosen("experiment", options.experiment, [one.name for one in experiments]),
        chosen("paper", options.paper, list(parts)),
        write=options.write,
    )
    if not (shared / "data").is_dir():
        raise HeadcountError(f"there is no directory {shared / 'data'}; set --shared or HEADCOUNT_SHARED")
    records = Records(place(options.records) if options.records else None)
    results, work = Results(sizes=vars(options)), list[Work]()
    models = {one: placed(one, shared / "data", [Path(options.models), shared / "models"]) for one in experiments}
    for wanted, one in models.items():
        results.add_experiment(wanted)
        for paper, part in ((paper, part) for paper, some in parts.items() for part in some):
            if part.wanted(wanted) and (paper == "V19" or not wanted.only or part.name in wanted.only):
                limit = _limit(part, wanted, options)
                if (run := records.read(wanted, part, limit, one)) is not None:
                    results.add(wanted, part, run)
                elif one is not None:
                    work.append(Work(wanted, one, part, limit, asked.to_compute(wanted, part.name, paper)))
        if one is None and not results.runs[wanted.name]:
            results.miss_model(wanted)
    computed = [each for each in work if each.compute]
    if computed and not options.no_forecast:
        named = (("V19", "control"), ("M19", "speed"))
        untried = [name for paper, name in named if asked.to_compute(None, name, paper)]
        forecast(out, [(each.one, each.part, each.limit) for each in computed], untried)
    if options.forecast:
        return
    for wanted, one in models.items():  # each is recorded as soon as it is finished
        own = [each for each in work if each.wanted == wanted]
        for each in own:
            results.add(wanted, each.part, run_part(out, each.one, each.part, each.limit, each.compute))
        for kinds in (kinds for kinds in KINDS if has_gates(kinds)(wanted)):
            part, limit = control_part(kinds, options), options.gate_sentences
            if (run := records.read(wanted, part, limit, one)) is not None:
                results.add(wanted, part, run)
            elif one is not None:
                names = [gates_name(kinds, price) for price in options.prices]
                gated = [directory_of(out, one, gates, limit)[0] for gates in parts["V19"] if gates.name in names]
                left = [str(path / "model") for path in gated if (path / "model").is_dir()]
                compute = asked.to_compute(wanted, "control", "V19")
                results.add(wanted, part, control(out, one, kinds, options, left, compute))
                own.append(Work(wanted, one, part, limit, compute))
        resample(results.runs[wanted.name], wanted.translates)
        for each in own:
            run = results.runs[wanted.name].get(each.part.name)
            if run is not None:
                records.keep(wanted, each.part, each.limit, run)
    base = next((one.model for one in models.values() if one is not None and one.base), None)
    compute = asked.to_compute(None, "speed", "M19") and not options.experiment
    sizes = {"num_hidden_layers": options.bench_layers} if options.bench_layers else {}
    timed = ["bench", *map(str, options.batch), "--rounds", str(options.rounds), *sizes]
    results.speed = records.take("speed", timed) or speed(out, options.batch, options.rounds, compute, base, **sizes)
    if results.speed is not None:
        records.put("speed", timed, results.speed)
    whole = not results.missing and results.speed is not None
    write_page(results, place(options.docs or (ROOT / "docs" if whole else out / "docs")))


class Work(NamedTuple):
    """A part that is not recorded. wanted, one: the experiment as declared, and with its real paths."""

    wanted: Experiment
    one: Experiment
    part: Part
    limit: int
    compute: bool


class Asked(NamedTuple):
    """What the command line names."""

    parts: list[str]
    experiments: list[str]
    papers: list[str]
    write: bool

    def to_compute(self, one: Experiment | None, part: str, paper: str) -> bool:
        named = one is None or one.name in self.experiments
        return named and part in self.parts and paper in self.papers and not self.write


def _limit(part: Part, one: Experiment, options: argparse.Namespace) -> int:
    """How many examples a part takes."""
    if part.size:
        return int(getattr(options, part.size))
    if one.limit:
        return one.limit
    return int(options.sentences if one.translates else options.base_limit if one.base else options.limit)


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
    parser.add_argument("--models", default="models", help="models made by the recipes: cola, en-de…")
    parser.add_argument("--experiments", help="a JSON list of other experiments; fields as in experiments.py")
    parser.add_argument("--out", default="reproduce", help="run directories")
    parser.add_argument(
        "--records", help="take finished parts from these small files, and keep them there: docs/records"
    )
    parser.add_argument("--docs", help="where to write results.md and figures/; default docs/ if nothing is missing")
    parser.add_argument(
        "--only",
        help=f"some parts: {','.join(part.name for part in PARTS)},speed; of V19 relevance,confidence,roles,control, "
        "gates-encoder-0.01 and others by lambda, and gates-encoder-0.01-roles",
    )
    parser.add_argument("--paper", help="M19 or V19; default both")
    parser.add_argument("--experiment", help="some experiments: SST-2,CoLA…")
    parser.add_argument("--limit", type=count(), default=872, help="texts to classify")
    parser.add_argument(
        "--sentences",
        type=count(),
        default=1014,
        help="sentences to translate; the test sets have 1,014 and 1,000",
    )
    parser.add_argument("--track-sentences", type=count(), default=200, help="for every checkpoint of a training")
    parser.add_argument(
        "--base-limit", type=count(), default=500, help="texts that models of BERT-base's size classify"
    )
    parser.add_argument("--batch", type=counts, default="1,4,16", help="batch sizes of the speed test")
    parser.add_argument("--rounds", type=count(2), default=7, help="of the speed test")
    parser.add_argument("--bench-layers", type=count(), help="a smaller model in the speed test")
    parser.add_argument(
        "--prices", type=lambda text: text.split(","), default=["0.001", "0.003", "0.01"], help="lambdas of V19's gates"
    )
    parser.add_argument("--gate-sentences", type=count(), default=2000, help="training examples of the gates")
    parser.add_argument("--gate-epochs", type=count(), default=2)
    parser.add_argument("--scratch", help="a lambda; its layout is trained from random weights too (V19 table 2)")
    parser.add_argument("--relevance-sentences", type=count(), default=200, help="for relevance and confidence")
    parser.add_argument("--role-sentences", type=count(), default=300, help="of the treebank")
    parser.add_argument("--forecast", action="store_true", help="say how long it will take, and stop")
    parser.add_argument("--no-forecast", action="store_true", help="begin at once")
    parser.add_argument("--write", action="store_true", help="compute nothing, write the page from finished runs")
    return parser.parse_args(args)


if __name__ == "__main__":
    in_one_sentence(main)
