"""Every metric of sums against the library that everybody uses."""

import numpy as np
import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU, CHRF
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from headcount.errors import BadData
from headcount.tasks import metrics

WORDS = ["the", "a", "cat", "dog", "sat", "on", "mat", ",", ".", "red"]


def classification_sums(true, predicted, classes):
    eye = np.eye(classes)
    both = eye[true] * (true == predicted)[:, None]
    ones = np.ones((len(true), 1))
    rows = [ones, (true == predicted)[:, None], 0.5 * ones, eye[true], eye[predicted], both]
    return np.concatenate(rows, axis=1).sum(0)


@pytest.mark.filterwarnings("ignore:A single label")
@settings(max_examples=150, deadline=None)
@given(st.integers(2, 5), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_classification_metrics_are_those_of_scikit_learn(classes, n, seed):
    true, predicted = np.random.default_rng(seed).integers(0, classes, size=(2, n))
    sums = classification_sums(true, predicted, classes)
    assert metrics.accuracy(sums) == pytest.approx(accuracy_score(true, predicted))
    assert metrics.matthews(sums) == pytest.approx(matthews_corrcoef(true, predicted))
    macro = f1_score(true, predicted, average="macro", zero_division=0)
    assert metrics.f1_macro(sums) == pytest.approx(macro)
    if classes == 2:
        assert metrics.f1(sums) == pytest.approx(f1_score(true, predicted, zero_division=0))


def test_metrics_work_on_any_leading_dimensions():
    rng = np.random.default_rng(0)
    cases = [[classification_sums(*rng.integers(0, 3, (2, 9)), 3) for _ in range(4)] for _ in range(2)]
    sums = np.array(cases)  # (2, 4, S)
    for metric in (metrics.accuracy, metrics.f1_macro, metrics.matthews, metrics.loss):
        assert metric(sums).shape == (2, 4)
        assert metric(sums)[1, 2] == metric(sums[1, 2])


# Counts as sacrebleu can meet them: no order has more n-grams than the one before, matches are among them.
@st.composite
def bleu_counts(draw):
    produced, reference = draw(st.integers(0, 60)), draw(st.integers(1, 60))
    sentences = draw(st.integers(1, 5))
    total = [max(0, produced - sentences * order) for order in range(4)]
    correct = [draw(st.integers(0, total[0]))]
    for order in range(1, 4):
        correct.append(draw(st.integers(0, min(total[order], correct[-1]))))
    return [produced, reference, *correct, *total]


@settings(max_examples=400, deadline=None)
@given(st.lists(bleu_counts(), min_size=1, max_size=6))
def test_bleu_of_sums_is_sacrebleus(counts):
    expected = [BLEU()._compute_score_from_stats(list(row)).score for row in counts]
    # numpy's exp and log can differ from those of the C library, which sacrebleu uses, in the last bit
    assert metrics.bleu(np.array(counts, float)).tolist() == pytest.approx(expected, rel=1e-13, abs=0)


@st.composite
def chrf_counts(draw):
    row = []
    for _ in range(6):
        produced, reference = draw(st.integers(0, 50)), draw(st.integers(0, 50))
        row += [produced, reference, draw(st.integers(0, min(produced, reference)))]
    return row


@settings(max_examples=400, deadline=None)
@given(st.lists(chrf_counts(), min_size=1, max_size=6))
def test_chrf_of_sums_is_sacrebleus_to_the_last_digit(counts):
    expected = [CHRF()._compute_score_from_stats(list(row)).score for row in counts]
    assert metrics.chrf(np.array(counts, float)).tolist() == expected


sentences = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(sentences, sentences), min_size=1, max_size=6))
def test_bleu_and_chrf_of_texts_are_sacrebleus(pairs):
    outputs, references = [a for a, _ in pairs], [b for _, b in pairs]
    for counter, ours, theirs in (
        (BLEU(), metrics.bleu, sacrebleu.corpus_bleu),
        (CHRF(), metrics.chrf, sacrebleu.corpus_chrf),
    ):
        sums = np.sum(counter._extract_corpus_statistics(outputs, [references]), axis=0).astype(float)
        assert float(ours(sums)) == pytest.approx(theirs(outputs, [references]).score, rel=1e-13, abs=0)


def test_perplexity_is_the_exponential_of_the_token_loss():
    sums = np.array([[10.0, 4.0, 23.0]])
    assert metrics.loss(sums)[0] == 2.3
    assert metrics.perplexity(sums)[0] == pytest.approx(np.exp(2.3))


def test_an_unknown_metric_gets_a_suggestion():
    with pytest.raises(BadData, match=r"'acuracy'.*'accuracy'"):
        metrics.pick(metrics.CLASSIFICATION, "acuracy")
