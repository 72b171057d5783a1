"""The tasks that the documentation shows are run as they stand there."""

import re
import sys
import types
from collections import Counter

import numpy as np
import pytest
import torch
from transformers import BertForTokenClassification

import headcount
import headcount.tasks
from every_task import every_task
from headcount import evaluate
from headcount.cli import main
from headcount.cli.model_loading import load_model
from headcount.stats import interval
from tiny_models import bert, marian


@pytest.fixture
def shown(repository):
    """The names that the page's four examples define."""
    page = (repository / "docs/tasks.md").read_text(encoding="utf-8")
    blocks = [block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "class " in block]
    assert len(blocks) == 4
    names = {}
    for block in blocks:
        exec(block, names)
    return types.SimpleNamespace(**names)


SHOWN = {  # what the page calls a model and its data
    "classification": ("classifier", "reviews.jsonl"),
    "regression": ("regressor", "scores.jsonl"),
    "tagging": ("tagger", "entities.tsv"),
    "answering": ("answerer", "questions.json"),
    "choice": ("chooser", "choices.jsonl"),
    "endings": ("gpt", "endings.jsonl"),
    "embedding": ("embedder", "pairs.jsonl"),
    "translation": ("translator", "captions.jsonl"),
    "summarization": ("summarizer", "articles.jsonl"),
    "speech": ("whisper", "recordings/transcripts.tsv"),
    "images": ("vit", "pictures"),
    "causal": ("gpt", "texts.jsonl"),
}


def test_the_command_of_every_task(repository, tmp_path, monkeypatch, capsys):
    page = (repository / "docs/tasks.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```sh\n(headcount evaluate.*?)```", page, re.S)
    commands = block.strip().splitlines()
    for kind, (name, data) in SHOWN.items():
        model, made = every_task(kind, tmp_path / kind, size=6)
        if not (tmp_path / name).exists():
            model.rename(tmp_path / name)
        place = tmp_path / data
        (made.parent if "/" in data else made).rename(place.parent if "/" in data else place)
        assert any(f"./{name} --data {data}" in command for command in commands)
    monkeypatch.chdir(tmp_path)
    for command in commands:
        monkeypatch.setattr(sys, "argv", command.split())
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 0, capsys.readouterr().err
        assert re.match(r"\w+@?\d* -?[\d.]+ \(95% interval", capsys.readouterr().out)


def test_the_example_without_labels(repository, tmp_path, monkeypatch):
    page = (repository / "docs/tasks.md").read_text(encoding="utf-8")
    (block,) = [one for one in re.findall(r"```python\n(.*?)```", page, re.S) if "unlabeled(" in one]
    path, data = every_task("classification", tmp_path / "it", size=60)
    lines = data.read_text().splitlines(keepends=True)
    (tmp_path / "train.jsonl").write_text("".join(lines[:30]))
    (tmp_path / "dev.jsonl").write_text("".join(lines[30:]))
    monkeypatch.chdir(tmp_path)
    model, tokenizer = load_model(str(path))
    names = {"model": model, "tokenizer": tokenizer}
    exec(block, names)
    assert names["pruned"].metric.name == "agreement"
    assert "of predictions stay the same, 95% confidence" in names["pruned"].verdict_in_words()


def test_a_metric_of_rows(repository):
    page = (repository / "docs/tasks.md").read_text(encoding="utf-8")
    (block,) = [one for one in re.findall(r"```python\n(.*?)```", page, re.S) if "of_rows" in one]
    names = {"np": np, "Metric": headcount.tasks.Metric}
    exec(block, names)
    rows = np.array([[1.0], [5.0], [9.0]])
    assert float(names["middle"].of(rows)) == 5
    assert names["middle"].of_counts(rows, np.array([[1, 1, 1], [3, 0, 0]])).tolist() == [5, 1]
    low, high = interval(np.random.default_rng(0).normal(size=(200, 1)), names["middle"])
    assert -0.4 < low < 0 < high < 0.4


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


TEXTS = ["a fine dog runs", "the dull film", "a cat sleeps", "the fine cat"]
WORDS = [
    "chien court bien",
    "dog film cat",
    "film film cat",
    "le chat",
]  # some of which a random model happens to write
MASKS = [["encoder.0.1"], ["cross.1.0"], ["decoder.1.2", "encoder.1.3"]]


@pytest.fixture
def summaries(shown, marian_tokenizer):
    return shown.Summaries(TEXTS, WORDS, marian_tokenizer)


def expected_f1(task, model, heads_off=()):
    """Decoded one by one, with the words counted one by one; 0, 2 and 3 are <pad>, </s> and <unk>."""
    shared = total = 0
    for i in range(len(task)):
        batch = task.batch([i])
        with torch.inference_mode(), headcount.masked(model, off=heads_off):
            (written,) = task.decode(model, batch).tolist()
        words, reference = ([id for id in ids if id not in (0, 2, 3)] for ids in (written, batch.labels[0].tolist()))
        shared += sum(min(words.count(id), count) for id, count in Counter(reference).items())
        total += len(words) + len(reference)
    return 2 * shared / total


def test_the_generating_task(summaries):
    model = marian()
    assert summaries.check(model) == []
    outcomes = evaluate(model, summaries)
    assert outcomes.values.shape == (1, 4, 3)
    assert outcomes.values[0, :, 2].tolist() == [3, 3, 3, 2]  # words of the references
    assert 0 < outcomes.scores()[0] == pytest.approx(expected_f1(summaries, model))


def test_the_generating_task_under_masks(summaries):
    """It declares no drafts, so it needs nothing that drafted decoding asks for."""
    assert not hasattr(summaries, "limits")
    model = marian()
    scores = evaluate(model, summaries, MASKS).scores().tolist()
    assert scores == pytest.approx([expected_f1(summaries, model, heads) for heads in MASKS])
    assert len(set(scores)) == 3  # the masks make a difference


def test_the_drafted_task(shown, marian_tokenizer):
    task, model = shown.DraftedSummaries(TEXTS, WORDS, marian_tokenizer), marian()
    scores = evaluate(model, task, MASKS).scores().tolist()
    assert scores == pytest.approx([expected_f1(task, model, heads) for heads in MASKS])
