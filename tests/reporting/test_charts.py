"""Charts show the numbers of `run.json`: read back from the pictures by their axes, colours and titles."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import made_up_runs as made_up
import page_reading as reading
from headcount.reporting import heads, report, scatter_svg
from headcount.reporting.charts import ticks
from headcount.reporting.heads import ROLE_COLOURS
from headcount.reporting.numbers import MetricFormat
from headcount.tasks import metrics


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A report on one run of every command."""
    root = tmp_path_factory.mktemp("runs")
    return report(made_up.write_all(root), root / "report.html").read_text(encoding="utf-8")


def minus(text):
    return text.replace("-", "\u2212")


def test_the_heat_map_has_every_head_with_its_numbers_and_colour(page):
    (chart,) = reading.charts(page, "encoder heads: change of accuracy")
    cells = {mark.attributes["data-head"]: mark for mark in reading.marks(chart)}
    assert list(cells) == made_up.HEADS
    for row in made_up.ablate()["heads"]:
        cell, change = cells[row["head"]], row["change"]
        assert cell.lines[0] == row["head"]
        assert cell.lines[1].startswith(f"without it: {minus(f'{change:+.4f}')} accuracy")
        assert minus(f"{row['low']:+.4f} to {row['high']:+.4f}") in cell.lines[1]
        assert f"corrected {row['p_holm']:.2g}" in cell.lines[2]
        step = round(5 * abs(change) / 0.08)
        assert cell.classes[-1] == ("z0" if not step else f"w{step}" if change < 0 else f"b{step}")
    dots = [text for text in chart.iter(f"{reading.SVG}text") if reading.said(text) == "\u2022"]
    assert len(dots) == 2


def test_cells_lie_in_their_layer_and_column(page):
    (chart,) = reading.charts(page, "encoder heads: change of accuracy")
    places = {mark.attributes["data-head"]: mark.attributes for mark in reading.marks(chart)}
    for head, place in places.items():
        layer, index = head.split(".")[1:]
        assert place["y"] == places[f"encoder.{layer}.0"]["y"]
        assert place["x"] == places[f"encoder.0.{index}"]["x"]
    assert len({(place["x"], place["y"]) for place in places.values()}) == 24


def test_pointing_at_a_head_tells_all_that_is_known_of_it(page):
    (chart,) = reading.charts(page, "importance by gradient")
    (mark,) = [mark for mark in reading.marks(chart) if mark.lines[0] == "encoder.0.1"]
    words = "\n".join(mark.lines)
    assert "without it: \u22120.0010" in words
    assert "importance (gradient): 0.06 (0.18 within its layer), rank 19 of 24" in words
    assert "role: positional -1, 91% (baseline 35%)" in words
    assert "removed by prune" in words
    assert mark.classes[-1] == f"s{round(8 * 0.06 / 0.24)}"


def test_curves_lie_where_their_scores_are(page):
    (chart,) = reading.charts(page, "accuracy as heads are removed")
    expected = [
        (f"{one['method']}: {point['pruned']:.0%} removed ({len(point['removed'])} heads)", point)
        for one in made_up.curve()["curves"]
        for point in one["points"]
    ]
    shown = reading.values(chart)
    assert [name for name, _, _ in shown] == [name for name, _ in expected]
    for (_, x, y), (_, point) in zip(shown, expected, strict=True):
        assert x == pytest.approx(point["pruned"], abs=0.002)
        assert y == pytest.approx(point["score"], abs=0.002)
    (ruler,) = [line for line in chart.iter(f"{reading.SVG}line") if line.get("class") == "ruler"]
    factor, offset = reading.scale(chart, "x")
    assert factor * float(ruler.attrib["x1"]) + offset == pytest.approx(10 / 24, abs=0.002)  # the chosen cut


def test_bands_are_the_intervals(page):
    (chart,) = reading.charts(page, "accuracy as heads are removed")
    band = next(element for element in chart.iter(f"{reading.SVG}polygon"))
    factor, offset = reading.scale(chart, "y")
    heights = [factor * float(pair.split(",")[1]) + offset for pair in band.attrib["points"].split()]
    points = made_up.curve()["curves"][0]["points"]
    assert heights[:11] == pytest.approx([point["high"] for point in points], abs=0.002)
    assert heights[:10:-1] == pytest.approx([point["low"] for point in points], abs=0.002)


def test_the_search_shows_every_cut_and_rings_the_chosen_one(page):
    (chart,) = reading.charts(page, "change of accuracy with each cut")
    shown = reading.values(chart)[1:]  # the first is the whole model
    tried = made_up.prune()["tried"]
    assert [y for _, _, y in shown] == pytest.approx([row["change"] for row in tried], abs=2e-4)
    (ring,) = [element for element in chart.iter() if element.get("class") == "chosen"]
    (chosen,) = [mark for mark in reading.marks(chart) if "chosen" in mark.lines[0]]
    assert (ring.get("cx"), ring.get("cy")) == (chosen.attributes["cx"], chosen.attributes["cy"])
    (budget,) = [line for line in chart.iter(f"{reading.SVG}line") if line.get("class") == "ruler"]
    factor, offset = reading.scale(chart, "y")
    assert factor * float(budget.attrib["y1"]) + offset == pytest.approx(-0.005, abs=2e-4)


def test_layers_show_who_stays(page):
    first, second = reading.charts(page, "remaining heads, layer by layer")  # of prune and of gates
    for chart, removed in ((first, made_up.REMOVED), (second, made_up.HEADS[:15])):
        gone = {mark.attributes["data-head"]: "removed" in mark.classes for mark in reading.marks(chart)}
        kept = set(made_up.HEADS) - set(removed)
        assert gone == {head: head not in kept for head in made_up.HEADS}
        counts = [reading.said(text) for text in chart.iter(f"{reading.SVG}text") if "→" in reading.said(text)]
        left = [sum(head.startswith(f"encoder.{layer}.") for head in kept) for layer in range(4)]
        assert counts == [f"6 → {number}" for number in left]


def cut_with_neurons(tmp_path):
    content = made_up.run_json("prune", **made_up.with_neurons())
    return report(content, tmp_path / "report.html").read_text(encoding="utf-8")


def bars(chart):
    """Each bar by its first line: how far it is filled, as a share of the longest outline."""
    boxes = [box for box in chart.iter(f"{reading.SVG}rect") if "fill" in box.get("class", "").split()]
    whole = max(float(mark.attributes["width"]) for mark in reading.marks(chart))
    return {
        mark.lines[0]: float(box.attrib["width"]) / whole for mark, box in zip(reading.marks(chart), boxes, strict=True)
    }


def test_feed_forward_layers_are_bars_and_heads_stay_cells(tmp_path):
    page = cut_with_neurons(tmp_path)
    (chart,) = reading.charts(page, "encoder_ffn: remaining neurons")
    shares = {f"encoder_ffn.{layer}": left / 64 for layer, left in enumerate((56, 24, 64, 0))}
    assert bars(chart) == pytest.approx(shares, abs=0.002)
    counts = [reading.said(text) for text in chart.iter(f"{reading.SVG}text") if "→" in reading.said(text)]
    assert counts == ["64 → 56", "64 → 24", "64 → 64", "64 → 0"]
    (cells,) = reading.charts(page, "remaining heads, layer by layer")
    assert {mark.attributes["data-head"] for mark in reading.marks(cells)} == set(made_up.HEADS)
    assert "No neurons are left in encoder_ffn.3." in page


def test_what_each_kind_saved_is_drawn_and_said(tmp_path):
    page = cut_with_neurons(tmp_path)
    (chart,) = reading.charts(page, "FLOPs saved")
    expected = {"saved by heads": 0.15, "saved by neurons": 0.45, "left": 0.4}
    assert bars(chart) == pytest.approx(expected, abs=0.002)
    assert "60.0% are saved: 15.0% by heads, 45.0% by neurons" in page
    assert not reading.charts(report(made_up.run_json("prune"), tmp_path / "old.html").read_text(), "FLOPs saved")


def test_cuts_by_cost_stand_at_their_share_of_it(tmp_path):
    (chart,) = reading.charts(cut_with_neurons(tmp_path), "change of accuracy with each cut")
    shown = [(x, y) for _, x, y in reading.values(chart)]
    assert [x for x, _ in shown] == pytest.approx([0, 0.2, 0.3, 0.5], abs=0.002)
    assert [y for _, y in shown] == pytest.approx([0, -0.002, -0.003, -0.005], abs=2e-4)


def test_speed_stands_beside_its_limit(page):
    (chart,) = reading.charts(page, "Forward pass: speedup")
    factor, offset = reading.scale(chart, "x")
    rows = made_up.bench()["rows"]
    dots = [factor * float(mark.attributes["cx"]) + offset for mark in reading.marks(chart)]
    assert dots == pytest.approx([row["speedup"] for row in rows], abs=0.002)
    assert "Speedups above it" not in page
    limits = [line for line in chart.iter(f"{reading.SVG}line") if line.get("class") == "limit"]
    assert [factor * float(line.attrib["x1"]) + offset for line in limits] == pytest.approx([1.23] * 3, abs=0.002)


@pytest.mark.parametrize(("low", "words"), [(1.1, "within their interval"), (1.3, "memory and caches")])
def test_more_speed_than_flops_allow_is_explained(tmp_path, low, words):
    content = made_up.run_json("bench")
    content["rows"][0] |= {"speedup": 1.4, "low": low, "high": 1.5, "limit": 1.23}
    page = report([made_up.write(tmp_path / "run", content)], tmp_path / "report.html").read_text(encoding="utf-8")
    assert words in page


def test_the_scatter_lies_where_the_changes_are(page):
    (chart,) = reading.charts(page, "other.tsv against dev data.tsv")
    rows = {row["head"]: row for row in made_up.compare()["heads"]}
    for name, x, y in reading.values(chart):
        assert (x, y) == pytest.approx((rows[name]["change"], rows[name]["change_against"]), abs=6e-4)


def test_checkpoints_and_gates_are_drawn(page):
    by_importance, at_random = reading.charts(page, "checkpoints pruned")
    shots = made_up.track()["checkpoints"]
    wanted = [p["relative"] for shot in shots for p in shot["points"] if p["method"] == "gradient"]
    assert [y for _, _, y in reading.values(by_importance)] == pytest.approx(wanted, abs=0.005)
    assert len(reading.values(at_random)) == len(wanted)
    (gates,) = reading.charts(page, "Open gates")
    notes = [note["open"] for stage in made_up.gates()["stages"] for note in stage["notes"]]
    assert [y for _, _, y in reading.values(gates)] == pytest.approx(notes, abs=0.1)
    steps = [x for _, x, _ in reading.values(gates)]  # the second stage starts where the first one ended
    assert steps == pytest.approx([*range(0, 101, 10), *range(100, 201, 10)], abs=1)


def test_charts_of_one_row_have_one_scale(tmp_path):
    content = made_up.run_json("all-but-one")
    content["layers"] += [
        {**row, "kind": "cross", "best": f"cross.{row['layer']}.0"} | {"low": -0.5} for row in content["layers"]
    ]
    page = report([made_up.write(tmp_path / "run", content)], tmp_path / "report.html").read_text(encoding="utf-8")
    one, other = reading.charts(page, "each layer with its best head alone")
    assert reading.scale(one, "x") == pytest.approx(reading.scale(other, "x"))


def test_roles_that_no_head_has_are_told_by_the_heads_that_come_closest(tmp_path):
    content = made_up.run_json("roles")
    content |= {"heads": [], "best": content["heads"][:2]}
    page = report([made_up.write(tmp_path / "run", content)], tmp_path / "report.html").read_text(encoding="utf-8")
    assert "come closest" in page
    assert not reading.charts(page, "heads: roles")
    assert "by None" not in page


def test_roles_of_language_models_have_letters_and_colours_of_their_own(tmp_path):
    content = made_up.run_json("roles")
    names = ["induction", "previous token", "duplicate token", "retrieval", "copying", "sink", "streaming"]
    rows = [{**content["heads"][0], "head": f"encoder.0.{i}", "role": role} for i, role in enumerate(names[:6])]
    rows += [{**content["heads"][0], "head": "encoder.1.0", "role": role} for role in ("streaming", "sink")]
    keep = [{"layer": 0, "kv_head": k, "keep": what} for k, what in enumerate(("all", "recent", "all"))]
    content |= {"heads": rows, "cache": {"kv_heads": keep}}
    page = report([made_up.write(tmp_path / "run", content)], tmp_path / "report.html").read_text(encoding="utf-8")
    (chart,) = reading.charts(page, "heads: roles")
    written = [reading.said(one) for one in chart.iter() if one.tag.endswith("text")]
    written = [text for text in written if text.isalpha()]
    assert sorted(written) == sorted("IPDRCST")
    assert "2 of 3 key-value heads" in page
    assert len({ROLE_COLOURS[role] for role in names}) == len(names)


def test_the_script_has_the_colours_of_the_report():
    script = (Path(heads.__file__).parent / "grid.js").read_text(encoding="utf-8")
    table = script[(start := script.index("const ROLES")) : script.index("};", start)]
    found = dict(re.findall(r'"?([a-z][a-z ]*)"?: "(r\d)"', table))
    assert found == ROLE_COLOURS


def test_a_picture_of_its_own_has_its_colours():
    picture = scatter_svg([("encoder.0.1", -0.01, -0.02), ("<b>", 0.0, 0.01)], "in <domain>", "out", "r & r")
    root = reading.Tree.fromstring(picture)
    assert [mark.lines[0] for mark in reading.marks(root)] == ["encoder.0.1", "<b>"]
    assert ".c0 { fill" in picture


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-0.0831, 0.0062), (12.5, 51), (0.8999, 0.9001), (3, 1e6), (-5, -4)])
def test_ticks_are_few_and_inside(low, high):
    found = ticks(low, high)
    assert 2 <= len(found) <= 7
    assert low - 1e-9 <= found[0]
    assert found[-1] <= high + 1e-9


# ------------------------------------------------------------------------------------------------- which way is better


@pytest.mark.parametrize("metric", (metrics.CLASSIFICATION | metrics.LANGUAGE | metrics.TRANSLATION).values())
def test_a_metric_is_read_as_the_tasks_define_it(metric):
    keys = {name: getattr(metric, name) for name in ("higher_is_better", "points", "relative")}
    found = MetricFormat.of({"metric": metric.name, **keys})
    worse = -1 if metric.higher_is_better else 1
    unit = metric.points * (0.8 if metric.relative else 1)
    assert found.allowed(2.0, base=0.8) == pytest.approx(2 * worse * unit)
    assert [found.is_worse(change) for change in (-1.0, 0.0, 1.0)] == [worse < 0, False, worse > 0]


def mirrored(value):
    """A run in which every score and change has the other sign: as good, if lower is better."""
    if isinstance(value, list):
        return [mirrored(item) for item in value]
    if not isinstance(value, dict):
        return value
    ends = {"low": "high", "high": "low", "change_low": "change_high", "change_high": "change_low"}
    numbers = {ends.get(key, key): -value[key] for key in value if key in ("score", "change", "base", *ends)}
    return {key: mirrored(item) for key, item in value.items()} | numbers


def pages(tmp_path, name, **more):
    """A report on a run, and one on the same run of a user's own metric of which less is better."""
    less = mirrored(made_up.run_json(name, **more)) | {"metric": "word_errors", **made_up.METRICS["word_errors"]}
    runs = [made_up.run_json(name, **more), less]
    return [report(run, tmp_path / "report.html").read_text(encoding="utf-8") for run in runs]


def test_effects_are_coloured_and_counted_by_what_the_run_says_is_better(tmp_path):
    both = pages(tmp_path, "ablate")
    charts = [reading.charts(page, "encoder heads: change of")[0] for page in both]
    more, less = ({mark.lines[0]: mark.classes[-1] for mark in reading.marks(chart)} for chart in charts)
    assert more == less
    assert {"w5", "w2"} <= set(less.values())
    for page in both:
        assert "(2 for the worse, 0 for the better)" in page
        assert f"without {made_up.HEADS[7]}." in page


def test_a_small_improvement_is_blue_whichever_way_it_points(tmp_path):
    row = {"head": "encoder.0.0", "score": 1.0, "p": 0.5, "p_holm": 1.0, "low": -1.0, "high": 1.0}
    for page, change in zip(
        pages(tmp_path, "ablate", heads=[{**row, "change": 0.3}, {**row, "head": "encoder.0.1", "change": -0.1}]),
        ("+", "\u2212"),
        strict=True,
    ):
        (chart,) = reading.charts(page, "encoder heads: change of")
        assert [mark.classes[-1] for mark in reading.marks(chart)] == ["b5", "w2"]
        assert f"{change}0.3000: better" in page


@pytest.mark.parametrize("name", ["all-but-one", "curve"])
def test_losses_are_counted_by_what_the_run_says_is_better(tmp_path, name):
    more, less = (reading.said(next(reading.tree(page).iter("h1"))) for page in pages(tmp_path, name))
    assert more.replace("accuracy", "word_errors") == less
    assert ("3 of 4 layers" if name == "all-but-one" else "29% of the heads") in less


def test_layers_that_lose_have_the_same_colour_whichever_way_it_points(tmp_path):
    more, less = (reading.charts(page, "best head alone")[0] for page in pages(tmp_path, "all-but-one"))
    classes = [[mark.classes[-1] for mark in reading.marks(chart)] for chart in (more, less)]
    assert classes[0] == classes[1] == ["c6", "c6", "c6", "c1"]


def test_the_budget_lies_on_the_worse_side(tmp_path):
    for page, sign in zip(pages(tmp_path, "prune"), (-1, 1), strict=True):
        (chart,) = reading.charts(page, "with each cut")
        (budget,) = [line for line in chart.iter(f"{reading.SVG}line") if line.get("class") == "ruler"]
        factor, offset = reading.scale(chart, "y")
        assert factor * float(budget.attrib["y1"]) + offset == pytest.approx(sign * 0.005, abs=2e-4)


def test_higher_is_better_where_a_run_does_not_say(tmp_path):
    content = made_up.run_json("ablate")
    for key in ("higher_is_better", "points", "relative"):
        del content[key]
    page = report(content | {"metric": "my_metric"}, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "(2 for the worse, 0 for the better)" in page
