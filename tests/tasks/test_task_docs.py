"""The tasks that the documentation shows are run as they stand there."""

import re
import types

import numpy as np
import pytest
import torch
from transformers import BertForTokenClassification

import headcount.tasks
from tiny_models import bert


@pytest.fixture
def shown(repository):
    """The names that the page's two examples define."""
    page = (repository / "docs/tasks.md").read_text(encoding="utf-8")
    blocks = [block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "class " in block]
    assert len(blocks) == 2
    names = {}
    for block in blocks:
        exec(block, names)
    return types.SimpleNamespace(**names)


def test_the_similarity_task(shown, tokenizer):
    rng = np.random.default_rng(0)
    words = ["a", "the", "fine", "dull", "film", "dog", "cat", "runs"]
    rows = [
        {"sentence1": " ".join(rng.choice(words, 3)), "sentence2": " ".join(rng.choice(words, 4)), "score": i % 5}
        for i in range(12)
    ]
    task, model = shown.Similarity(rows, tokenizer), bert(num_labels=1)
    assert isinstance(task, headcount.tasks.BaseTask)
    assert task.check(model) == []
    batch = task.batch(range(12))
    outputs = task.outputs(model, batch)
    score = task.metric.of_sums(task.statistics(outputs, batch).sum(0).numpy())
    expected = np.corrcoef(outputs.detach().squeeze(-1), [row["score"] for row in rows])[0, 1]
    assert score == pytest.approx(expected, abs=1e-5)
    task.losses(outputs, batch).sum().backward()
    assert model.classifier.weight.grad is not None
    assert task.subset([3, 4]).keys() == task.keys()[3:5]
    assert task.signature()["task"] == "similarity"


def test_the_tagging_task(shown):
    ids, tags = [[5, 6, 7], [8, 9]], [[0, 1, -100], [1, 2]]
    task, model = shown.Tagging(ids, tags), bert(BertForTokenClassification, num_labels=3)
    batch = task.batch([0, 1])
    with torch.no_grad():
        outputs = task.outputs(model, batch)
        own = model(**batch.inputs, labels=batch.labels).loss
    right = [outputs[i, j].argmax() == tag for i, row in enumerate(tags) for j, tag in enumerate(row) if tag >= 0]
    statistics = task.statistics(outputs, batch)
    assert task.metric.of_sums(statistics.sum(0).numpy()) == np.mean(right)
    assert torch.allclose(task.losses(outputs, batch).mean(), own)  # both have two tags
