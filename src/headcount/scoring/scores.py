"""`Scores`: one number per head, the values that it is the mean of, and how far they settle the order of the heads."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats as scipy_stats

from headcount.errors import BadData, HeadcountError, unknown
from headcount.heads import Head, parse_heads
from headcount.stats import paired_bootstrap

PAIRS = 20  # of disjoint samples, for each size in `convergence`


@dataclass(frozen=True, eq=False)
class Scores:
    """How important each head is: the mean over the rows of `values`, which for most methods are examples.

    >>> heads = parse_heads("encoder.0.0,encoder.0.1,encoder.1.0")
    >>> scores = Scores(heads, np.array([[3.0, 4.0, 1.0], [3.0, 4.0, 3.0]]), "gradient", normalize=True)
    >>> scores["encoder.0.1"]
    4.0
    >>> {str(head): round(value, 3) for head, value in scores.normalized().items()}
    {'encoder.0.0': 0.6, 'encoder.0.1': 0.8, 'encoder.1.0': 1.0}
    >>> [str(head) for head in scores.order()]
    ['encoder.0.0', 'encoder.0.1', 'encoder.1.0']

    values: (rows, heads). normalize: the order is that of the normalised scores (M19), not of the raw ones.
    keys: a hash of each example that was scored on, to recognise these examples in later data.
    """

    heads: tuple[Head, ...]
    values: np.ndarray
    method: str
    normalize: bool = False
    signature: dict[str, Any] = field(default_factory=dict)
    keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        values = np.asarray(self.values, dtype=np.float32)
        if values.ndim != 2 or values.shape[1] != len(self.heads) or not len(values):
            raise HeadcountError(
                f"values have shape {values.shape}; expected (rows, {len(self.heads)}), at least one row"
            )
        if not np.isfinite(values).all():
            head = self.heads[int(np.flatnonzero(~np.isfinite(values).all(0))[0])]
            raise BadData(f"the {self.method} score of {head} is not a finite number")
        object.__setattr__(self, "values", values)

    def __getitem__(self, head: Head | str) -> float:
        name = head if isinstance(head, Head) else Head.parse(head)
        if name not in self.heads:
            raise HeadcountError(unknown("head", str(name), map(str, self.heads)))
        return float(self.raw[self.heads.index(name)])

    def __len__(self) -> int:
        return len(self.heads)

    def __repr__(self) -> str:
        return f"<{self.method} scores of {len(self)} heads, mean of {len(self.values)} rows>"

    @property
    def raw(self) -> np.ndarray:
        """(heads,)"""
        return self.values.mean(0, dtype=np.float64)

    def normalized(self) -> dict[Head, float]:
        """Scores divided by their l2 norm within each layer of each kind (M19 section 4.1)."""
        return dict(zip(self.heads, normalized(self.heads, self.raw).tolist(), strict=True))

    def order(self) -> list[Head]:
        """All heads, the least important first; ties in the order of the heads."""
        ranked = self._for_order(self.raw)
        return [self.heads[i] for i in np.argsort(ranked, kind="stable")]

    def intervals(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """The lower and the upper end of each raw score's bootstrap interval, (heads,) each."""
        rows = self.values.astype(np.float64)
        test = paired_bootstrap(
            np.zeros((len(rows), 1)),
            rows.T[..., None],
            lambda sums: sums[..., 0] / len(rows),
            resamples=1000,
            level=level,
        )
        return test.low, test.high

    def convergence(self, target: float = 0.95, seed: int = 0) -> Convergence:
        """How many rows two independent estimates need to agree on the order of the heads."""
        return convergence(self.values, self._for_order, target=target, seed=seed)

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain JSON; the values are float32, in base64."""
        values = np.ascontiguousarray(self.values, dtype="<f4")
        return {
            "method": self.method,
            "normalize": self.normalize,
            "heads": [
                {"head": str(head), "score": float(score), "normalized": share}
                for (head, share), score in zip(self.normalized().items(), self.raw, strict=True)
            ],
            "values": {"shape": list(values.shape), "float32": base64.b64encode(values.tobytes()).decode()},
            "keys": list(self.keys),
            "signature": self.signature,
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Scores:
        """The scores that `to_json` wrote."""
        try:
            heads = parse_heads(entry["head"] for entry in content["heads"])
            flat = np.frombuffer(base64.b64decode(content["values"]["float32"]), dtype="<f4")
            values = flat.reshape(content["values"]["shape"])
            keys = tuple(content["keys"])
            return cls(heads, values, content["method"], content["normalize"], content["signature"], keys)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
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
        return normalized(self.heads, raw) if self.normalize else raw


def normalized(heads: tuple[Head, ...], raw: np.ndarray) -> np.ndarray:
    """Raw scores (heads,) divided by their l2 norm within each site."""
    sites = np.unique([head.site for head in heads], return_inverse=True)[1]
    norms = np.sqrt(np.bincount(sites, raw**2))[sites]
    return np.divide(raw, norms, out=np.zeros_like(raw), where=norms > 0)


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
