"""The same heads off on two data sets (M19 section 3.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headcount.ablation.chosen import Progress, Run, halves
from headcount.ablation.each import Ablation, ablate_each
from headcount.ablation.effects import measured
from headcount.engine import open_run
from headcount.signature import model_signature
from headcount.stats import Correlation, correlation
from headcount.tasks import Task


@dataclass(frozen=True, eq=False)
class Comparison:
    """The same heads' effects on two data sets, and how they go together (M19 figure 2)."""

    here: Ablation
    against: Ablation
    correlation: Correlation

    def to_json(self) -> dict[str, Any]:
        """What `headcount compare --json` says."""
        changes = zip(self.here.heads, self.here.effects.change, self.against.effects.change, strict=True)
        return {
            **measured(self.here.outcomes),
            "n_against": self.against.outcomes.values.shape[1],
            "base": self.here.base,
            "base_against": self.against.base,
            "pearson": self.correlation.pearson,
            "spearman": self.correlation.spearman,
            "p": self.correlation.pearson_p,
            "spearman_p": self.correlation.spearman_p,
            "remark": self.correlation.remark,
            "heads": [
                {"head": str(head), "change": float(here), "change_against": float(there)}
                for head, here, there in changes
            ],
        }


def compare(
    model: Any,
    task: Task,
    against: Task,
    *,
    run: Run = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Comparison:
    """Ablate every head on two data sets and correlate the effects over heads (M19 section 3.4)."""
    first, second = halves(progress)
    tasks = [task.signature(), against.signature()]
    with open_run(run, {"model": model_signature(model), "tasks": tasks, "settings": settings}) as run:
        here = ablate_each(model, task, run=run, progress=first, **settings)
        there = ablate_each(model, against, run=run, name="against", progress=second, **settings)
    return Comparison(here, there, correlation(here.effects.change, there.effects.change))
