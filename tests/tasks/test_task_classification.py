"""Classification: statistics against scikit-learn, labels, and everything it refuses."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from datasets import ClassLabel, Dataset, Features, Value
from sklearn.metrics import accuracy_score, f1_score, log_loss, matthews_corrcoef

from headcount.errors import BadData
from headcount.tasks import Classification, Rows, metrics
from headcount.tasks.classification import class_ids
from tiny_models import bert, gpt_classifier

RNG = np.random.default_rng(0)
WORDS = ["a", "the", "fine", "dull", "film", "dog", "cat", "runs", "sleeps"]
ROWS = [{"text": " ".join(RNG.choice(WORDS, RNG.integers(1, 10))), "label": int(RNG.integers(3))} for _ in range(40)]


def evaluated(task, model, size=7):
    """Statistics (N, S) and logits (N, C), in the task's order, from batches that mix lengths."""
    statistics, logits = [], []
    with torch.no_grad():
        for start in range(0, len(task), size):
            batch = task.batch(range(start, min(start + size, len(task))))
            outputs = task.outputs(model, batch)
            statistics.append(task.statistics(outputs, batch))
            logits.append(outputs)
    return torch.cat(statistics), torch.cat(logits)


@pytest.mark.parametrize("metric", ["accuracy", "f1_macro", "matthews", "loss"])
def test_the_score_is_scikit_learns(tokenizer, metric):
    task, model = Classification(ROWS, tokenizer, metric=metric), bert(num_labels=3)
    task.check(model)
    statistics, logits = evaluated(task, model)
    true, predicted = [row["label"] for row in ROWS], logits.argmax(-1).tolist()
    expected = {
        "accuracy": accuracy_score(true, predicted),
        "f1_macro": f1_score(true, predicted, average="macro", zero_division=0),
        "matthews": matthews_corrcoef(true, predicted),
        "loss": log_loss(true, logits.double().softmax(-1), labels=[0, 1, 2]),
    }
    assert len(set(predicted)) > 1
    assert statistics.dtype == torch.float64
    assert task.metric.of_sums(statistics.sum(0).numpy()) == pytest.approx(expected[metric], rel=1e-6)
    # Whatever the metric, the first three statistics also give accuracy and loss.
    assert metrics.accuracy(statistics.sum(0).numpy()) == pytest.approx(expected["accuracy"])
    assert metrics.loss(statistics.sum(0).numpy()) == pytest.approx(expected["loss"], rel=1e-6)


def test_binary_f1_is_scikit_learns(tokenizer):
    rows = [{**row, "label": row["label"] % 2} for row in ROWS]
    task, model = Classification(rows, tokenizer, metric="f1"), bert(num_labels=2)
    statistics, logits = evaluated(task, model)
    expected = f1_score([row["label"] for row in rows], logits.argmax(-1))
    assert 0 < expected < 1
    assert task.metric.of_sums(statistics.sum(0).numpy()) == pytest.approx(expected)


def test_results_do_not_depend_on_the_batch(tokenizer):
    task, model = Classification(ROWS, tokenizer), bert(num_labels=3)
    torch.testing.assert_close(evaluated(task, model, 1)[1], evaluated(task, model, 40)[1], atol=1e-5, rtol=0)


def test_losses_are_differentiable_and_per_example(tokenizer):
    task, model = Classification(ROWS, tokenizer), bert(num_labels=3)
    batch = task.batch([3, 1])
    losses = task.losses(task.outputs(model, batch), batch)
    reference = model(**batch.inputs, labels=batch.labels).loss
    assert losses.shape == (2,)
    assert losses.mean().item() == pytest.approx(reference.item(), rel=1e-5)
    losses.sum().backward()
    assert model.classifier.weight.grad.abs().sum() > 0


def test_pairs_are_joined_with_token_types(tokenizer):
    rows = [{"premise": "a dog runs", "hypothesis": "a cat", "label": 0}]
    task = Classification(rows, tokenizer)
    inputs = task.batch([0]).inputs
    assert tokenizer.decode(inputs["input_ids"][0]) == "<s> a dog runs </s> a cat </s>"
    assert inputs["token_type_ids"].tolist() == [[0, 0, 0, 0, 0, 1, 1, 1]]
    assert "texts: columns 'premise' and 'hypothesis'" in task.check(bert())


def test_a_decoder_without_a_pad_token_reads_the_last_real_token(gpt_tokenizer):
    rows = [{"text": "a dog", "label": 0}, {"text": "the cat sleeps", "label": 1}]
    task, model = Classification(rows, gpt_tokenizer), gpt_classifier(num_labels=2)
    remarks = task.check(model)
    assert "the tokenizer has no pad token: '</s>' is used" in remarks
    together, alone = evaluated(task, model, 2)[1], evaluated(task, model, 1)[1]
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)
    assert model.config.pad_token_id is None  # set for the call only


@pytest.mark.parametrize(
    ("values", "label2id", "expected"),
    [
        ([1, 0, 1], None, [1, 0, 1]),
        (["1", " 0", "1"], None, [1, 0, 1]),
        ([1.0, 0.0, 1.0], None, [1, 0, 1]),
        ([True, False, True], None, [1, 0, 1]),
        (["pos", "neg", "pos"], {"NEGATIVE": 0, "POS": 1, "neg": 0}, [1, 0, 1]),
        (["LABEL_1", "LABEL_0", "LABEL_1"], {"LABEL_0": 0, "LABEL_1": 1}, [1, 0, 1]),
        (["1", "5", "1"], {"1": 0, "5": 1}, [0, 1, 0]),
        ([1, 0, 1], {"entailment": 0, "contradiction": 1}, [1, 0, 1]),
    ],
)
def test_labels_are_numbered_as_the_model_numbers_them(values, label2id, expected):
    assert class_ids(Rows({"label": values}), "label", label2id)[0] == expected


def test_named_classes_of_a_data_set_are_matched_by_name():
    features = Features(text=Value("string"), label=ClassLabel(names=["entailment", "contradiction"]))
    data = Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}, features=features)
    assert class_ids(Rows.of(data), "label", {"CONTRADICTION": 0, "ENTAILMENT": 1}) == ([1, 0], {}, [])
    ids, _, remarks = class_ids(Rows.of(data), "label", {"yes": 0, "no": 1})
    assert ids == [0, 1]
    assert len(remarks) == 1
    assert "(entailment, contradiction)" in remarks[0]


@pytest.mark.parametrize(
    ("values", "label2id", "message"),
    [
        (["neg", "pos"], {"bad": 0, "good": 1}, "example 0, column 'label': .*'neg'.*bad = 0, good = 1"),
        ([0, 2], {"LABEL_0": 0, "LABEL_1": 1}, "example 1, column 'label': .*'2'.*0 to 1"),
        (
            ["neg", "pos"],
            {"LABEL_0": 0, "LABEL_1": 1},
            "example 0, column 'label': .*neg, pos.*LABEL_0, LABEL_1",
        ),
        ([0, -1], None, "example 1, column 'label': .*'-1'"),
        ([0, None], None, "example 1, column 'label': .*no label"),
        ([0, ""], None, "example 1, column 'label': .*no label"),
        ([0.0, float("nan")], None, "example 1, column 'label': .*no label"),
        (["a", "b"], {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}, "example 0, column 'label': .*'a'.*0 to 2"),
    ],
)
def test_labels_the_model_does_not_know_are_refused(tokenizer, values, label2id, message):
    rows = [{"text": "a dog", "label": value} for value in values]
    with pytest.raises(BadData, match=message):
        Classification(rows, tokenizer, label2id=label2id)


def test_a_model_that_does_not_fit_is_refused(tokenizer):
    task, first = Classification(ROWS, tokenizer), [row["label"] for row in ROWS].index(2)
    with pytest.raises(BadData, match=rf"example {first}: label 2, .*2 classes \(0 to 1\)"):
        task.check(bert(num_labels=2))
    with pytest.raises(BadData, match="regression"):
        task.check(bert(num_labels=1))
    with pytest.raises(BadData, match="multi_label"):
        task.check(bert(num_labels=3, problem_type="multi_label_classification"))
    with pytest.raises(BadData, match=r"token 0\b.*\b7$"):
        task.check(bert(num_labels=3, pad_token_id=7))
    with pytest.raises(BadData, match=r"\b3\b.*f1_macro.*metric="):
        Classification(ROWS, tokenizer, metric="f1").check(bert(num_labels=3))


def test_guessed_label_numbers_must_be_the_models(tokenizer):
    task = Classification([{"text": "a dog", "label": name} for name in ("good", "bad")], tokenizer)
    assert task.labels == [1, 0]
    assert "labels numbered in sorted order: bad = 0, good = 1" in task.check(bert(num_labels=2))
    same, other = {"bad": 0, "good": 1}, {"good": 0, "bad": 1}
    assert task.check(bert(label2id=same, id2label={0: "bad", 1: "good"}))
    with pytest.raises(BadData, match=r"\(bad, good\).*\(good, bad\).*label2id="):
        task.check(bert(label2id=other, id2label={0: "good", 1: "bad"}))
    with pytest.raises(BadData, match=r"\(bad, good\).*LABEL_2.*label2id="):
        task.check(bert(num_labels=3))


def test_truncation_is_counted_and_said(tokenizer):
    task = Classification(ROWS, tokenizer, max_length=6)
    cut = sum(len(row["text"].split()) > 4 for row in ROWS)
    assert max(task.lengths) == 6
    assert f"{cut} of 40 texts truncated to 6 tokens" in task.check(bert(num_labels=3))
    assert all(ids[-1] == tokenizer.sep_token_id for ids in task.features["input_ids"])


def test_a_nan_loss_names_the_example(tokenizer, tmp_path):
    path = tmp_path / "dev.tsv"
    path.write_text("a fine film\t1\na dull film\t0\na dog\t1\n")
    task = Classification(path, tokenizer)
    batch = task.batch([0, 2])
    outputs = torch.tensor([[0.0, 1.0], [torch.nan, 0.0]])
    with pytest.raises(BadData, match=r"dev\.tsv, line 3: .* nan"):
        task.statistics(outputs, batch)


def test_texts_that_are_none_are_refused(tokenizer):
    with pytest.raises(BadData, match=r"example 1, column 'text': .*None"):
        Classification([{"text": "a", "label": 1}, {"text": None, "label": 0}], tokenizer)


def test_statistics_of_stacked_copies(tokenizer):
    task, model = Classification(ROWS, tokenizer, metric="matthews"), bert(num_labels=3)
    batch = task.batch([4, 2])
    with torch.no_grad():
        once = task.statistics(task.outputs(model, batch), batch)
        thrice = task.statistics(task.outputs(model, batch.repeat(3)), batch.repeat(3))
    torch.testing.assert_close(thrice, once.repeat(3, 1))


def test_half_precision_logits_give_full_precision_losses(tokenizer):
    task = Classification(ROWS, tokenizer)
    batch = task.batch([0, 1])
    logits = torch.tensor([[1.0, 2.0, 4.0], [0.5, 0.0, 1.0]])
    losses = task.losses(logits.half(), batch)
    assert losses.dtype == torch.float32
    torch.testing.assert_close(losses, F.cross_entropy(logits, batch.labels, reduction="none"))


@pytest.mark.slow
def test_the_real_classifier_scores_what_its_card_says(shared):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = shared / "models/minilm-sst2"
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    task = Classification(shared / "data/sst2/dev.tsv", AutoTokenizer.from_pretrained(folder))
    task.check(model)
    statistics, _ = evaluated(task, model, 64)
    assert task.metric.of_sums(statistics.sum(0).numpy()) == pytest.approx(0.880, abs=0.0015)
