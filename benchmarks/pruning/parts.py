"""A part of the table: one data set, method and speed, measured once and kept in a directory, so that a run resumes.

What is measured on every test example, `MEASURES`: what the score is made of, and the divergence of the predictions
from the whole model's, which needs no labels and tells apart cuts that score alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.pruning import textpruner
from benchmarks.pruning.data import Data, typical
from headcount.bench import benchmark, count_flops
from headcount.errors import HeadcountError, first_line
from headcount.evaluation import evaluate
from headcount.files import read_object, to_json, write_whole
from headcount.runs import model_signature
from headcount.structure import anatomy
from headcount.surgery import remove
from headcount.tasks import Metric, Task, unlabeled
from headcount.tasks.metrics import UNLABELED

MEASURES = ("score", "divergence")
WHOLE = "whole"  # the method that removes nothing
BATCHES = (1, 16)


@dataclass(frozen=True)
class Timing:
    """How speed is measured: the clock, threads and rounds of `headcount.bench.benchmark`."""

    clock: str = "wall"
    threads: int = 1
    rounds: int = 9


class Parts:
    """The finished parts of one data set, in RESULTS/DATA: a JSON object and the measures of every test example."""

    def __init__(self, data: Data, results: Path, timing: Timing) -> None:
        self.data, self.timing = data, timing
        self.results, self.folder = results, results / data.key
        self.folder.mkdir(parents=True, exist_ok=True)
        self.metrics = metrics(data)
        self.signature = {
            "model": model_signature(data.model)["fingerprint"],
            "score": data.score.signature()["fingerprint"],
            "test": data.test.signature()["fingerprint"],
        }

    def read(self, method: str, ratio: float) -> dict[str, Any] | None:
        """A finished part, with its measures (N, S) if there are any; None if it is to be measured (again)."""
        found = read_object(self._file(method, ratio))
        if found is None or found["signature"] != self._signed(method, ratio):
            return None
        if "score" in found:
            with np.load(self._file(method, ratio).with_suffix(".npz")) as arrays:
                found["measures"] = dict(arrays)
            if set(found["measures"]) != set(MEASURES):
                return None  # from a version that measured something else
        return found

    def measure(self, method: str, ratio: float, make: Callable[[float], Any]) -> dict[str, Any]:
        """Make the smaller model, measure it, and keep the part; a ratio out of a method's reach is a finding too."""
        result: dict[str, Any] = {"data": self.data.key, "method": method, "asked": ratio}
        result["signature"] = self._signed(method, ratio)
        started = time.perf_counter()
        try:
            smaller = make(ratio)
        except HeadcountError as error:
            result["remark"] = first_line(error)
        else:
            result["seconds"] = time.perf_counter() - started
            measures = {"score": self._statistics(method, ratio, smaller, result)}
            measures["divergence"] = evaluate(smaller, self.as_whole).of()
            result |= {name: float(self.metrics[name].of(values)) for name, values in measures.items()}
            result |= self.data.test.metric.facts() | {"n": len(self.data.test), "left": left(smaller)}
            result |= self._costs(smaller)
            np.savez_compressed(self._file(method, ratio).with_suffix(".npz"), **measures)
        write_whole(self._file(method, ratio), to_json(result).encode())  # last: a part that is there is whole
        return self.read(method, ratio) or result

    @cached_property
    def as_whole(self) -> Task:
        """The test examples, and what the whole model predicts for them in place of their labels."""
        return unlabeled(self.data.test, self.data.model, "divergence")

    def retime(self, method: str, ratio: float) -> None:
        """Measure the speed of a finished part again: of a model of the same widths, which is all that speed needs."""
        found = read_object(self._file(method, ratio))
        if found is None or "left" not in found:
            return
        sites = anatomy(self.data.model, ("heads", "neurons")).sites
        gone = [unit for site in sites for unit in site.heads[found["left"][site.name] :]]
        found |= self._costs(remove(self.data.model, gone) if gone else self.data.model)
        write_whole(self._file(method, ratio), to_json(found).encode())

    def _signed(self, method: str, ratio: float) -> dict[str, Any]:
        """What a part depends on; TextPruner's, on the data that it was run on, too."""
        if method != "textpruner":
            return self.signature
        found = textpruner.written(self.data, self.results, ratio) or {}
        return {**self.signature, **{name: found.get(name) for name in ("fingerprint", "scored")}}

    def _file(self, method: str, ratio: float) -> Path:
        return self.folder / f"{method}-{ratio:g}.json"

    def _statistics(self, method: str, ratio: float, smaller: Any, result: dict[str, Any]) -> np.ndarray:
        """Of every test example; TextPruner's from what its own environment predicted, compared with ours."""
        test = self.data.test
        own = evaluate(smaller, test).of()
        if method != "textpruner":
            return own
        found = textpruner.written(self.data, self.results, ratio)
        assert found is not None
        theirs = statistics_of(found["predictions"], test, int(smaller.config.num_labels))
        result["agreement"] = float((theirs[:, 1] == own[:, 1]).mean())
        return theirs

    def _costs(self, smaller: Any) -> dict[str, Any]:
        """FLOPs on a batch of the test data, and measured speed: how many times fewer, how many times as fast."""
        whole, test = self.data.model, self.data.test
        batch = typical(test)
        before, after = (count_flops(lambda model=model: test.outputs(model, batch)) for model in (whole, smaller))  # type: ignore[misc]
        length = round(float(np.median(test.lengths)))
        timed = benchmark([whole, smaller], batches=BATCHES, lengths=[length], **asdict(self.timing))
        kept = ("speedup", "low", "high", "latency_original", "latency_pruned")
        speed, decoding = (
            {str(row.batch): {name: getattr(row, name) for name in kept} for row in rows}
            for rows in (timed.rows, timed.decoding)
        )
        return {"flops": before / after, "length": length, "speed": speed, "decoding": decoding, **asdict(self.timing)}


def metrics(data: Data) -> dict[str, Metric]:
    """What each of the measures is summed up by."""
    return {"score": data.test.metric, "divergence": UNLABELED["divergence"]}


def statistics_of(predictions: list[int], task: Task, classes: int) -> np.ndarray:
    """The statistics (N, S) of a classifier that is known by what it predicts; its loss is not."""
    logits = 100.0 * F.one_hot(torch.tensor(predictions), classes)
    return task.statistics(logits, task.batch(range(len(task)))).numpy()


def left(model: Any) -> dict[str, int]:
    """How many units each site has left."""
    return {site.name: len(site.kept) for site in anatomy(model, ("heads", "neurons")).sites}
