"""Two models on the same examples: numbers by hand, agreement of predictions, and an export in a model's place."""

import numpy as np
import pytest
import torch

import tiny_models
import toy_jobs
from headcount import HeadcountError, compare_models, evaluate, export_onnx, remove
from headcount.errors import BadData
from headcount.stats import mcnemar_exact, noninferior
from headcount.tasks import Classification
from headcount.tasks.text import word_tokenizer

CUTS = {"classifier": ["encoder.0.1", "encoder.1"], "translator": ["cross.0", "encoder.1.0"], "causal": ["decoder.1"]}


@pytest.mark.parametrize("job", toy_jobs.JOBS)
def test_scores_change_and_agreement_are_those_of_two_evaluations(job):
    build, task_of = toy_jobs.JOBS[job]
    model, task = build(), task_of()
    other = remove(model, CUTS.get(job, ["encoder.1" if job == "masked" else "decoder.1"]))
    compared = compare_models(model, other, task, max_drop=2)
    base, after = evaluate(model, task), evaluate(other, task)
    assert (compared.before, compared.after) == pytest.approx((base.score(), after.score()))
    assert compared.change == pytest.approx(after.score() - base.score())
    assert compared.low <= compared.change <= compared.high
    margin = 2 * task.metric.points * (base.score() if task.metric.relative else 1)
    expected = noninferior(base.of(), after.of(), task.metric, margin, higher_is_better=task.metric.higher_is_better)
    assert (compared.verdict.shown, compared.verdict.bound) == (expected.shown, pytest.approx(expected.bound))
    same, of = 0, 0
    with torch.inference_mode():
        for index in range(len(task)):
            batch = task.batch([index])
            if task.generates:
                ids = [task.decode(one, batch)[0] for one in (model, other)]
                first, second = (task.tokenizer.decode(one, skip_special_tokens=True) for one in ids)
                same, of = same + (first == second), of + 1
            else:
                first, second = (task.outputs(one, batch).argmax(-1)[0] for one in (model, other))
                asked = batch.labels[0] != -100
                same, of = same + int(((first == second) & asked).sum()), of + int(asked.sum())
    assert compared.agreement == pytest.approx(same / of)
    if task.metric.name == "accuracy" and not task.generates and job != "masked":
        right = [outcomes.of()[:, 1] for outcomes in (base, after)]
        assert compared.p == pytest.approx(mcnemar_exact(right[0], right[1][None])[0])


def test_each_model_reads_the_texts_with_its_own_tokenizer_and_its_own_classes():
    rows = [{"text": "a fine film", "label": "good"}, {"text": "dull", "label": "bad"}] * 3
    numbers = {"good": 0, "bad": 1}, {"good": 1, "bad": 0}
    models, tasks = [], []
    for label2id, words in zip(numbers, ("a fine dull film", "film dull fine a"), strict=True):
        names = {"label2id": label2id, "id2label": {number: name for name, number in label2id.items()}}
        models.append(tiny_models.bert(pad_token_id=0, **names))
        tasks.append(Classification(rows, word_tokenizer(words), label2id=label2id))
    with torch.no_grad():  # both always say "good"
        for model, label2id in zip(models, numbers, strict=True):
            model.classifier.weight.zero_()
            model.classifier.bias.copy_(torch.eye(2)[label2id["good"]])
    compared = compare_models(*models, *tasks)
    assert (compared.before, compared.after, compared.agreement) == (0.5, 0.5, 1.0)
    with pytest.raises(BadData, match=r"6 examples.*cannot be paired with 4"):
        compare_models(*models, tasks[0], tasks[1].subset(range(4)))
    with pytest.raises(BadData, match=r"accuracy.*other_task by f1"):
        compare_models(*models, tasks[0], Classification(rows, tasks[1].tokenizer, label2id=numbers[1], metric="f1"))


@pytest.mark.parametrize("job", CUTS)
def test_an_export_is_compared_like_the_model_that_it_is_of(tmp_path, job):
    build, task_of = toy_jobs.JOBS[job]
    model, task = build(), task_of()
    smaller = remove(model, CUTS[job])
    export_onnx(smaller, tmp_path / "small.onnx")
    compared, expected = (compare_models(model, other, task) for other in (tmp_path / "small.onnx", smaller))
    assert (compared.before, compared.after) == pytest.approx((expected.before, expected.after), rel=1e-4)
    assert compared.agreement == pytest.approx(expected.agreement)


def test_a_run_is_resumed(tmp_path):
    build, task_of = toy_jobs.JOBS["classifier"]
    model, task = build(), task_of()
    other = remove(model, ["encoder.0.1"])
    first = compare_models(model, other, task, run=tmp_path / "run")
    shards = sorted((tmp_path / "run/outcomes").iterdir())
    assert len(shards) == 2
    shards[0].unlink()
    again = compare_models(model, other, task, run=tmp_path / "run")
    assert again.to_json() == first.to_json()
    assert np.isfinite(again.p)
    with pytest.raises(HeadcountError, match=r"not the same|made with"):
        compare_models(model, remove(model, ["encoder.0.2"]), task, run=tmp_path / "run")
