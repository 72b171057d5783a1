"""Tasks: data, a loss per example, and per-example statistics that every metric is a function of."""

from headcount.tasks.classification import Classification
from headcount.tasks.columns import Column, find_text
from headcount.tasks.language import LanguageModeling
from headcount.tasks.registry import load_task
from headcount.tasks.rows import Rows
from headcount.tasks.task import BaseTask, Batch, DraftingTask, Metric, Task, digest, padded, refuse_non_tasks
from headcount.tasks.text import length_limit, pad_token, refuse_non_tokenizer, texts_of
from headcount.tasks.translation import EndAtLimit, Translation

__all__ = [
    "BaseTask",
    "Batch",
    "Classification",
    "Column",
    "DraftingTask",
    "EndAtLimit",
    "LanguageModeling",
    "Metric",
    "Rows",
    "Task",
    "Translation",
    "digest",
    "find_text",
    "length_limit",
    "load_task",
    "pad_token",
    "padded",
    "refuse_non_tasks",
    "refuse_non_tokenizer",
    "texts_of",
]
