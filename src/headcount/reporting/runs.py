"""What runs say: reads run directories and results, tolerates whatever is missing, and groups the runs of one model."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from headcount.errors import HeadcountError, RunConflict, first_line
from headcount.heads import FEED_FORWARD, Head, Span, parse_units
from headcount.reporting import numbers
from headcount.reporting.numbers import MetricFormat, number

RUN_FILE, SHARDS, GATES = "run.json", "outcomes", "gates/gates.json"
EXPECTED = "name a run directory, written with {run}"
UNNAMED = "unnamed model"
ALL_BUT_ONE, CAUSAL = "ablate --mode all-but-one", "gates --causal"
# The keys that only one command writes, to recognise a result that does not name its command.
TELLING_KEYS = (
    ("curve", ("curves",)),
    ("track", ("checkpoints",)),
    ("view", ("view",)),
    ("bench", ("rows",)),
    ("compare", ("pearson", "heads")),  # two data sets
    ("compare", ("agreement", "before")),  # two models
    ("prune", ("removed", "before", "noninferior")),
    ("gates", ("removed", "before")),
    (CAUSAL, ("causal_roles", "heads")),
    ("importance", ("method", "heads")),
    ("ablate", ("base", "heads")),
    ("roles", ("heads",)),
    ("evaluate", ("score",)),
    ("evaluate", ("masks",)),
)
COMMANDS = {ALL_BUT_ONE, *(command for command, _ in TELLING_KEYS)}


class Width(NamedTuple):
    """The neurons of one feed-forward layer: how many a cut found, and how many it left."""

    kind: str
    layer: int
    before: int
    left: int


@dataclass(frozen=True, eq=False)
class RunRecord:
    """One run: what its `run.json` says, the directory it is in, and how many finished shards it has."""

    content: Mapping[str, Any]
    directory: str = ""
    shards: int = 0

    @cached_property
    def signature(self) -> dict[str, Any]:
        return mapping(self.content.get("signature"))

    @cached_property
    def arguments(self) -> dict[str, Any]:
        return mapping(self.content.get("arguments"))

    @cached_property
    def metric(self) -> MetricFormat:
        return MetricFormat.of(self.content)

    @property
    def finished(self) -> bool:
        return self.content.get("finished", True) is True

    @cached_property
    def command(self) -> str:
        """The command that made it; the signature of an unfinished run says which."""
        for name in (self.content.get("command"), self.signature.get("command")):
            if isinstance(name, str):
                return ALL_BUT_ONE if name == "ablate" and self._is_all_but_one else name
        if self._is_all_but_one:
            return ALL_BUT_ONE
        matches = (name for name, keys in TELLING_KEYS if all(key in self.content for key in keys))
        return next(matches, "unknown")

    @property
    def _is_all_but_one(self) -> bool:
        return "layers" in self.content or self.signature.get("mode") == "all-but-one"

    @cached_property
    def model(self) -> str:
        """The model's directory or hub id."""
        name = self.content.get("model") or self.arguments.get("model")
        if not isinstance(name, str):
            name = mapping(self.signature.get("model")).get("name")
        return name if isinstance(name, str) and name else UNNAMED

    @property
    def fingerprint(self) -> str | None:
        found = mapping(self.signature.get("model")).get("fingerprint")
        return found if isinstance(found, str) else None

    @property
    def command_line(self) -> str | None:
        """What was typed, ready to paste."""
        arguments = self.arguments.get("command_line")
        return shlex.join(["headcount", *map(str, arguments)]) if isinstance(arguments, list) and arguments else None

    @property
    def total_heads(self) -> int:
        """Heads before pruning."""
        return len(self.listed("removed")) + int(self.number("left") or 0)

    @cached_property
    def widths(self) -> list[Width]:
        """Every feed-forward layer before and after a cut; none if the run says nothing of them."""
        removed: dict[str, int] = {}
        for name in self.texts("removed"):
            site, count = _neurons(name)
            removed[site] = removed.get(site, 0) + count
        found = []
        for row in self.rows("sites"):
            kind, layer, left = row.get("kind"), number(row.get("layer")), number(row.get("left"))
            if isinstance(kind, str) and kind.endswith(FEED_FORWARD) and layer is not None and left is not None:
                stay = max(0, int(left))
                before = stay + removed.get(f"{kind}.{int(layer)}", 0)
                found.append(Width(kind, int(layer), before, stay))
        return found

    @property
    def removed_neurons(self) -> int:
        return self.total_neurons - sum(width.left for width in self.widths)

    @property
    def total_neurons(self) -> int:
        """Neurons before pruning."""
        return sum(width.before for width in self.widths)

    @property
    def cost(self) -> str | None:
        """What the search weighed units by, in words; None if it counted heads."""
        return {"flops": "FLOPs", "params": "parameters", "time": "time"}.get(self.text("cost") or "")

    @property
    def is_for_speed(self) -> bool:
        """Whether more than a number of heads was cut: neurons, or units weighed by their cost."""
        return self.cost is not None or self.removed_neurons > 0

    @property
    def what_was_removed(self) -> str:
        """`30 of 72 heads and 6,144 of 9,216 neurons`."""
        heads, neurons = len(self.listed("removed")), self.removed_neurons
        parts = [f"{heads} of {self.total_heads} heads"] if heads or not neurons else []
        parts += [f"{neurons:,} of {self.total_neurons:,} neurons"] if neurons else []
        whole = [row for row in self.rows("sites") if number(row.get("left")) == 0]
        if whole and "sublayers" in self.texts("units"):
            parts[-1] += f" ({numbers.units(len(whole), 'sublayer')} as a whole)"
        return " and ".join(parts)

    def data(self, key: str = "data") -> str:
        """The data it was measured on: `872 examples from dev.tsv`."""
        given = self.arguments.get(key)
        n = self.number("n")
        if n is None:
            n = next((number(task.get("n")) for task in rows(self.signature.get("tasks"))), None)
        many = numbers.units(n, "example") if n is not None else ""
        name = PurePath(given).name if isinstance(given, str) else ""
        return " from ".join(filter(None, [many, name])) or "unnamed data"

    def number(self, key: str) -> float | None:
        return number(self.content.get(key))

    def text(self, key: str) -> str | None:
        """A text that is not empty, or None."""
        found = self.content.get(key)
        return found if isinstance(found, str) and found else None

    def texts(self, key: str) -> list[str]:
        """A list of texts, such as `remarks`."""
        found = self.content.get(key)
        return [item for item in found if isinstance(item, str)] if isinstance(found, list) else []

    def rows(self, key: str) -> list[dict[str, Any]]:
        """A list of objects, such as `heads`; anything else in the list is left out."""
        return rows(self.content.get(key))

    @cached_property
    def heads(self) -> dict[Head, dict[str, Any]]:
        """The objects of `heads` by their head; the first if a head has several."""
        found: dict[Head, dict[str, Any]] = {}
        for row in self.rows("heads"):
            head = parse(row.get("head"))
            if head is not None:
                found.setdefault(head, row)
        return found

    def listed(self, key: str) -> list[Head]:
        """The attention heads in a list of units, such as `removed`."""
        return [head for name in self.texts(key) if (head := parse(name))]


class ModelRuns:
    """The runs of one model, and what they say together about each head."""

    def __init__(self, runs: list[RunRecord]) -> None:
        self.runs = runs

    @property
    def name(self) -> str:
        """The first name that a run gives the model."""
        return next((run.model for run in self.runs if run.model != UNNAMED), UNNAMED)

    def of(self, *commands: str) -> list[RunRecord]:
        """Runs of these commands."""
        return [run for run in self.runs if run.command in commands]

    @property
    def cuts(self) -> list[RunRecord]:
        """Finished runs that removed heads."""
        return [run for run in self.of("prune", "gates") if run.finished]

    @cached_property
    def heads(self) -> list[Head]:
        """Every head that any run mentions."""
        found = {head for run in self.runs for head in run.heads}
        found |= {head for run in self.runs for key in ("removed", "kept") for head in run.listed(key)}
        return sorted(found)

    @cached_property
    def facts(self) -> dict[Head, list[str]]:
        """One line per finding about each head."""
        found: dict[Head, list[str]] = {head: [] for head in self.heads}
        for run in self.runs:
            for head, line in _facts(run):
                found.setdefault(head, []).append(line)
        return found

    def tip(self, head: Head) -> list[str]:
        """What a head's mark says when pointed at: its name, then everything known about it."""
        return [str(head), *self.facts.get(head, [])]

    def width(self, kind: str) -> int:
        """Heads in the widest layer of a kind, so that all its maps have the same columns."""
        return 1 + max((head.index for head in self.heads if head.kind == kind), default=0)


def _facts(run: RunRecord) -> Iterator[tuple[Head, str]]:
    metric = run.metric
    if run.command == "ablate":
        for head, row in run.heads.items():
            effect = f"{metric.change(row.get('change'))} {metric.name} (95% interval {metric.change_interval(row)})"
            yield head, f"without it: {effect}, {run.data()}"
            if row.get("decision"):
                yield head, f"{row['decision']} after {numbers.units(row.get('examples'), 'example')}"
            else:
                yield head, f"p {numbers.p_value(row.get('p'))}, Holm-corrected {numbers.p_value(row.get('p_holm'))}"
    elif run.command == "importance":
        ranks = {head: rank for rank, head in enumerate(reversed(run.listed("order")), 1)}
        for head, row in run.heads.items():
            rank = f", rank {ranks[head]} of {len(ranks)}" if head in ranks else ""
            within = f" ({numbers.short(row['normalized'])} within its layer)" if number(row.get("normalized")) else ""
            yield head, f"importance ({run.text('method')}): {numbers.short(row.get('score'))}{within}{rank}"
    elif run.command == "roles":
        for row in run.rows("heads"):
            if (named := parse(row.get("head"))) is not None and row.get("role"):
                yield named, f"role: {_role(row)}"
    elif run.command == CAUSAL:
        for head, row in run.heads.items():
            yield head, f"{row.get('role')} by {numbers.share(row.get('agreement'))} of the fits of causal gates"
    elif run.command in ("prune", "gates"):
        for head in run.listed("removed"):
            yield head, f"removed by {run.command}"


def _role(row: dict[str, Any]) -> str:
    """`syntactic nsubj, 52% (baseline 35%)`."""
    detail = f" {row['detail']}" if isinstance(row.get("detail"), (str, int)) else ""
    baseline = f" (baseline {numbers.share(row['baseline'])})" if number(row.get("baseline")) is not None else ""
    return f"{row.get('role')}{detail}, {numbers.share(row.get('score'))}{baseline}"


def by_model(runs: list[RunRecord]) -> list[ModelRuns]:
    """Group runs by weights (by name where no fingerprint was stored), in the order given.

    A result that does not name its model belongs to the first one.
    """
    groups: dict[str, list[RunRecord]] = {}
    fingerprints = {run.model: run.fingerprint for run in runs if run.fingerprint}
    first = next((run.fingerprint or run.model for run in runs if run.model != UNNAMED), UNNAMED)
    for run in runs:
        key = run.fingerprint or fingerprints.get(run.model) or run.model
        groups.setdefault(first if key == UNNAMED else key, []).append(run)
    return [ModelRuns(group) for group in groups.values()]


def read(result: Any) -> RunRecord:
    """A run from its directory, its `run.json`, the object that `--json` prints, or what a function returned."""
    if isinstance(result, RunRecord):
        return result
    if isinstance(result, (str, Path)):
        return _read_directory(Path(result))
    for method in ("to_json", "to_dict"):
        if not isinstance(result, Mapping) and callable(getattr(result, method, None)):
            result = _with_metric(result, getattr(result, method)())
    if isinstance(result, Mapping):
        return RunRecord(result)
    raise HeadcountError(
        f"cannot report on {type(result).__name__}; pass run directories, or what headcount's functions return"
    )


def _with_metric(result: Any, told: Any) -> Any:
    """A result's JSON, completed by attributes that its JSON may lack: signature and metric."""
    if not isinstance(told, Mapping):
        return told
    metric = getattr(result, "metric", None)
    keys = {"metric": "name", "higher_is_better": "higher_is_better", "points": "points", "relative": "relative"}
    known = {key: getattr(metric, name, None) for key, name in keys.items()}
    is_curve = isinstance(told.get("points"), (list, tuple))  # a single curve: its `points` are not the metric's
    return {"signature": getattr(result, "signature", None), **known, **({"curves": [told]} if is_curve else told)}


def _read_directory(path: Path) -> RunRecord:
    file = path if path.is_file() else path / RUN_FILE
    try:
        content = _load(file)
    except FileNotFoundError:
        why = f"it has no {RUN_FILE}" if path.is_dir() else "it does not exist"
        raise RunConflict(f"{path} is not a run directory: {why}", advice=EXPECTED) from None
    if content.get("finished") is False and (file.parent / GATES).is_file():
        content = {**_stages_so_far(_load(file.parent / GATES)), **content}
    run = RunRecord(content, path.as_posix(), len(list((file.parent / SHARDS).glob("*.shard"))))
    if run.command not in COMMANDS:
        raise RunConflict(
            f"{file} does not name the headcount command that wrote it",
            advice="run that command again with a new {run}",
        )
    return run


def _load(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise RunConflict(
            f"{file} is damaged or was not written by headcount ({first_line(error)})", advice=EXPECTED
        ) from None
    if not isinstance(content, dict):
        raise RunConflict(f"{file} holds {type(content).__name__}, not a JSON object", advice=EXPECTED)
    return content


def _stages_so_far(state: dict[str, Any]) -> dict[str, Any]:
    """The stages of gates whose training was interrupted, and the notes of the last one up to then."""
    stages = [{"name": f"stage {place}", **stage} for place, stage in enumerate(rows(state.get("stages")), 1)]
    course = mapping(state.get("course"))
    return {"stages": [*stages, *([{"name": f"stage {len(stages) + 1}, so far", **course}] if course else [])]}


def mapping(value: Any) -> dict[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def rows(value: Any) -> list[dict[str, Any]]:
    """The objects in a list; nothing if it is not a list."""
    return [row for row in value if isinstance(row, dict)] if isinstance(value, (list, tuple)) else []


def parse(name: Any) -> Head | None:
    """An attention head by its name, or None if it is not one."""
    try:
        head = Head.parse(name)
    except HeadcountError:
        return None
    return None if head.is_neuron else head


def _neurons(name: str) -> tuple[str, int]:
    """The feed-forward site that a neuron or range of neurons belongs to, and how many they are.

    >>> _neurons("encoder_ffn.3.0-511"), _neurons("encoder_ffn.3.7"), _neurons("encoder.3.7")
    (('encoder_ffn.3', 512), ('encoder_ffn.3', 1), ('', 0))
    """
    try:
        (unit,) = parse_units([name])
    except HeadcountError:
        return "", 0
    if not unit.is_neuron:
        return "", 0
    if isinstance(unit, Span):
        return unit.site, 0 if unit.first is None or unit.last is None else unit.last - unit.first + 1
    return unit.site, 1
