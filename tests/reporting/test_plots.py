"""Results show themselves: as cards in a notebook, on matplotlib's axes, as pandas frames, as files for a paper."""

from __future__ import annotations

import inspect
import re
import sys
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pandas
import pytest
from matplotlib.figure import Figure

import headcount as hc
import made_up_runs as made_up
import page_reading as reading
from headcount import HeadcountError
from headcount.dynamics import Dynamics, Step, TrackedCheckpoint
from headcount.gates import Gated
from headcount.gates.gated import GateStage
from headcount.reporting import Shown, charts, layer_maps, markup
from headcount.reporting.page import by_model, html, pictures_of, read
from headcount.reporting.plots import PAINTERS, paint, palette, write_figures
from headcount.tasks.classification import toy_classifier

matplotlib.use("Agg")  # there is no window
NASTY = "</style><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def toy():
    return toy_classifier()


@pytest.fixture(scope="module")
def results(toy):
    """A result of every kind."""
    model, task = toy
    scores = hc.importance(model, task)
    pruned = hc.prune(model, task, task, heads=2, overlap="allow")
    stage = GateStage(
        0.1, None, ("encoder.0.0",), 7, 8, {"encoder.0": 3}, 0.5, -0.1, -0.2, 0.1, 0.9, 7.0,
        notes=tuple({"step": step, "loss": 0.7, "open": 8.0 - step, "lambda": 0.1} for step in (0.0, 1.0)),
    )  # fmt: skip
    ranks = {str(head): float(place) for place, head in enumerate(hc.anatomy(model).heads)}
    steps = [Step("gradient", share, None, 1 - share, 0.0, 1.0, 1 - share) for share in (0.0, 0.5)]
    checkpoints = tuple(TrackedCheckpoint(name, 1.0, ranks, steps, 0.1) for name in ("epoch-1", "epoch-2"))
    return {
        "scores": scores,
        "ablation": hc.ablate_each(model, task),
        "all but one": hc.ablate_all_but_one(model, task),
        "comparison": hc.compare(model, task, task),
        "curve": hc.pruning_curve(model, task, scores, step=0.5, overlap="allow"),
        "curves": hc.pruning_curve(
            model, task, [scores, hc.importance(model, task, "random")], step=0.5, overlap="allow"
        ),
        "pruned": pruned,
        "outcomes": hc.evaluate(model, task, [(), ["encoder.0.0"], ["encoder.1.0", "encoder.1.1"]]),
        "models": hc.compare_models(model, pruned.model, task),
        "benchmark": hc.benchmark([model, pruned.model], batches=[1, 2], lengths=[4], rounds=2),
        "roles": hc.find_roles(model, [{"text": "a fine film"}] * 40, task.tokenizer, parser=False),
        "gated": Gated(pruned.model, pruned.removed, task.metric, 0.6, 2, (stage,)),
        "dynamics": Dynamics(checkpoints, task.metric),
    }


# What each result draws, and the rows and some columns of its frame.
EXPECTED = {
    "scores": (["Importance (gradient)"], 8, {"head", "kind", "layer", "index", "score", "normalized"}),
    "ablation": (["Change of accuracy without each head"], 8, {"head", "change", "low", "high", "p", "p_holm"}),
    "all but one": (["Change of accuracy with one head left"], 2, {"kind", "layer", "best", "change"}),
    "comparison": (["Change of accuracy without each head"], 8, {"head", "change", "change_against"}),
    "curve": (["Accuracy as heads are removed"], 3, {"method", "pruned", "score", "low", "high", "removed"}),
    "curves": (["Accuracy as heads are removed"], 6, {"method", "pruned", "score", "low", "high", "removed"}),
    "pruned": (["Remaining heads"], 1, {"removed", "pruned", "chosen", "score"}),
    "outcomes": (["Change of accuracy with units off"], 3, {"off", "score", "low", "high", "change"}),
    "models": (["Change of accuracy from the first model to the second"], 1, {"before", "after", "p", "agreement"}),
    "benchmark": (["Forward pass: speedup"], 2, {"work", "batch", "length", "speedup", "limit"}),
    "roles": (None, None, {"head", "role", "detail", "score", "baseline"}),
    "gated": (["Remaining heads", "Open gates", "Training loss"], 1, {"name", "price", "left", "score"}),
    "dynamics": (
        ["Pruned least important heads first", "Order of heads compared with the last checkpoint"],
        4,
        {"name", "base", "method", "pruned", "score"},
    ),
}


def test_every_kind_of_result_is_among_them(results):
    def below(parent):
        return {kind for child in parent.__subclasses__() for kind in (child, *below(child))}

    ours = {kind for kind in below(Shown) if kind.__module__.startswith("headcount.")}
    ours = {kind for kind in ours if "reporting" not in kind.__module__}  # a doctest defines one
    assert {type(result) for result in results.values()} == ours
    assert set(results) == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_notebook_shows_the_pictures_of_the_report(results, name):
    card = results[name]._repr_html_()
    page = f"<body>{card}"
    root = reading.tree(page)
    titles = [reading.said(title) for figure in root.iter("figure") for title in figure.iter("strong")]
    expected = EXPECTED[name][0]
    assert titles == expected if expected is not None else titles
    assert [reading.said(title) for title in root.iter("h1")]
    assert 'class="of"' not in card  # the model is the notebook's; its path would be published with it
    assert "<script" not in card
    assert len(reading.charts(page, "")) == len(titles)


@pytest.mark.parametrize("name", EXPECTED)
def test_plot_draws_the_same_pictures(results, name):
    axes = results[name].plot()
    several = list(axes) if isinstance(axes, np.ndarray) else [axes]
    titles, rows, columns = EXPECTED[name]
    drawn = [" ".join(one.get_title(loc="left").split()) for one in several]
    assert drawn == titles if titles is not None else drawn
    assert all(one.has_data() or one.patches for one in several)
    matplotlib.pyplot.close("all")
    frame = results[name].to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert columns <= set(frame.columns) or not len(frame)
    assert len(frame) == rows if rows is not None else len(frame) == len(results[name].found)


def test_frames_hold_the_numbers_of_the_result(results):
    scores, frame = results["scores"], results["scores"].to_frame().set_index("head")
    assert {head: frame.score[str(head)] for head in scores.heads} == {head: scores[head] for head in scores.heads}
    assert list(results["ablation"].to_frame().change) == results["ablation"].effects.change.tolist()
    assert list(results["curve"].to_frame().score) == [point.score for point in results["curve"].points]
    assert set(results["curves"].to_frame().method) == {"gradient", "random"}
    assert list(results["outcomes"].to_frame().score) == results["outcomes"].scores().tolist()


def test_neurons_have_a_row_each(toy):
    scores = hc.importance(*toy, units=["heads", "neurons"])
    frame = scores.to_frame()
    assert len(frame) == len(scores.units)
    neuron = frame[frame.kind == "encoder_ffn"].iloc[5]
    assert neuron.score == scores[hc.Head(neuron.kind, neuron.layer, neuron["index"])]


def test_plot_takes_axes_and_chooses_a_chart(results):
    figure = Figure()
    axes = figure.subplots(1, 3)
    assert results["gated"].plot(axes) is axes
    assert [one.get_ylabel() for one in axes] == ["layer", "gates", "loss"]
    one = Figure().subplots()
    assert results["gated"].plot(one, chart="Training loss") is one
    assert one.get_title(loc="left") == "Training loss"
    assert results["gated"].plot(Figure().subplots(), chart=1).get_ylabel() == "gates"
    with pytest.raises(HeadcountError, match=r"3 charts .*Training loss.* 1 axes.*ax=.*chart="):
        results["gated"].plot(Figure().subplots())
    with pytest.raises(HeadcountError, match=r"'gates'.*chart=.*2: Training loss"):
        results["gated"].plot(chart="gates")


def test_lines_and_cells_are_where_the_numbers_are(results):
    axes = Figure().subplots()
    results["curve"].plot(axes)
    (line, *_) = axes.lines
    assert line.get_xydata().tolist() == [[point.pruned, point.score] for point in results["curve"].points]
    axes = Figure().subplots()
    paint(axes, pictures_of(by_model([read(made_up.run_json("ablate"))])[0])[0])
    shades = {(round(cell.get_x() + 0.46), round(cell.get_y() + 0.46)): cell.get_facecolor() for cell in axes.patches}
    worst = matplotlib.colors.to_rgba(palette()["w5"])
    assert [place for place, shade in shades.items() if shade == worst] == [(1, 1)]  # encoder.1.1: -0.08
    assert len(shades) == 24


def test_a_painter_takes_what_its_chart_takes():
    for name, painter in PAINTERS.items():
        (chart,) = [getattr(room, name) for room in (charts, layer_maps, markup) if name in vars(room)][:1]
        assert list(inspect.signature(painter).parameters)[1:] == list(inspect.signature(chart).parameters)


def test_every_chart_of_the_report_has_a_painter(tmp_path):
    runs = [read(made_up.run_json(name)) for name in made_up.RUNS]
    runs.append(read({**made_up.run_json("prune"), **made_up.with_neurons()}))
    pictures = [picture for model in by_model(runs) for picture in pictures_of(model)]
    assert len(pictures) == len(reading.charts(html(runs), "")) == 21
    assert {drawing.function for picture in pictures for drawing in picture.drawings} == set(PAINTERS)
    files = write_figures(pictures, tmp_path / "figures")
    assert len(files) == len(set(files)) == 42
    first = {file: file.read_bytes() for file in files}
    for file, content in first.items():
        if file.suffix == ".svg":
            assert ElementTree.fromstring(content).tag.endswith("svg")
        else:
            assert content.startswith(b"%PDF")
            assert b"/Type3" not in content
    said = (tmp_path / "figures" / "accuracy-as-heads-are-removed.svg").read_text()
    assert ">heads removed<" in said
    assert ">chosen cut<" in said
    write_figures(pictures, tmp_path / "figures")  # its own files are replaced, by the same
    assert {file: file.read_bytes() for file in files} == first


def test_figures_replace_nothing_else(tmp_path, results):
    mine = tmp_path / "importance-gradient.pdf"
    mine.write_bytes(b"%PDF of mine")
    with pytest.raises(HeadcountError, match=r"importance-gradient\.pdf"):
        hc.report(results["scores"], tmp_path / "report.html", figures=tmp_path)
    assert mine.read_bytes() == b"%PDF of mine"
    assert [file.name for file in tmp_path.iterdir()] == [mine.name]
    with pytest.raises(HeadcountError, match=r"figures="):
        hc.report(results["scores"], tmp_path / "report.html", figures=mine)


def test_the_style_of_a_card_stays_inside_it(results):
    card = results["scores"]._repr_html_()
    (style,) = re.findall(r"<style>(.*?)</style>", card, re.DOTALL)
    selectors = [rule.strip() for rule in re.findall(r"([^{}]+)\{", style)]
    inside = [one.strip() for rule in selectors if not rule.startswith("@") for one in re.split(r",(?![^(]*\))", rule)]
    assert len(inside) > 100
    assert {one.split()[0] for one in inside} == {".headcount-result"}
    assert all(rule.startswith("@media") for rule in selectors if rule.startswith("@"))


def test_text_in_a_card_stays_text():
    class Found(Shown):
        def to_json(self):
            return {**made_up.run_json("importance", model=NASTY), "method": NASTY}

    card = Found()._repr_html_()
    assert NASTY not in card
    assert NASTY in reading.said(reading.tree(f"<body>{card}"))


@pytest.mark.parametrize(("package", "use"), [("matplotlib", "plot"), ("pandas", "to_frame")])
def test_a_missing_extra_is_one_sentence(results, monkeypatch, package, use):
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(HeadcountError, match=rf"{package}.*headcount\[plot\]"):
        getattr(results["scores"], use)()
    assert results["scores"]._repr_html_().startswith("<div")


def test_nothing_to_draw_is_said():
    class Found(Shown):
        def to_json(self):
            return {"heads": [], "best": []}

    with pytest.raises(HeadcountError, match="to_frame"):
        Found().plot()
    assert Found().to_frame().empty
