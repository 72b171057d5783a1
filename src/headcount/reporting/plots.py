"""The report's charts on paper, drawn with matplotlib, and results as tables of pandas: the extra `plot`.

A chart is a call of a function in `charts` or `layer_maps`, which writes SVG for the page. The function under the same
name in `PAINTERS` takes the same arguments and draws on matplotlib's axes, with the colours of the page.
"""

from __future__ import annotations

import importlib
import io
import re
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import headcount
from headcount.errors import HeadcountError
from headcount.files import write_whole
from headcount.heads import Head, parse_ranges
from headcount.reporting.charts import MANY_DOTS, Bar, Estimate, Points, Series, line_ranges, padded_range
from headcount.reporting.markup import Picture, asset
from headcount.reporting.runs import ALL_BUT_ONE, RunRecord, rows

COLUMN = 4.6  # inches: about a column of a paper with room for a legend
ROW, ROWS = 0.26, (2.2, 9.0)  # inches of a row of cells or bars; the least and largest height
FORMATS = ("svg", "pdf")
# Text stays text in SVG, and PDF embeds TrueType fonts: publishers refuse Type 3, which matplotlib would use.
PAPER = {"svg.fonttype": "none", "svg.hashsalt": "headcount", "pdf.fonttype": 42, "font.size": 9}
MOST_NEURONS = 1_000_000


def plot(pictures: Sequence[Picture], ax: Any = None, chart: int | str | None = None) -> Any:
    """Draw pictures on axes: those given, or new ones side by side. Returns the axes, several as an array.

    ax: one of matplotlib's axes, or as many as there are pictures. chart: only this one, by its place or title.
    """
    pyplot = needed("matplotlib.pyplot")
    chosen = list(pictures) if chart is None else [_chosen(pictures, chart)]
    if not chosen:
        raise HeadcountError("this result has nothing to draw; print it, or use to_frame()")
    if ax is None:
        size = (COLUMN * len(chosen), max(map(_height, chosen)))
        _, ax = pyplot.subplots(1, len(chosen), figsize=size, layout="constrained")
    given = list(ax) if hasattr(ax, "__len__") else [ax]
    if len(given) != len(chosen):
        titles = "; ".join(picture.title for picture in chosen)
        raise HeadcountError(
            f"{len(chosen)} charts ({titles}) do not fit on {len(given)} axes",
            advice="pass as many as {ax}, or choose one with {chart}",
        )
    for axes, picture in zip(given, chosen, strict=True):
        paint(axes, picture)
    return ax


def write_figures(pictures: Sequence[Picture], directory: str | Path) -> list[Path]:
    """Write every picture as SVG and PDF, named after its title; only files that were written here are replaced."""
    figure, context = needed("matplotlib.figure").Figure, needed("matplotlib").rc_context
    folder, creator = Path(directory), f"headcount {headcount.__version__}"
    if folder.exists() and not folder.is_dir():
        raise HeadcountError(f"{folder} is a file, not a directory", advice="name another one with {figures}")
    files = [folder / f"{name}.{ending}" for name in _names(pictures) for ending in FORMATS]
    for file in files:
        if file.exists() and b"headcount" not in file.read_bytes():
            raise HeadcountError(f"{file} exists and is not a chart of headcount", advice="choose other {figures}")
    folder.mkdir(parents=True, exist_ok=True)
    for place, picture in enumerate(pictures):
        with context(PAPER):
            drawn = figure(figsize=(COLUMN, _height(picture)), layout="constrained")
            paint(drawn.add_subplot(), picture)
            for file in files[len(FORMATS) * place :][: len(FORMATS)]:
                undated = {"Date": None} if file.suffix == ".svg" else {"CreationDate": None}
                content = io.BytesIO()
                drawn.savefig(content, format=file.suffix[1:], metadata={"Creator": creator, **undated})
                write_whole(file, content.getvalue())
    return files


def paint(ax: Any, picture: Picture) -> None:
    """Draw one picture, with its title, on matplotlib's axes."""
    ax.set_title(textwrap.fill(picture.title, 44), fontsize="medium", loc="left")
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for drawing in picture.drawings:
        PAINTERS[drawing.function](ax, **drawing.arguments)


def needed(module: str) -> Any:
    """A module of the extra, or one sentence if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise HeadcountError(
            f"this needs {package}, which is not installed", advice="pip install 'headcount[plot]'"
        ) from None


def _chosen(pictures: Sequence[Picture], chart: int | str) -> Picture:
    found = [one for place, one in enumerate(pictures) if chart in (place, one.title)]
    if not found:
        titles = ", ".join(f"{place}: {one.title}" for place, one in enumerate(pictures))
        raise HeadcountError(f"no chart is called {chart!r}", advice=f"choose a {{chart}} of {titles or 'none'}")
    return found[0]


def _height(picture: Picture) -> float:
    """Inches, by the rows of cells or bars that a picture has."""
    lines = [len(given) for one in picture.drawings if isinstance(given := one.arguments.get("rows"), Sequence)]
    heads = [
        one.arguments[key] for one in picture.drawings for key in ("heads", "kept", "removed") if key in one.arguments
    ]
    lines.append(len({head.layer for some in heads for head in some}))
    return min(max(1.1 + ROW * max(lines), ROWS[0]), ROWS[1]) if max(lines) else 3.2


def _names(pictures: Sequence[Picture]) -> list[str]:
    """File names from titles; a title that comes again gets a number.

    >>> _names([Picture("Importance (gradient)", ()), Picture("Importance: gradient", ()), Picture("FLOPs saved", ())])
    ['importance-gradient', 'importance-gradient-2', 'flops-saved']
    """
    names: list[str] = []
    for picture in pictures:
        name = "-".join(re.findall(r"[a-z0-9_]+", picture.title.lower())) or "chart"
        again = sum(re.fullmatch(rf"{name}(-\d+)?", other) is not None for other in names)
        names.append(f"{name}-{again + 1}" if again else name)
    return names


@lru_cache
def palette() -> dict[str, str]:
    """The colours of the page by day, by their names in its style sheet."""
    by_day, _, _ = asset("charts.css").partition("}")
    return dict(re.findall(r"--(\w+): (#\w+)", by_day))


def colour(name: str) -> str:
    """A colour by its class on the page: `c0`, `cell w3`, `kept`."""
    return palette()[{"kept": "accent", "removed": "paper"}.get(name, name)]


# --------------------------------------------------------------------------------------- one for each chart of the page


def _lines(
    ax: Any,
    series: Sequence[Series],
    across: str,
    up: str,
    label: str,
    x_percent: bool,
    y_percent: bool,
    bands: bool,
    level: tuple[float, str] | None,
    at: tuple[float, str] | None,
    whole: bool,
    may_be_log: bool,
) -> None:
    xs, ys, log = line_ranges(series, level, at, whole, may_be_log)
    for one in series:
        shade, points = colour(one.colour), one.dots
        size = 3.5 if len(points) <= MANY_DOTS else 0.0
        x = [dot.x for dot in points]
        ax.plot(x, [dot.y for dot in points], color=shade, marker="o", markersize=size, linewidth=1.4, label=one.name)
        known = [(dot.x, dot.low, dot.high) for dot in points if dot.low is not None and dot.high is not None]
        if bands and len(known) > 1:
            ax.fill_between(*zip(*known, strict=True), color=shade, alpha=0.16, linewidth=0)
        elif bands:
            for place, low, high in known:
                ax.plot([place, place], [low, high], color=shade, alpha=0.55)
        chosen = [dot for dot in points if dot.chosen]
        ax.plot([dot.x for dot in chosen], [dot.y for dot in chosen], "o", markersize=9, fillstyle="none", color=_ink())
    ruler = {"color": palette()["soft"], "linestyle": "--", "linewidth": 0.8}
    said: dict[str, Any] = {"textcoords": "offset points", "va": "top", "fontsize": "small", "annotation_clip": False}
    if level:
        ax.axhline(level[0], **ruler)
        ax.annotate(level[1], (0.02, level[0]), (0, -3), xycoords=("axes fraction", "data"), **said)
    if at:
        ax.axvline(at[0], **ruler)
        ax.annotate(at[1], (at[0], 0.99), (3, 0), xycoords=("data", "axes fraction"), **said)
    ax.set_xlim(*xs)
    ax.set_ylim(*ys)
    if log:
        ax.set_yscale("log")
    percent = needed("matplotlib.ticker").PercentFormatter
    for axis, is_percent in ((ax.xaxis, x_percent), (ax.yaxis, y_percent)):
        if is_percent:
            axis.set_major_formatter(percent(1.0, decimals=None))
    ax.set(xlabel=across, ylabel=up)
    if len(series) > 1:
        ax.legend(frameon=False, fontsize="small")


def _intervals(
    ax: Any, rows: Sequence[Estimate], across: str, label: str, zero: float, same_scale_as: Sequence[Estimate]
) -> None:
    shown = [*rows, *same_scale_as]
    seen = [value for row in shown for value in (row.value, row.low, row.high, row.limit) if value is not None]
    ax.axvline(zero, color=palette()["soft"], linewidth=0.8)
    for place, row in enumerate(rows):
        shade = colour(row.colour)
        if row.low is not None and row.high is not None:
            ax.plot([row.low, row.high], [place, place], color=shade, alpha=0.55, linewidth=1.6)
        if row.limit is not None:
            ax.plot([row.limit], [place], "|", color=_ink(), markersize=11, markeredgewidth=1.6)
        ax.plot([row.value], [place], "o", color=shade, markersize=5)
    ax.set_xlim(*padded_range([*seen, zero]))
    ax.locator_params(axis="x", nbins=5)
    _rows(ax, [row.name for row in rows])
    ax.set(xlabel=across)


def _bars(ax: Any, rows: Sequence[Bar], label: str) -> None:
    for place, row in enumerate(rows):
        ax.barh(place, min(max(row.value, 0.0), row.whole), 0.72, color=colour(row.colour))
        ax.barh(place, row.whole, 0.72, fill=False, edgecolor=palette()["soft"], linewidth=0.6)
        ax.annotate(
            row.words, (row.whole, place), (4, 0), textcoords="offset points", va="center", annotation_clip=False
        )
    _rows(ax, [row.name for row in rows])
    ax.xaxis.set_visible(False)
    ax.spines["bottom"].set_visible(False)


def _scatter(ax: Any, points: Points, across: str, up: str, caption: str, digits: int) -> None:
    both = padded_range([0.0, *(x for _, x, _ in points), *(y for _, _, y in points)])
    for line in (ax.axhline, ax.axvline):
        line(0.0, color=palette()["soft"], linewidth=0.8)
    ax.plot(both, both, color=palette()["soft"], linestyle="--", linewidth=0.8)
    ax.plot([x for _, x, _ in points], [y for _, _, y in points], "o", color=colour("c0"), alpha=0.65, markersize=4.5)
    ax.set_xlim(*both)
    ax.set_ylim(*both)
    ax.set_aspect("equal")
    ax.set(xlabel=across, ylabel=up)


def _heat(
    ax: Any,
    heads: Sequence[Head],
    colour: Callable[[Head], str],
    tip: Callable[[Head], Sequence[str]],
    label: str,
    letter: Callable[[Head], str],
    width: int,
) -> None:
    layers = _grid(ax, heads, width)
    for head in heads:
        shade = palette()[colour(head)]
        _cell(ax, head, layers, facecolor=shade, edgecolor="none")
        if written := letter(head):
            ink = palette()["light" if _is_dark(shade) else "dark"]
            ax.text(head.index, layers[head.layer], written, ha="center", va="center", color=ink, fontsize="small")
    ax.set(xlabel="head", ylabel="layer")


def _kept(
    ax: Any, kept: Collection[Head], removed: Collection[Head], tip: Callable[[Head], Sequence[str]], label: str
) -> None:
    gone = set(removed)
    layers = _grid(ax, sorted({*kept, *gone}), 0)
    for head in {*kept, *gone}:
        away = head in gone
        edge = palette()["line"] if away else "none"
        _cell(ax, head, layers, facecolor=colour("removed" if away else "kept"), edgecolor=edge)
        if away:
            ax.plot([head.index], [layers[head.layer]], "x", color=palette()["soft"], alpha=0.6, markersize=4)
    for layer, row in layers.items():
        left = [head not in gone for head in {*kept, *gone} if head.layer == layer]
        end = (max(head.index for head in {*kept, *gone}) + 0.5, row)
        said = f"{len(left)} \u2192 {sum(left)}"
        ax.annotate(said, end, (4, 0), textcoords="offset points", va="center", fontsize="small", annotation_clip=False)
    ax.set(xlabel="head", ylabel="layer")


def _scale(ax: Any, colours: Sequence[str], low: str, middle: str, high: str) -> None:
    shades = needed("matplotlib.colors").ListedColormap([palette()[name] for name in colours])
    values = needed("matplotlib.cm").ScalarMappable(cmap=shades)
    values.set_array([0.0, 1.0])
    bar = ax.figure.colorbar(values, ax=ax, ticks=[0.0, 0.5, 1.0], pad=0.03, fraction=0.06)
    bar.ax.set_yticklabels([low, middle, high], fontsize="small")
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0)


def _legend(ax: Any, entries: Sequence[tuple[str, str]]) -> None:
    patch = needed("matplotlib.patches").Patch
    keys = [patch(facecolor=colour(name), label=said) for name, said in entries]
    ax.legend(handles=keys, frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))


# By the name of the function that draws the same on the page.
PAINTERS: Mapping[str, Callable[..., None]] = {
    "line_chart": _lines,
    "interval_chart": _intervals,
    "bar_chart": _bars,
    "scatter_chart": _scatter,
    "heat_map": _heat,
    "kept_map": _kept,
    "colour_scale": _scale,
    "legend": _legend,
}


def _grid(ax: Any, heads: Sequence[Head], width: int) -> dict[int, int]:
    """The frame of a map of heads; gives the row of each layer."""
    layers = {layer: row for row, layer in enumerate(sorted({head.layer for head in heads}))}
    columns = max(width, 1 + max((head.index for head in heads), default=0))
    ax.set_xlim(-0.5, columns - 0.5)
    ax.set_ylim(len(layers) - 0.5, -0.5)
    ax.set_xticks(range(0, columns, 1 + columns // 24))
    shown = list(layers)[:: 1 + len(layers) // 33]
    ax.set_yticks([layers[layer] for layer in shown], shown)
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
    return layers


def _cell(ax: Any, head: Head, layers: Mapping[int, int], **look: Any) -> None:
    corner = (head.index - 0.46, layers[head.layer] - 0.46)
    ax.add_patch(needed("matplotlib.patches").Rectangle(corner, 0.92, 0.92, linewidth=0.6, **look))


def _rows(ax: Any, names: Sequence[str]) -> None:
    """Names beside rows, the first at the top."""
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)


def _ink() -> str:
    return palette()["ink"]


def _is_dark(shade: str) -> bool:
    """Whether white reads better than black on a colour, by its luminance.

    >>> _is_dark("#033f3a"), _is_dark("#eff5f3")
    (True, False)
    """
    red, green, blue = (int(shade[place : place + 2], 16) for place in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue < 128


# --------------------------------------------------------------------------------------------------------------- tables


def frame(run: RunRecord) -> Any:
    """The rows that a result is made of as a pandas frame; a head has its kind, layer and index beside its name."""
    return needed("pandas").DataFrame([_flat(row) for row in _rows_of(run)])


def _rows_of(run: RunRecord) -> Iterator[dict[str, Any]]:
    """One row for each head, layer, point, cut, stage, mask or measurement, as the command goes."""
    if run.command == "curve":
        yield from _nested(run, "curves", ("method", "kind"))
    elif run.command == "track":
        yield from _nested(run, "checkpoints", ("name", "base"))
    elif run.command == "bench":
        yield from ({"work": "forward", **row} for row in run.rows("rows"))
        yield from ({"work": "decoding", **row} for row in run.rows("decoding"))
    elif run.command == "importance":
        yield from run.rows("heads")
        for row in run.rows("units"):
            yield from _neurons(row) if "neurons" in row else [row]
    else:
        tables = {ALL_BUT_ONE: "layers", "prune": "tried", "gates": "stages", "evaluate": "masks"}
        two_models = run.command == "compare" and "heads" not in run.content
        yield from [dict(run.content)] if two_models else run.rows(tables.get(run.command, "heads"))


def _nested(run: RunRecord, key: str, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    for one in run.rows(key):
        for point in rows(one.get("points")):
            yield {**{name: one.get(name) for name in names}, **point}


def _neurons(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for every neuron of a site, whose scores come as arrays."""
    indices = parse_ranges(row["neurons"], MOST_NEURONS) or ()
    for index, score, share in zip(indices, row["score"], row["normalized"], strict=True):
        yield {"head": f"{row['site']}.{index}", "score": score, "normalized": share}


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values; lists of units stay, objects inside the row do not."""
    told: dict[str, Any] = {}
    for key, value in row.items():
        if key == "head":
            head = Head.parse(value)
            told |= {"head": str(head), "kind": head.kind, "layer": head.layer, "index": head.index}
        elif not isinstance(value, Mapping) and not rows(value):
            told[key] = value
    return told
