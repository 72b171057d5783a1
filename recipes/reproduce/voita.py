"""V19's results: relevance and confidence, roles, gates beside plain training, and what stays where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipes.reproduce.figures import Line, curves, file_name, metric_name, points, score, table
from recipes.reproduce.running import Results

from headcount.heads import Head
from headcount.stats import Correlation, correlation

PAPER = (
    "Voita, Talbot, Moiseev, Sennrich and Titov, *Analyzing Multi-Head Self-Attention: Specialized Heads Do the Heavy "
    "Lifting, the Rest Can Be Pruned*, ACL 2019, arXiv:1905.09418"
)
MARGIN = 1.0  # points: the loss that a pruned model is shown to stay within
BEATS = 0.1  # V19: a syntactic head beats the most frequent position by this
# What V19 published.
SYNTACTIC = {  # table 1: best head / baseline in percent, WMT and OpenSubtitles
    "nsubj head->dependent": ("45 / 35", "77 / 45"), "nsubj dependent->head": ("52 / 35", "70 / 45"),
    "obj head->dependent": ("78 / 41", "61 / 46"), "obj dependent->head": ("73 / 41", "84 / 46"),
    "amod head->dependent": ("74 / 72", "81 / 80"), "amod dependent->head": ("82 / 72", "81 / 80"),
    "advmod head->dependent": ("48 / 46", "38 / 33"), "advmod dependent->head": ("52 / 46", "42 / 33"),
}  # fmt: skip
RARE = {"rarest": ("", "66"), "two rarest": ("over 50", "83")}
ENCODER_ONLY = (("en-ru WMT", 10, 48, -0.15), ("en-ru OpenSubtitles", 4, 48, -0.25))  # figure 7: left, of, BLEU
ALL_KINDS = (  # table 2: heads left by kind, BLEU from the trained model, and from scratch
    ("WMT, whole 29.6", "14 / 31 / 30", "29.62", "29.47"), ("WMT", "12 / 21 / 25", "29.36", "28.95"),
    ("WMT", "8 / 13 / 15", "29.06", "28.56"), ("WMT", "5 / 9 / 12", "28.90", "28.41"),
    ("OpenSubtitles, whole 32.4", "27 / 31 / 46", "32.24", "32.23"),
    ("OpenSubtitles", "13 / 17 / 31", "32.23", "31.98"), ("OpenSubtitles", "6 / 9 / 13", "32.27", "31.84"),
)  # fmt: skip


def relevance(results: Results, figures: dict[str, str]) -> str:
    """Does the relevance of heads agree with their confidence (figures 1 and 2)?"""
    rows = []
    for name, run in results.of("relevance").items():
        other = results.of("confidence").get(name)
        if other is not None:
            overall, layers = agreement(run, other)
            cells = [f"{one.spearman:+.2f}{'*' * (one.spearman_p < 0.05)}" for one in layers]
            rows.append([name, run["n"], f"{overall.spearman:+.2f} (p {overall.spearman_p:.1g})", *cells])
    if not rows:
        return ""
    width = max(len(row) for row in rows) - 3
    body = table(["", "n", "encoder", *(f"layer {layer}" for layer in range(width))], rows)
    return (
        f"Spearman r over the encoder's heads, and within each layer (* p < 0.05):\n\n{body}\n\n"
        "V19 (figures 1 and 2, en-ru): relevance agrees with confidence to a reasonable extent; the one clear "
        "exception is the most relevant head of the first layer. With 8 heads in a layer, only |r| above 0.7 is "
        "significant."
    )


def agreement(run: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[Correlation, list[Correlation]]:
    """Relevance against confidence of encoder heads, of all of them and by layer."""
    there = {row["head"]: row["score"] for row in other["heads"]}
    pairs = [(Head.parse(row["head"]), row["score"], there[row["head"]]) for row in run["heads"]]
    pairs = [pair for pair in pairs if pair[0].kind == "encoder"]

    def of(some: list[tuple[Head, float, float]]) -> Correlation:
        return correlation([pair[1] for pair in some], [pair[2] for pair in some])

    layers = sorted({pair[0].layer for pair in pairs})
    return of(pairs), [of([pair for pair in pairs if pair[0].layer == layer]) for layer in layers]


def roles(results: Results, figures: dict[str, str]) -> str:
    """The best encoder head of every role beside V19's (table 1)."""
    said = []
    for name, run in results.of("roles").items():
        best = [row for row in run["best"] if Head.parse(row["head"]).kind == "encoder"]
        at_one = [row for row in best if row["role"] == "positional"]
        rows = []
        if at_one:
            top = max(at_one, key=lambda row: row["score"])
            rows.append(_role(top, f"position {top['detail']}", top["baseline"], 0.9, ("over 90", "over 90")))
        for row in best:
            if row["role"] == "syntactic":
                theirs = SYNTACTIC.get(row["detail"], ("", ""))
                rows.append(_role(row, row["detail"], row["baseline"], row["baseline"] + BEATS, theirs))
        for row in best:
            if row["role"] == "rare":
                rows.append(_role(row, row["detail"], row["baseline"], 0.5, RARE[row["detail"]]))
        columns = ["", "best head", "score, %", "baseline, %", "a role", "V19 WMT", "V19 OpenSubtitles"]
        said.append(f"{name}, {run['n']} sentences of English-EWT:\n\n{table(columns, rows)}\n\n{_counted_roles(run)}")
    if not said:
        return ""
    how = (
        "A role: shown if the whole 95% interval is above the threshold (90% for a position, 10 points above the most "
        "frequent position for a relation, 50% for rare words), refuted if it is below, else undecided. Scores of the "
        "best of many heads are optimistic. Frequencies of tokens are from the training data; "
        "equally rare tokens all count, for the baseline, too. "
        "V19 measures in its own domain, with a parser's dependencies; here the dependencies are gold, but of web "
        "texts, which a translator of captions has not seen."
    )
    return "\n\n".join([*said, how]) + not_computed(results, "roles")


def _role(row: Mapping[str, Any], what: str, baseline: float, least: float, theirs: tuple[str, str]) -> list[str]:
    interval = f"{100 * row['score']:.1f} ({100 * row['low']:.1f} to {100 * row['high']:.1f})"
    return [what, row["head"], interval, f"{100 * baseline:.1f}", decided(row["low"], row["high"], least), *theirs]


def decided(low: float, high: float, least: float) -> str:
    """
    >>> decided(0.5, 0.6, 0.4), decided(0.5, 0.6, 0.55), decided(0.5, 0.6, 0.7)
    ('shown', 'undecided', 'refuted')
    """
    return "shown" if low >= least else "refuted" if high < least else "undecided"


def _counted_roles(run: Mapping[str, Any]) -> str:
    found = roles_of(run)
    said = ", ".join(f"{len(heads)} {role}" for role, heads in found.items() if heads)
    return f"Encoder heads with a role (by their score): {said or 'none'}."


def roles_of(run: Mapping[str, Any]) -> dict[str, set[str]]:
    """The encoder heads of each role."""
    found: dict[str, set[str]] = {"positional": set(), "syntactic": set(), "rare": set(), "idle": set()}
    for row in run["heads"]:
        if Head.parse(row["head"]).kind == "encoder":
            found[row["role"]].add(row["head"])
    return found


def gates(results: Results, figures: dict[str, str]) -> str:
    """Independent runs of lambda beside plain training of the whole model (figure 7)."""
    rows, pictures = [], []
    for name, runs in results.runs.items():
        lines = []
        for kinds in ("encoder", "all"):
            found = gated(runs, kinds)
            plain = runs.get(f"control-{kinds}")
            if plain is not None:
                rows.append([
                    name, kinds, "control: no gates", "", score(plain["score"], plain), _interval(plain, plain), "",
                ])  # fmt: skip
            elif found:
                rows.append([name, kinds, "control: no gates", "", "not computed", "", ""])
            for price, run in found.items():
                stage = run["stages"][-1]
                other = beside_control(runs, kinds, price)
                rows.append([
                    name, kinds, price, f"{stage['left']} of {stage['of']}", score(stage["score"], run),
                    _interval(stage, run), "" if other is None else _interval(other, run),
                ])  # fmt: skip
            if found:
                dots = sorted((1 - s["left"] / s["of"], s["score"]) for s in (r["stages"][-1] for r in found.values()))
                run = next(iter(found.values()))
                lines.append(Line(kinds, [(0.0, run["before"]), *dots], 0 if kinds == "encoder" else 2))
        if lines:
            file = f"{file_name(name)}-gates.svg"
            figures[file] = curves(lines, metric_name(run))
            pictures.append(
                f"![{name}: {metric_name(run)} against the share of heads that gates removed](figures/{file})"
            )
    if not rows:
        return ""
    for where, left, of, change in ENCODER_ONLY:
        rows.append([f"*V19, {where}*", "encoder", "", f"{left} of {of}", "", f"{change:+.2f}", ""])
    columns = [
        "",
        "gates on",
        "lambda",
        "heads left",
        "score",
        "change from the whole model",
        "change from the control",
    ]
    sizes = results.sizes
    rates = {results.experiments[row[0]].gate_lr: row[0] for row in rows if row[0] in results.experiments}
    by_model = ", ".join(f"{rate} ({name})" for rate, name in rates.items())
    how = (
        f"Each lambda is a run of its own, from the same model: {sizes['gate_sentences']:,} training examples (a fixed "
        f"random sample), {sizes['gate_epochs']} epochs, batches of 256 tokens, learning rate {by_model} with warm-up "
        "and decay. Changes are in points with paired 95% intervals. The control trains the same weights on the same "
        "examples for as many epochs, without gates: what a gated model gains or loses by training alone. V19 trains "
        "its gates to convergence on all of its data. With gates on the encoder alone, the rest is frozen in both."
    )
    return f"{table(columns, rows)}\n\n{how}\n\n" + "\n".join(pictures)


def gated(runs: Mapping[str, Any], kinds: str) -> dict[str, Any]:
    """The runs of gates on these kinds, by lambda, the smallest first."""
    start = f"gates-{kinds}-"
    found = {name.removeprefix(start): run for name, run in runs.items() if name.startswith(start) and "stages" in run}
    return dict(sorted(found.items(), key=lambda one: float(one[0])))


def beside_control(runs: Mapping[str, Any], kinds: str, price: str) -> dict[str, float] | None:
    """The change of a gated model from the whole one that was trained as long without gates, if it was."""
    against = runs.get(f"control-{kinds}", {"against": {}})["against"]
    return next((one for run, one in against.items() if f"-gates-{kinds}-{price}-" in run), None)


def not_computed(results: Results, ending: str) -> str:
    """The experiments that could have a part whose name ends like this, and have none."""
    able = [name for name, one in results.experiments.items() if one.treebank]
    names = [name for name in able if not any(part.endswith(ending) for part in results.runs[name])]
    if not names:
        return ""
    how = f"`python -m recipes.reproduce --paper V19 --experiment {','.join(names)}` does it"
    return f"\n\nNot computed here for {', '.join(names)}: {how}."


def _interval(change: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    whole = {**run, "base": run.get("base", run.get("before"))}
    low, middle, high = (points(change[key], whole) for key in ("low", "change", "high"))
    return f"{middle} ({low} to {high})"


def functions(results: Results, figures: dict[str, str]) -> str:
    """Which roles the remaining heads have, measured again in each pruned model (figure 8)."""
    rows = []
    for name, runs in results.runs.items():
        if "roles" not in runs:
            continue
        whole = runs["roles"]
        if any(f"gates-{kinds}-{price}-roles" in runs for kinds in ("encoder", "all") for price in gated(runs, kinds)):
            rows.append([name, "whole model", "", *_cells(whole)])
        for kinds in ("encoder", "all"):
            for price, run in gated(runs, kinds).items():
                again = runs.get(f"gates-{kinds}-{price}-roles")
                if again is not None:
                    left = sum(n for site, n in run["left_by_site"].items() if site.startswith("encoder."))
                    rows.append([name, f"gates on {kinds}, lambda {price}", left, *_cells(again, left)])
    if not rows:
        return ""
    columns = ["", "model", "encoder heads left", "positional", "syntactic", "rare words", "idle", "without a role"]
    return (
        f"{table(columns, rows)}\n\nEncoder heads with each role, on the same sentences as above; the roles are "
        "measured again in the pruned model, not carried over. A head can have several. V19 (figure 8): the 17 heads "
        f"that remain of 48 still cover all roles.{not_computed(results, '-roles')}"
    )


def _cells(run: Mapping[str, Any], left: int | None = None) -> list[object]:
    found = roles_of(run)
    busy = len(set().union(*found.values()))
    return [*(len(heads) for heads in found.values()), "" if left is None else left - busy]


def layers(results: Results, figures: dict[str, str]) -> str:
    """Heads left per kind and layer (figures 9 and 10)."""
    rows = []
    for name, runs in results.runs.items():
        for price, run in gated(runs, "all").items():
            kinds: dict[str, list[int]] = {}
            for site, count in run["left_by_site"].items():
                kinds.setdefault(site.rpartition(".")[0], []).append(count)
            for kind, counts in kinds.items():
                rows.append([name, price, kind, sum(counts), " ".join(map(str, counts))])
    if not rows:
        return ""
    body = table(["", "lambda", "kind", "heads left", "by layer, first to last"], rows)
    return (
        f"{body}\n\nV19 (figures 9 and 10): the encoder loses the most heads, cross-attention the fewest; in the "
        "decoder, self-attention is kept longer in the first layers, cross-attention in the last ones. One run "
        "each: which heads stay also depends on the seed."
    )


def scratch(results: Results, figures: dict[str, str]) -> str:
    """The layouts that gates found, trained from random weights (table 2)."""
    rows = []
    for name, runs in results.runs.items():
        for kinds in ("encoder", "all"):
            for price, run in gated(runs, kinds).items():
                if run.get("from_scratch"):
                    other = run["from_scratch"]
                    change = f"{score(other['after'], run)} ({points(other['change'], run)}, {other['epochs']} epochs)"
                    rows.append([name, f"lambda {price}, {kinds}", score(run["after"], run), change])
    theirs = table(
        ["V19, en-ru", "heads left: encoder / decoder / cross", "BLEU, from the trained model", "from scratch"],
        [list(row) for row in ALL_KINDS],
    )
    if rows:
        return f"{table(['', 'gates', 'trained model', 'from scratch'], rows)}\n\n{theirs}"
    return (
        f"{theirs}\n\nNot computed here: from random weights, the layout needs the whole schedule on all 29,000 "
        "sentences (15 epochs, which the recipe reads beside the model), over an hour of one core. "
        "`python -m recipes.reproduce --paper V19 --gate-sentences 29000 --scratch 0.01` does it."
    )


V19_SECTIONS = {
    "Relevance and confidence (figures 1 and 2)": relevance,
    "What encoder heads do (table 1)": roles,
    "Fewer and fewer heads (figure 7)": gates,
    "What the remaining heads do (figure 8)": functions,
    "Where heads remain (figures 9 and 10)": layers,
    "The same layout from scratch (table 2)": scratch,
}


def v19(results: Results, figures: dict[str, str]) -> str:
    """All of V19's part of the page."""
    said = [
        f"The paper: {PAPER}. What differs: with gates on the encoder alone, V19 freezes the decoder, and here the "
        "embeddings are frozen, too; training is short; relevance gets its steps from the reference's tokens (at most "
        "16 of a sentence)."
    ]
    for title, section in V19_SECTIONS.items():
        said += [f"### {title}", section(results, figures) or "Not computed here."]
    return "\n\n".join(said)
