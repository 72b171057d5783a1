"""Tasks: data, a loss per example, and per-example statistics that every metric is a function of."""

from headcount.tasks.answering import SPAN, QuestionAnswering
from headcount.tasks.choice import LikeliestEnding, MultipleChoice
from headcount.tasks.classification import Classification
from headcount.tasks.columns import LABELS, Column, find_text, find_translation
from headcount.tasks.language import LanguageModeling
from headcount.tasks.metrics import ACCURACY, Metric
from headcount.tasks.perception import ImageClassification, SpeechRecognition
from headcount.tasks.registry import guess_kind, load_task, refuse_unknown
from headcount.tasks.rows import Rows
from headcount.tasks.similarity import Embedding, Pooling, Regression
from headcount.tasks.tagging import TokenClassification
from headcount.tasks.task import BaseTask, Batch, DraftingTask, Task, digest, padded, refuse_non_tasks
from headcount.tasks.text import length_limit, pad_token, refuse_non_tokenizer, texts_of, tokenized
from headcount.tasks.translation import EndAtLimit, Summarization, Translation, generator
from headcount.tasks.without_labels import counted, unlabeled

__all__ = [
    "ACCURACY",
    "LABELS",
    "SPAN",
    "BaseTask",
    "Batch",
    "Classification",
    "Column",
    "DraftingTask",
    "Embedding",
    "EndAtLimit",
    "ImageClassification",
    "LanguageModeling",
    "LikeliestEnding",
    "Metric",
    "MultipleChoice",
    "Pooling",
    "QuestionAnswering",
    "Regression",
    "Rows",
    "SpeechRecognition",
    "Summarization",
    "Task",
    "TokenClassification",
    "Translation",
    "counted",
    "digest",
    "find_text",
    "find_translation",
    "generator",
    "guess_kind",
    "length_limit",
    "load_task",
    "pad_token",
    "padded",
    "refuse_non_tasks",
    "refuse_non_tokenizer",
    "refuse_unknown",
    "texts_of",
    "tokenized",
    "unlabeled",
]
