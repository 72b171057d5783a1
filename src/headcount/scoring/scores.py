"""`Scores`: one number per unit, the values that it is the mean of, and how far they settle the order of the units."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats as scipy_stats

from headcount.errors import BadData, HeadcountError, unknown
from headcount.heads import Head, Span, format_ranges, format_units, parse_heads, parse_ranges, parse_units
from headcount.reporting import Shown
from headcount.stats import change_bounds, paired_bounds

PAIRS = 20  # of disjoint samples, for each size in `convergence`
MOST = 1_000_000  # the highest index of a neuron that a file may name; real sites have fewer
Unit = Head | str  # a whole sublayer by the name of its site


@dataclass(frozen=True, eq=False)
class Scores(Shown):
    """How important each unit is: the mean over the rows of `values`, which for most methods are examples.

    >>> heads = parse_heads("encoder.0.0,encoder.0.1,encoder.1.0")
    >>> scores = Scores(heads, np.array([[3.0, 4.0, 1.0], [3.0, 4.0, 3.0]]), "gradient", normalize=True)
    >>> scores["encoder.0.1"]
    4.0
    >>> {str(head): round(value, 3) for head, value in scores.normalized().items()}
    {'encoder.0.0': 0.6, 'encoder.0.1': 0.8, 'encoder.1.0': 1.0}
    >>> [str(head) for head in scores.order()]
    ['encoder.0.0', 'encoder.0.1', 'encoder.1.0']

    units: heads, neurons, and whole sublayers by their site. values: (rows, units); with neurons, one row.
    normalize: the order is that of the normalised scores (M19), not of the raw ones.
    keys: a hash of each example that was scored on, to recognise these examples in later data.
    """

    units: tuple[Unit, ...]
    values: np.ndarray
    method: str
    normalize: bool = False
    signature: dict[str, Any] = field(default_factory=dict)
    keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        values = np.asarray(self.values, dtype=np.float32)
        if values.ndim != 2 or values.shape[1] != len(self.units) or not len(values):
            raise HeadcountError(
                f"values have shape {values.shape}; expected (rows, {len(self.units)}), at least one row"
            )
        if not np.isfinite(values).all():
            unit = self.units[int(np.flatnonzero(~np.isfinite(values).all(0))[0])]
            raise BadData(f"the {self.method} score of {unit} is not a finite number")
        object.__setattr__(self, "values", values)

    def __getitem__(self, unit: Unit) -> float:
        name = unit if isinstance(unit, Head) or unit in self._places else Head.parse(unit)
        if name not in self._places:
            known = [str(one) for one in self.units if not is_neuron(one)]
            known += format_units([one for one in self.units if is_neuron(one)])
            raise HeadcountError(unknown("neuron" if is_neuron(name) else "head", str(name), known))
        return float(self.raw[self._places[name]])

    def __len__(self) -> int:
        return len(self.units)

    def __repr__(self) -> str:
        counts = " and ".join(f"{count} {what}" for what, count in self.counted().items())
        rows = "1 row" if len(self.values) == 1 else f"mean of {len(self.values)} rows"
        return f"<{self.method} scores of {counts}, {rows}>"

    @cached_property
    def _places(self) -> dict[Unit, int]:
        return {unit: place for place, unit in enumerate(self.units)}

    @cached_property
    def raw(self) -> np.ndarray:
        """(units,)"""
        return self.values.mean(0, dtype=np.float64)

    @property
    def heads(self) -> tuple[Head, ...]:
        """The attention heads among the units."""
        return tuple(unit for unit in self.units if isinstance(unit, Head) and not unit.is_neuron)

    def counted(self) -> dict[str, int]:
        """How many heads, neurons and sublayers there are, by these words; none that is zero.

        >>> Scores(("encoder.0", "encoder_ffn.0"), np.ones((1, 2)), "oracle").counted()
        {'sublayers': 2}
        """
        words = ["sublayers" if isinstance(one, str) else "neurons" if one.is_neuron else "heads" for one in self.units]
        return {word: words.count(word) for word in dict.fromkeys(words)}

    def normalized(self) -> dict[Unit, float]:
        """Scores divided by their l2 norm within each layer of each kind (M19 section 4.1); see `normalized`."""
        return dict(zip(self.units, normalized(self.units, self.raw).tolist(), strict=True))

    def order(self) -> list[Unit]:
        """All units, the least important first; ties in the order of the units."""
        ranked = self._for_order(self.raw)
        return [self.units[i] for i in np.argsort(ranked, kind="stable")]

    def intervals(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """The lower and the upper end of each raw score's interval, (units,) each.

        Tango's where rows are answers that turn right or wrong (the oracle's), a bootstrap's otherwise.
        """
        rows, tail = self.values.astype(np.float64), (1 - level) / 2
        if np.isin(rows, (-1, 0, 1)).all():
            return paired_bounds((rows < 0).sum(0), (rows > 0).sum(0), len(rows), tail)
        counted = np.stack([np.ones_like(rows.T), rows.T], axis=-1)  # (units, rows, 2)
        none = np.stack([np.ones(len(rows)), np.zeros(len(rows))], axis=-1)
        return change_bounds(none, counted, lambda sums: sums[..., 1] / sums[..., 0], tail, resamples=1000)

    def convergence(self, target: float = 0.95, seed: int = 0) -> Convergence:
        """How many rows two independent estimates need to agree on the order of the units."""
        return convergence(self.values, self._for_order, target=target, seed=seed)

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain JSON; the values are float32, in base64, with a column per unit as they are listed."""
        listed = self.listed()
        columns = [place for entry in (*listed["heads"], *listed.get("units", ())) for place in self._columns(entry)]
        values = np.ascontiguousarray(self.values[:, columns], dtype="<f4")
        return {
            "method": self.method,
            "normalize": self.normalize,
            "order_by": "normalized" if self.normalize else "score",
            **listed,
            "order": [str(unit) for unit in self.order() if not is_neuron(unit)],
            "values": {"shape": list(values.shape), "float32": base64.b64encode(values.tobytes()).decode()},
            "keys": list(self.keys),
            "signature": self.signature,
        }

    def listed(self) -> dict[str, list[dict[str, Any]]]:
        """The scores of heads, one by one, and under `units` those of sublayers, and of neurons as arrays by site.

        >>> units = ("encoder_ffn.0", *(Head("encoder_ffn", 0, index) for index in range(3)))
        >>> Scores(units, np.array([[2.0, 0, 3, 4]]), "oracle").listed()["units"][1]
        {'site': 'encoder_ffn.0', 'neurons': '0-2', 'score': [0.0, 3.0, 4.0], 'normalized': [0.0, 0.6, 0.8]}
        """
        score, share = self.raw.tolist(), normalized(self.units, self.raw).tolist()
        heads: list[dict[str, Any]] = []
        others: list[dict[str, Any]] = []
        sites: dict[str, dict[int, int]] = {}
        for place, unit in enumerate(self.units):
            if isinstance(unit, str):
                others.append({"sublayer": unit, "score": score[place], "normalized": share[place]})
            elif unit.is_neuron:
                sites.setdefault(unit.site, {})[unit.index] = place
            else:
                heads.append({"head": str(unit), "score": score[place], "normalized": share[place]})
        for site, by_index in sites.items():
            places = [by_index[index] for index in sorted(by_index)]
            here = {"score": [score[place] for place in places], "normalized": [share[place] for place in places]}
            others.append({"site": site, "neurons": format_ranges(by_index), **here})
        return {"heads": heads, "units": others} if others else {"heads": heads}

    def _columns(self, entry: dict[str, Any]) -> list[int]:
        return [self._places[unit] for unit in _read_entry(entry)]

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Scores:
        """The scores that `to_json` wrote."""
        try:
            heads = parse_heads(entry["head"] for entry in content["heads"])
            others = [unit for entry in content.get("units", ()) for unit in _read_entry(entry)]
            if len(set(others)) < len(others):
                raise ValueError("a unit is listed twice")
            flat = np.frombuffer(base64.b64decode(content["values"]["float32"]), dtype="<f4")
            values = flat.reshape(content["values"]["shape"])
            keys = tuple(content["keys"])
            return cls((*heads, *others), values, content["method"], content["normalize"], content["signature"], keys)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise BadData(f"these are not scores that headcount wrote: {error!r}") from error

    def save(self, path: str | Path) -> Path:
        """Write the scores to a JSON file."""
        Path(path).write_text(json.dumps(self.to_json()), encoding="utf-8")
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> Scores:
        """Read scores from a JSON file."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise BadData(f"{path} cannot be read as scores: {error}") from error
        return cls.from_json(content)

    def _for_order(self, raw: np.ndarray) -> np.ndarray:
        return normalized(self.units, raw) if self.normalize else raw


def _read_entry(entry: dict[str, Any]) -> list[Unit]:
    """The units that an entry of `listed` is about."""
    if "head" in entry:
        return [Head.parse(entry["head"])]
    site = parse_units([entry["sublayer" if "sublayer" in entry else "site"]])[0]
    if not isinstance(site, Span) or site.first is not None:
        raise ValueError(f"{site} is not a site")
    if "sublayer" in entry:
        return [site.site]
    indices = parse_ranges(entry["neurons"], MOST)
    if not indices or not site.is_neuron:
        raise ValueError(f"{entry['neurons']!r} are not neurons of {site}")
    return [Head(site.kind, site.layer, index) for index in indices]


def is_neuron(unit: Unit) -> bool:
    """Whether a unit is a single neuron."""
    return isinstance(unit, Head) and unit.is_neuron


def site_of(unit: Unit) -> str:
    """The name of the site that a unit is, or belongs to."""
    return unit.site if isinstance(unit, Head) else unit


def normalized(units: Sequence[Unit], raw: np.ndarray) -> np.ndarray:
    """Raw scores (units,) divided by their l2 norm within each site; those of whole sublayers within their kind.

    >>> normalized(("encoder.0", "encoder.1", "encoder_ffn.0"), np.array([3.0, 4.0, 2.0])).tolist()
    [0.6, 0.8, 1.0]
    """
    sites = np.unique([_group_of(unit) for unit in units], return_inverse=True)[1]
    norms = np.sqrt(np.bincount(sites, raw**2))[sites]
    return np.divide(raw, norms, out=np.zeros_like(raw), where=norms > 0)


def _group_of(unit: Unit) -> str:
    return unit.site if isinstance(unit, Head) else f"{unit.partition('.')[0]} sublayers"


@dataclass(frozen=True)
class Convergence:
    """Agreement of two estimates from `sizes[i]` rows each, without common rows: mean Spearman r over random pairs.

    stable_at: the smallest size from which r stays at or above `target`; None if there are too few rows to tell.
    """

    sizes: tuple[int, ...]
    agreement: tuple[float, ...]
    target: float
    stable_at: int | None


def convergence(
    values: np.ndarray, for_order: Callable[[np.ndarray], np.ndarray], *, target: float = 0.95, seed: int = 0
) -> Convergence:
    """Compare estimates from disjoint random rows, for sizes 8, 16, 32, … up to half of the rows.

    >>> rng = np.random.default_rng(0)
    >>> values = np.arange(12.0) + rng.normal(size=(400, 12))  # twelve heads, one apart, with noise
    >>> convergence(values, lambda raw: raw).stable_at
    8

    values: (rows, heads). for_order: turns mean scores (heads,) into those that determine the order.
    """
    values = np.asarray(values, np.float64)
    half, rng = len(values) // 2, np.random.default_rng(seed)
    sizes = [size for size in (8 * 2**k for k in range(40)) if size < half] + [half] * (half >= 2)
    if values.shape[1] < 3 or not sizes:
        return Convergence((), (), target, None)
    agreement = []
    for size in sizes:
        found = []
        for _ in range(PAIRS):
            drawn = rng.permutation(len(values))[: 2 * size]
            one, other = (for_order(values[part].mean(0)) for part in (drawn[:size], drawn[size:]))
            varied = np.ptp(one) > 0 and np.ptp(other) > 0
            found.append(float(scipy_stats.spearmanr(one, other).statistic) if varied else 0.0)
        agreement.append(float(np.mean(found)))
    good = [value >= target for value in agreement]
    first = next((i for i in range(len(sizes)) if all(good[i:])), None)
    return Convergence(tuple(sizes), tuple(agreement), target, None if first is None else sizes[first])
