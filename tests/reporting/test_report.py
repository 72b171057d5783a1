"""`report`: what is put together, what is marked, what is refused; whatever is in the runs stays text."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html import unescape

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import made_up_runs as made_up
import page_reading as reading
import toy_jobs
from headcount import (
    Head,
    HeadcountError,
    Scores,
    ablate_all_but_one,
    ablate_each,
    benchmark,
    compare,
    importance,
    prune,
    pruning_curve,
    report,
)  # fmt: skip
from headcount.reporting.page import html
from headcount.reporting.runs import read
from headcount.tasks import metrics

NASTY = "</title></script><img src=x onerror=alert(1)><b>'\"&\u2028\u202e\x00\ud800"


def page_of(*contents):
    return html([read(content) for content in contents])


def test_one_run_of_every_command_in_one_page(tmp_path):
    runs = made_up.write_all(tmp_path)
    written = report(runs, tmp_path / "report.html")
    assert written == tmp_path / "report.html"
    page = written.read_text(encoding="utf-8")
    titles = [reading.said(title) for title in reading.tree(page).iter("h2")]
    assert titles == [
        *("Which heads matter", "One head per layer", "How many heads can be removed", "Layers before and after"),
        *("Speed", "The same heads on other data", "Roles", "Gate training", "Causal head gating"),
        *("During training", "Evaluations"),
        "Where the numbers come from",
    ]
    assert "headcount ablate models/toy --data 'dev data.tsv' --out ablate" in reading.said(reading.tree(page))
    assert len(page) < 200_000


def test_the_headline_claims_what_was_shown_and_no_more():
    def headline(*contents):
        return reading.said(next(reading.tree(page_of(*contents)).iter("h1")))

    prune, bench = made_up.run_json("prune"), made_up.run_json("bench")
    claim = "10 of 24 heads removed, accuracy 0.9000 → 0.8980"
    proven = f"{claim}, non-inferior (drop \u2264 0.5 points)"
    assert headline(prune) == f"{proven}, 21% faster"
    assert headline(prune, bench) == f"{proven}, 21% faster at batch 16"
    sure = {**bench, "rows": bench["rows"][1:]}
    assert headline(prune, sure) == f"{proven}, 12% to 21% faster"
    noisy = {**bench, "rows": [*bench["rows"][:2], {**bench["rows"][2], "low": 0.97}]}
    assert headline(prune, noisy) == f"{proven}, 12% faster at batch 4"
    assert headline(prune, {**bench, "rows": bench["rows"][:1]}) == proven
    assert headline({**prune, "speed": {**prune["speed"], "low": 0.98}}) == proven
    assert headline({**prune, "noninferior": False, "speed": None}) == claim
    elsewhere = {**bench, "pruned": "other/model"}
    assert headline({**prune, "speed": None}, elsewhere) == proven
    assert headline(made_up.run_json("ablate")) == "2 of 24 heads matter on their own"


def test_a_cut_with_neurons_claims_its_speed_first():
    def page(*contents):
        return reading.tree(page_of(*contents))

    def headline(*contents):
        return reading.said(next(page(*contents).iter("h1")))

    cut, bench = made_up.run_json("prune", **made_up.with_neurons()), made_up.run_json("bench")
    proven = "accuracy 0.9000 \u2192 0.8980, non-inferior (drop \u2264 0.5 points)"
    removed = "10 of 24 heads and 112 of 256 neurons removed"
    assert headline(cut) == f"2.10 times as fast, {proven}: {removed}"
    assert headline(cut, {**bench, "rows": bench["rows"][1:]}) == f"1.12 to 1.21 times as fast, {proven}: {removed}"
    assert headline(cut, bench) == f"1.21 times as fast at batch 16, {proven}: {removed}"
    assert headline({**cut, "noninferior": False}).startswith("2.10 times as fast, accuracy 0.9000 \u2192 0.8980: ")
    unsure = {**cut, "speed": {**cut["speed"], "low": 0.98}}
    assert headline(unsure).startswith("2.50 times fewer FLOPs, accuracy")
    tiles = [reading.said(part) for part in page(cut).iter("li") if part.find("b") is not None]
    assert tiles[0].startswith("2.10\u00d7")
    for fact in ("10 of 24", "112 of 256", "\u221260.0%FLOPs: 2.50 times fewer"):
        assert any(tile.startswith(fact) for tile in tiles), fact
    only = {**cut, "removed": [name for name in cut["removed"] if "_ffn" in name], "left": 24, "kept": made_up.HEADS}
    assert headline(only).endswith(": 112 of 256 neurons removed")
    assert not reading.charts(page_of(only), "remaining heads")


def test_neurons_are_kept_apart_from_heads():
    run = read(made_up.run_json("prune", **made_up.with_neurons()))
    assert [str(head) for head in run.listed("removed")] == made_up.REMOVED
    assert (run.total_heads, run.removed_neurons, run.total_neurons) == (24, 112, 256)
    assert [(width.before, width.left) for width in run.widths] == [(64, 56), (64, 24), (64, 64), (64, 0)]
    twice = made_up.with_neurons()
    twice["sites"] = [{**row, "of": 100} if "_ffn" in row["kind"] else row for row in twice["sites"]]
    again = read(made_up.run_json("prune", **twice))  # 36 of 100 were gone before this run
    assert again.total_neurons == 256
    old = read(made_up.run_json("prune"))
    assert (old.widths, old.removed_neurons, old.is_for_speed) == ([], 0, False)


def test_the_headline_shows_the_verdict_as_the_run_words_it():
    def lead(**more):
        page = reading.tree(page_of(made_up.run_json("prune", **more)))
        (found,) = [reading.said(part) for part in page.iter("p") if part.get("class") == "lead"]
        return found

    said = made_up.run_json("prune")["verdict"]
    assert said in lead()
    other = "Not shown to be non-inferior: rise \u2264 2%."
    assert other in lead(noninferior=False, verdict=other)
    assert said not in lead(noninferior=False, verdict=other)
    assert "on-inferior" not in lead(verdict=None)


def test_the_tile_of_the_verdict_names_the_budget_in_the_direction_of_the_metric():
    def tiles(**more):
        page = reading.tree(page_of(made_up.run_json("prune", **more)))
        return [reading.said(part) for part in page.iter("li") if part.get("class") in ("good", "bad")]

    for more, limit in (
        ({}, "drop \u2264 0.5 points, 95% confidence"),
        ({"metric": "bleu", "max_drop": 1}, "drop \u2264 1 point, 95% confidence"),
        ({"metric": "perplexity", "max_drop": 2, "before": 20.0}, "rise \u2264 2%, 95% confidence"),
        ({"metric": "word_errors"}, "rise \u2264 0.5 points, 95% confidence"),
    ):
        (shown,), (missed,) = tiles(**more), tiles(noninferior=False, **more)
        assert (limit in shown, limit in missed, "Not shown" in missed) == (True, True, True), (shown, missed)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ablate", "2 of 24 heads matter on their own"),
        ("importance", "encoder.3.1 is the most important of 24 heads"),
        ("all-but-one", "3 of 4 layers show no significant loss with one head each"),
        ("curve", "No significant loss of accuracy with 29% of the heads removed (gradient)"),
        ("bench", "21% faster at batch 16"),
        ("roles", "6 heads have a role"),
        ("track", "The order of heads settled at epoch-5"),
        ("compare", "Effects of heads on two data sets: Pearson r 0.83"),
        ("evaluate", "Accuracy 0.8980 on 400 examples from dev data.tsv"),
    ],
)
def test_every_run_alone_has_something_to_say_at_the_top(name, words):
    page = html([read(made_up.run_json(name))])
    assert [reading.said(title) for title in reading.tree(page).iter("h1")] == [words]


def test_a_curve_of_one_kind_speaks_of_that_kind_at_the_top():
    content = made_up.run_json("curve")
    content["curves"] = [{**one, "kind": "encoder"} for one in content["curves"]]
    assert "No significant loss of accuracy with 29% of the encoder heads removed (gradient)</h1>" in page_of(content)


def test_the_page_has_the_line_that_loads_what_is_left():
    prune = made_up.run_json("prune")
    lines = [reading.said(one) for one in reading.tree(page_of(prune)).iter("pre")]
    assert lines[0] == "import headcount; model = headcount.load('small/model')"
    assert "headcount.load" not in page_of({**prune, "path": None})


def test_runs_of_one_model_go_together_and_others_apart():
    other = made_up.run_json("ablate", model="other")
    other["signature"] = {**other["signature"], "model": {"fingerprint": "ffff"}}
    moved = made_up.run_json("importance", model="somewhere/else")  # the same weights under another name
    unsigned = {"command": "evaluate", "model": "other", "score": 0.5}
    articles = list(reading.tree(page_of(made_up.run_json("ablate"), other, moved, unsigned)).iter("article"))
    assert [len(list(article.iter("h1"))) for article in articles] == [1, 1]
    assert "Importance (gradient)" in reading.said(articles[0])
    assert "Importance (gradient)" not in reading.said(articles[1])
    assert "Evaluations" in reading.said(articles[1])


def test_an_unfinished_run_is_shown_and_marked(tmp_path):
    content = {"signature": {"command": "ablate", **made_up.SIGNATURE}, "finished": False}
    content["arguments"] = {"model": "models/toy", "command_line": ["ablate", "models/toy", "--out", "half"]}
    half = made_up.write(tmp_path / "half", content)
    for name in "abc":
        (half / "outcomes" / f"{name}.shard").write_bytes(b"")
    page = report([half, made_up.run_json("importance")], tmp_path / "report.html").read_text(encoding="utf-8")
    (marked,) = [part for part in reading.tree(page).iter("div") if part.get("class") == "unfinished"]
    assert "headcount ablate is not finished" in reading.said(marked)
    assert "3 finished shards" in reading.said(marked)
    assert "headcount ablate models/toy --out half" in reading.said(marked)
    assert "Importance (gradient)" in page
    assert "headcount ablate MODEL --data DEV --out RUN" in page  # among what is not in the report


def test_what_an_unfinished_run_has_so_far_is_drawn():
    content = made_up.run_json("track", finished=False)
    content["checkpoints"] = content["checkpoints"][:2]
    page = page_of(content)
    assert "headcount track is not finished." in page
    assert "2 checkpoints: epoch-1 to epoch-2" in page


def test_gates_that_are_still_training_are_drawn(tmp_path):
    half = made_up.write(tmp_path / "half", {"signature": {"command": "gates"}, "arguments": {}, "finished": False})
    stages = [{key: item for key, item in stage.items() if key != "name"} for stage in made_up.gates()["stages"]]
    state = {"stages": stages[:1], "course": {"price": 0.1, "notes": stages[1]["notes"][:4]}}
    (half / "gates").mkdir()
    (half / "gates" / "gates.json").write_text(json.dumps(state))
    page = report(half, tmp_path / "report.html").read_text(encoding="utf-8")
    (chart,) = reading.charts(page, "Open gates")
    assert len(reading.marks(chart)) == 11 + 4
    assert "headcount gates is not finished." in page
    (half / "gates" / "gates.json").write_text("{")
    with pytest.raises(HeadcountError, match=r"gates\.json\b"):
        report(half, tmp_path / "report.html")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, r"no run\.json.*run="),
        ("{", r"run\.json is damaged"),
        ("[1]", "list, not a JSON object"),
        ("{}", r"run\.json.*command"),
        ('{"finished": true, "command": "frob"}', r"run\.json.*command"),
        ("\xff", r"run\.json is damaged"),
        ("[" * 100_000, r"run\.json is damaged"),
    ],
)
def test_what_is_no_run_is_refused_in_one_sentence(tmp_path, content, words):
    (tmp_path / "run").mkdir()
    if content is not None:
        (tmp_path / "run" / "run.json").write_text(content, encoding="latin-1")
    with pytest.raises(HeadcountError, match=words) as refused:
        report(tmp_path / "run", tmp_path / "report.html")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "report.html").exists()


def test_nothing_to_report_on(tmp_path):
    for results, words in (([], "no runs"), (tmp_path / "no", "does not exist"), (3, "int")):
        with pytest.raises(HeadcountError, match=words):
            report(results, tmp_path / "report.html")


def test_only_a_report_is_overwritten(tmp_path):
    run = made_up.run_json("evaluate")
    first = report(run, tmp_path / "report.html").read_bytes()
    assert report(run, tmp_path / "report.html").read_bytes() == first  # the same runs, the same bytes
    (tmp_path / "thesis.html").write_text("<!doctype html>\n<p>three years of work")
    for name, words in (
        ("thesis.html", "not a headcount report"),
        (".", "is a directory"),
        ("no/r.html", "no does not exist"),
    ):
        with pytest.raises(HeadcountError, match=words):
            report(run, tmp_path / name)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(HeadcountError, match="pipe"):
        report(run, tmp_path / "pipe")
    (tmp_path / "pipe").unlink()
    assert "three years" in (tmp_path / "thesis.html").read_text()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["report.html", "thesis.html"]


def test_what_a_link_points_to_is_written_and_the_link_stays(tmp_path):
    (tmp_path / "pages").mkdir()
    (tmp_path / "link.html").symlink_to(tmp_path / "pages" / "real.html")
    report(made_up.run_json("evaluate"), tmp_path / "link.html")
    assert (tmp_path / "link.html").is_symlink()
    assert "Evaluations" in (tmp_path / "pages" / "real.html").read_text(encoding="utf-8")


def poisoned(value):
    """Every text in a run replaced by markup, but for those that say what the run is."""
    if isinstance(value, dict):
        kept = {"command", "head", "kind", "method", "metric", "best", "role"}
        return {key: item if key in kept else poisoned(item) for key, item in value.items()}
    if isinstance(value, list):
        return [poisoned(item) for item in value]
    return NASTY if isinstance(value, str) and not re.fullmatch(r"[a-z]+\.\d+\.\d+", value) else value


@pytest.mark.parametrize("name", made_up.RUNS)
def test_markup_in_a_run_stays_text(name):
    page = page_of(poisoned(made_up.run_json(name)))
    elements = {element.tag.removeprefix(reading.SVG) for element in reading.tree(page).iter()}
    assert not elements & {"img", "script", "iframe", "object"}
    assert "<img" not in page
    assert page.count("<script>") == page.count("</script>") == 1
    assert not re.search("[\u202e\x00\ud800]", page)
    assert "&lt;img src=x onerror=alert(1)&gt;" in page


def test_nothing_comes_from_elsewhere():
    page = unescape(page_of(*(made_up.run_json(name) for name in made_up.RUNS)))
    assert set(re.findall(r"https?://[^\s\"'<]+", page)) == {"http://www.w3.org/2000/svg"}
    assert set(re.findall(r'(?:src|href)="([^"]*)"', page)) == {"data:,"}
    assert "default-src 'none'" in page
    assert "unsafe" not in page
    assert ' style="' not in page  # the policy would drop it


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=50)
@given(name=st.sampled_from([*sorted(made_up.RUNS), "neurons"]), value=JSON, data=st.data())
def test_a_strange_value_anywhere_leaves_a_whole_page(name, value, data):
    found = made_up.run_json("prune", **made_up.with_neurons()) if name == "neurons" else made_up.run_json(name)
    content = json.loads(json.dumps(found))
    spot = content
    while isinstance(spot, (dict, list)) and spot:
        key = data.draw(st.sampled_from(sorted(spot) if isinstance(spot, dict) else range(len(spot))))
        if not isinstance(spot[key], (dict, list)) or not spot[key] or data.draw(st.booleans()):
            spot[key] = value
            break
        spot = spot[key]
    page = page_of(content)
    assert reading.tree(page).find("main/article/h1") is not None
    numbers = [element.get(key) for element in reading.tree(page).iter() for key in ("x", "y", "cx", "cy", "width")]
    assert not {"nan", "inf", "-inf"} & set(numbers)


@pytest.mark.parametrize(
    ("name", "odd"),
    [
        ("prune", {"tried": [{}, {}]}),
        ("prune", {**made_up.with_neurons(), "saved": {"heads": "much", "neurons": None}, "sites": [{"kind": []}]}),
        ("prune", {**made_up.with_neurons(), "flops_after": 0, "removed": ["encoder_ffn.0.9-3", "encoder_ffn.0"]}),
        ("track", {"checkpoints": [{"name": "one", "points": [{"method": [], "pruned": 0.5, "relative": 1.0}]}]}),
        ("bench", {"rows": [{"model": [], "batch": 1, "length": 8, "speedup": 1.1}]}),
    ],
)
def test_odd_values_that_once_stopped_the_page(name, odd):
    assert "</html>" in page_of({**made_up.run_json(name), **odd})


def test_results_of_functions_are_taken_too(tmp_path):
    model, task, other = toy_jobs.JOBS["classifier"][0](), toy_jobs.classification(0, 8), toy_jobs.classification(1, 8)
    scores = importance(model, task)
    results = [
        ablate_each(model, task), ablate_all_but_one(model, task), compare(model, task, other), scores,
        pruning_curve(model, other, scores, step=0.5), prune(model, task, other, heads=0.5),
        benchmark(model, batches=[1], lengths=[4], rounds=1),
    ]  # fmt: skip
    page = report(results, tmp_path / "report.html").read_text(encoding="utf-8")
    (article,) = reading.tree(page).iter("article")
    assert [reading.said(title) for title in article.iter("h2")] == [
        *("Which heads matter", "One head per layer", "How many heads can be removed", "Layers before and after"),
        *("Speed", "The same heads on other data", "Where the numbers come from"),
    ]
    (chart,) = reading.charts(page, "accuracy as heads are removed")
    assert len(reading.marks(chart)) == 3


class Told:
    """A result that can be told as JSON, and has its metric and signature beside it."""

    def __init__(self, content, metric):
        self.content, self.metric, self.signature = content, metric, {"command": content["command"]}

    def to_json(self):
        return self.content


def test_a_result_is_its_json_and_its_metric():
    prune = made_up.run_json("prune")
    assert page_of(Told(prune, None)) == page_of(prune)  # `points` of a metric are not those of a curve
    less = metrics.LANGUAGE["perplexity"]
    unsaid = ("metric", "higher_is_better", "points", "relative")
    bare = {key: item for key, item in made_up.run_json("ablate").items() if key not in unsaid}
    assert "(0 for the worse, 2 for the better)" in page_of(Told(bare, less))
    assert "change of perplexity" in page_of(Told(bare, less))


def test_scores_alone(tmp_path):
    heads = tuple(Head("decoder", layer, index) for layer in range(2) for index in range(3))
    scores = Scores(heads, np.arange(12, dtype=np.float32).reshape(2, 6), "fisher")
    page = report(scores, tmp_path / "report.html").read_text(encoding="utf-8")
    (chart,) = reading.charts(page, "decoder heads: importance by fisher")
    assert [mark.lines[1].split()[2] for mark in reading.marks(chart)] == ["3", "4", "5", "6", "7", "8"]


def test_a_perplexity_that_explodes_is_drawn_in_powers_of_ten():
    points = [{"pruned": k / 4, "score": 20.0 * 10**k, "low": 18.0 * 10**k, "high": 22.0 * 10**k} for k in range(5)]
    curves = [{"method": "gradient", "kind": None, "points": points}]
    (chart,) = reading.charts(
        page_of(made_up.run_json("curve", metric="perplexity", curves=curves)), "heads are removed"
    )
    heights = [float(mark.attributes["cy"]) for mark in reading.marks(chart)]
    assert np.diff(heights) == pytest.approx([np.diff(heights)[0]] * 4, abs=0.2)  # powers of ten are equal steps


def test_a_score_that_falls_to_nothing_is_drawn_in_equal_steps():
    scores = [40.4, 30.4, 20.4, 10.4, 0.4]
    points = [{"pruned": k / 4, "score": y, "low": 0.9 * y, "high": 1.1 * y} for k, y in enumerate(scores)]
    curves = [{"method": "gradient", "kind": None, "points": points}]
    (chart,) = reading.charts(page_of(made_up.run_json("curve", metric="bleu", curves=curves)), "heads are removed")
    heights = [float(mark.attributes["cy"]) for mark in reading.marks(chart)]
    assert np.diff(heights) == pytest.approx([np.diff(heights)[0]] * 4, abs=0.2)


def test_a_report_needs_no_torch():
    code = "import sys; from headcount.reporting import report; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
