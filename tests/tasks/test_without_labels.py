"""`unlabeled`: the original model is the reference, and its curvature is what importance is about."""

import copy

import numpy as np
import pytest
import torch

from headcount import evaluate, importance, load_task, masked, prune, unlabeled
from headcount.evaluation import Outcomes
from headcount.tasks.text import word_tokenizer
from headcount.tasks.without_labels import LIKELIEST, counted
from tiny_models import bert, gpt, marian

WORDS = "a the fine dull film dog cat runs sleeps un le chien chat court dort bien mal"
TEXTS = [" ".join(np.random.default_rng(i).choice(WORDS.split(), 2 + i % 6)) for i in range(40)]


@pytest.fixture(scope="module")
def classifier():
    model, tokenizer = bert(num_labels=3), word_tokenizer(WORDS)
    return model, load_task("classification", [{"text": text} for text in TEXTS], tokenizer, model, labels="none")


def test_texts_alone_are_enough(classifier):
    model, task = classifier
    assert task.signature()["labels"] == "none"
    assert task.signature()["reference"]
    found = evaluate(model, task, [[], ["encoder.0.1", "encoder.1.2"]])
    assert found.score() == 1.0
    assert np.allclose(found.of()[:, 2], 0, atol=1e-6)


def test_divergence_and_agreement_by_hand(classifier):
    model, task = classifier
    off = ["encoder.0.0", "encoder.0.1", "encoder.1.0"]
    values = evaluate(model, task, [off]).values[0]
    for i in range(len(task)):
        batch = task.batch([i])
        with torch.no_grad():
            before = model(**batch.inputs).logits[0].log_softmax(0)
            with masked(model, off=off):
                after = model(**batch.inputs).logits[0].log_softmax(0)
        assert values[i, 2] == pytest.approx((before.exp() * (before - after)).sum().item(), abs=1e-5)
        assert values[i, 1] == (before.argmax() == after.argmax())
    assert 0 < values[:, 1].sum() < len(task)


def test_a_large_vocabulary_is_merged_into_the_likeliest_and_the_rest():
    model, tokenizer = gpt(vocab_size=2000), word_tokenizer(WORDS, "gpt")
    labelled = load_task(None, [{"text": text} for text in TEXTS[:6]], tokenizer, model)
    task = unlabeled(labelled, model, "divergence")
    other = copy.deepcopy(model)
    torch.nn.init.normal_(other.transformer.h[1].mlp.c_proj.weight, std=0.2)
    batch = task.batch(range(6))
    with torch.no_grad():
        ours, owner = counted(task.outputs(model, batch), batch)
        theirs, _ = counted(task.outputs(other, batch), batch)
        before, after = ours.log_softmax(-1), theirs.log_softmax(-1)
        found = task.losses(task.outputs(other, batch), batch)
    for i in range(6):
        total = 0.0
        for p, q in zip(before[owner == i].double(), after[owner == i].double(), strict=True):
            top = p.topk(LIKELIEST).indices
            rest = torch.ones(2000, dtype=torch.bool)
            rest[top] = False
            p_rest, q_rest = p[rest].exp().sum(), q[rest].exp().sum()
            total += float((p[top].exp() * (p[top] - q[top])).sum() + p_rest * (p_rest / q_rest).log())
        assert found[i].item() == pytest.approx(total / int((owner == i).sum()), rel=1e-3)
        exact = (before[owner == i].exp() * (before - after)[owner == i]).sum(-1).mean()
        assert 0 < found[i].item() <= exact.item() * (1 + 1e-4)  # merging loses some divergence, never adds any


def test_scores_are_the_curvature_of_the_divergence(classifier):
    """The mean square of the gradients, over many draws, is the second derivative of the divergence."""
    model, task = classifier
    squares = np.zeros(8)
    for draw in range(60):
        for i, rows in enumerate(task.reference.rows):
            rng = torch.Generator().manual_seed(1000 * draw + i)
            task.reference.drawn[i] = torch.multinomial(rows.exp(), 1, generator=rng)[:, 0]
        squares += importance(model, task, "fisher").values.mean(0) / 60
    batch, step = task.batch(range(len(task))), 0.05
    curvature = []
    for head in range(8):
        losses = []
        for xi in (1 + step, 1 - step):
            values = torch.ones(8)
            values[head] = xi
            with torch.no_grad(), masked(model, xi=values):
                losses.append(task.losses(task.outputs(model, batch), batch).double().mean().item())
        curvature.append(sum(losses) / step**2)  # the divergence at 1 is 0
    assert np.corrcoef(squares, curvature)[0, 1] > 0.98
    assert squares == pytest.approx(curvature, rel=0.4)


def test_translations_are_compared_with_the_originals():
    model, tokenizer = marian(), word_tokenizer(WORDS, "marian")
    task = load_task(None, [{"en": text} for text in TEXTS[:8]], tokenizer, model, labels="none")
    assert task.metric.name == "bleu"
    assert evaluate(model, task).score() == pytest.approx(100)
    same = unlabeled(task.task, model, "agreement")
    masks = [[], ["cross.0.0", "cross.0.1", "cross.1.1"], ["encoder.0.1"]]
    found: Outcomes = evaluate(model, same, masks)
    assert found.score() == 1.0
    for mask, values in zip(masks, found.values, strict=True):
        with torch.inference_mode(), masked(model, off=mask):
            written = [task.task.decode(model, task.batch([i]))[0].tolist() for i in range(8)]
        expected = [row[: len(gold)] == gold for row, gold in zip(written, task.task.labels, strict=True)]
        assert values[:, 1].tolist() == expected


def test_the_verdict_is_about_predictions_that_stay(classifier):
    model, task = classifier
    train, dev = task.subset(range(20)), task.subset(range(20, 40))
    pruned = prune(model, train, dev, heads=2, method="fisher", overlap="allow")
    assert pruned.before == 1.0
    assert 0 <= pruned.after <= 1.0
    assert pruned.metric.name == "agreement"


def test_metrics_of_the_task_itself_are_against_its_own_output(classifier):
    model, _ = classifier
    tokenizer = word_tokenizer(WORDS)
    rows = [{"text": text} for text in TEXTS]
    for metric in ("f1_macro", "matthews", "divergence"):
        task = load_task("classification", rows, tokenizer, model, labels="none", metric=metric)
        assert task.metric.name == metric
        assert evaluate(model, task).score() == pytest.approx(0.0 if metric == "divergence" else 1.0, abs=1e-6)
    with pytest.raises(Exception, match=r"'cosine'.*agreement, divergence"):
        unlabeled(load_task("classification", [{"text": "a", "label": 0}], tokenizer, model), model, "cosine")
