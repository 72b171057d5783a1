"""Write docs/results.md and its figures; every number comes from a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from recipes.reproduce.ablation import all_but_one, domains, one_head
from recipes.reproduce.claims import claims
from recipes.reproduce.figures import metric_name, score, table
from recipes.reproduce.pruning import beams, dynamics, kinds, orders, scored
from recipes.reproduce.running import Results
from recipes.reproduce.speed import speed_table
from recipes.reproduce.voita import v19

from headcount.files import write_whole
from headcount.runs import versions

PAPER = "Michel, Levy and Neubig, *Are Sixteen Heads Really Better than One?*, NeurIPS 2019, arXiv:1905.10650"
Section = Callable[[Results, dict[str, str]], str]
SECTIONS: dict[str, tuple[str, Section]] = {
    "One head off (table 1, figure 1)": ("ablate", one_head),
    "All but one head off, layer by layer (tables 2 and 3; 5 and 6)": ("alone", all_but_one),
    "Other data (figure 2)": ("other", domains),
    "Pruning in three orders (figures 3 and 6)": ("curve", orders),
    "How many examples to score heads on": ("scored", scored),
    "Beam search": ("beam", beams),
    "Kinds of attention (figure 4)": ("kinds", kinds),
    "During training (figure 5)": ("track", dynamics),
    "Speed (table 4)": ("speed", speed_table),
}
NOTES = {
    "ablate": "p: exact McNemar for accuracy, two-sided paired bootstrap otherwise. M19: t-test for accuracy; for BLEU "
    "compare-mt's paired bootstrap, which is one-sided (the share of 1,000 samples of half of the sentences in which "
    "the better system does not win) and has a column of its own. M19 does not correct for testing many heads, so both "
    "counts are given.",
    "alone": "Changes in points by layer, first to last; * p < 0.01. A head that is chosen as the best of many on the "
    "data it is tested on looks better than it is; the second column is the honest one.",
    "other": "Effects of turning off each head, correlated over heads. Pearson's r follows the few heads with large "
    "effects, Spearman's all heads alike. The interval is of a bootstrap over the sentences of both data sets, whose "
    "own noise pulls r towards 0. Reliability, of either data set: r between the effects on two halves of its "
    "sentences, stepped up to all of them (Spearman and Brown); where it is low, r says little about the heads.",
}


def write_page(results: Results, docs: Path) -> None:
    """Write the page and its figures; figures of an earlier page are replaced, other files are left alone."""
    figures: dict[str, str] = {}
    parts = [HEAD.format(paper=PAPER), "## Claims", claims(results), "## What was measured", _models(results)]
    parts += ["## Which of the papers' data is not here", table(["paper", "its data or model", "here"], STAND_INS)]
    for title, (part, section) in SECTIONS.items():
        there = results.speed if part == "speed" else any(name.startswith(part) for name in results.parts)
        body = section(results, figures) if there else "Not computed here."
        parts += [f"## {title}", *([NOTES[part]] if part in NOTES else []), body]
    parts += ["## V19", v19(results, figures)]
    if results.missing:
        parts += ["## Not computed yet", _missing(results.missing)]
    parts.append(DIFFERENCES + "\n\n" + ", ".join(f"{name} {number}" for name, number in versions().items()) + ".")
    (docs / "figures").mkdir(parents=True, exist_ok=True)
    for file, picture in figures.items():
        write_whole(docs / "figures" / file, picture.encode())
    write_whole(docs / "results.md", ("\n\n".join(part.strip() for part in parts) + "\n").encode())
    print(f"wrote {docs / 'results.md'} and {len(figures)} figures; {len(results.missing)} parts are missing")


def _missing(sentences: list[str]) -> str:
    """One item for each experiment.

    >>> print(_missing(["CoLA: curves not computed yet", "SST-2: no model", "CoLA: one head off not computed yet"]))
    - CoLA: curves, one head off
    - SST-2: no model
    """
    by_name: dict[str, list[str]] = {}
    for sentence in sentences:
        name, _, what = sentence.partition(": ")
        by_name.setdefault(name, []).append(what.removesuffix(" not computed yet"))
    return "\n".join(f"- {name}: {', '.join(what)}" for name, what in by_name.items())


def _models(results: Results) -> str:
    rows = []
    for name, runs in results.runs.items():
        first = next(iter(runs.values()), None)
        if first is not None:
            base = first.get("base", first["checkpoints"][-1]["base"] if "checkpoints" in first else None)
            said = "" if base is None else f"{metric_name(first)} {score(base, first)}"
            one = results.experiments[name]
            sizes = ", ".join(f"{part} {run['n']}" for part, run in runs.items())
            scored = next((run["signature"]["tasks"][0]["n"] for run in runs.values() if "curves" in run), "")
            rows.append([name, f"`{one.model}`", f"`{one.data}`", f"`{one.score}`", scored, said, sizes])
    return table(["", "model", "tested on", "heads scored on", "scored", "score", "examples"], rows)


HEAD = """# Results

M19's and V19's tables and figures, computed by headcount on models that train on two cores, beside the published ones.
`python -m recipes.reproduce` writes this page and its figures; V19 has a [part of its own](#v19), a language model a
[page of its own](results-language-model.md). M19: {paper}."""

STAND_INS = (  # paper, its data or model, what is used here
    (
        "M19", "WMT14 en-fr, newstest, 3,000 sentences; Transformer-big, 6 + 6 layers of 16 heads",
        "Multi30k en-fr and en-de, 1,014 and 1,000 captions; a Marian layout, 6 + 6 layers of 8 heads of 16 dimensions",
    ),
    (
        "M19", "MNLI; BERT-base, 12 layers of 12 heads",
        "SST-2, CoLA and MRPC; a MiniLM, 6 layers of 12 heads of 32 dimensions, fine-tuned. SST-2 and SNLI on "
        "MPNet-base, 12 layers of 12 heads of 64 dimensions, as BERT-base, fine-tuned (`base`)",
    ),
    (
        "M19", "MTNT, MNLI mismatched, out of domain", "Multi30k's MSCOCO test set; CoLA's out-of-domain dev set; "
        "MultiNLI's matched set and sentences of its five mismatched genres (from XNLI), for a model trained on SNLI",
    ),
    ("M19", "IWSLT14 de-en, for training dynamics", "checkpoints of the two Multi30k translators"),
    (
        "V19", "WMT and OpenSubtitles en-ru; Transformer-base, 6 + 6 layers of 8 heads",
        "Multi30k en-fr, with as many layers and heads, of 16 dimensions instead of 64",
    ),
    ("V19", "a parser's dependencies in the domain of the model", "gold dependencies of English-EWT, web texts"),
)  # fmt: skip

DIFFERENCES = """## Where our experiments differ from the paper's

- **Models.** M19: Transformer-big, 6 + 6 layers of 16 heads, and BERT-base, 12 layers of 12. Here: a Marian layout with
  6 + 6 layers of 8 heads of 16 dimensions, trained on 29,000 captions, and a 6-layer MiniLM with 12 heads of 32
  dimensions, fine-tuned. A head is a larger part of a smaller model.
- **Data.** Multi30k instead of WMT14 and IWSLT14, its MSCOCO test set instead of MTNT; CoLA's two dev sets instead of
  MNLI's. Random samples of the sizes in the table above, so intervals are wider than in the paper. CoLA has some
  sentences of its dev set in its training set too; they were left there.
- **English-French** is tested on the validation set, on which the given model's epochs were monitored; its test set is
  not available.
- **Importance** is M19's equation 2 as written, the absolute value per example; the authors' code takes it per token.
- **Decoding** is greedy, but where beams are named; M19 uses beam search.
- **Pruned models** are smaller: heads are removed, not masked, at every point of every curve."""
