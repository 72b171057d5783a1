"""Tasks: data, a loss per example, and per-example statistics that every metric is a function of."""

from headcount.tasks.base import Batch, Metric, Task
from headcount.tasks.base_task import BaseTask
from headcount.tasks.classification import Classification

__all__ = ["BaseTask", "Batch", "Classification", "Metric", "Task"]
