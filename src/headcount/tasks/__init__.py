"""Tasks: data, a loss per example, and per-example statistics that every metric is a function of."""

from headcount.tasks.base import Batch, Metric, Task
from headcount.tasks.base_task import BaseTask
from headcount.tasks.classification import Classification
from headcount.tasks.language import LanguageModeling
from headcount.tasks.load import load_task
from headcount.tasks.translation import Translation

__all__ = [
    "BaseTask",
    "Batch",
    "Classification",
    "LanguageModeling",
    "Metric",
    "Task",
    "Translation",
    "load_task",
]
