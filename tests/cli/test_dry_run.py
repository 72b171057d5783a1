"""`--dry-run`: every long command says how long it would take, from samples of its data, and keeps nothing."""

import json
import time

import pytest

from headcount import save
from headcount.cli.command_run import Sample, estimate
from headcount.cli.options import Setup
from headcount.tasks.text import word_tokenizer
from tiny_models import bert
from toy_jobs import WORDS, classification, sentences


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("dry")
    save(bert(pad_token_id=0), root / "model", word_tokenizer(WORDS))
    for name, start in (("train", 0), ("dev", 1)):
        lines = [f"{text}\t{place % 2}\n" for place, text in enumerate(sentences(start, 40))]
        (root / f"{name}.tsv").write_text("".join(lines))
    return root


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate"],
        ["ablate"],
        ["compare", "--against", "train.tsv"],
        ["compare", "model"],
        ["importance"],
        ["curve", "--score-data", "train.tsv", "--step", "0.5"],
        ["gates", "--lambda", "0.1"],
        ["track", "--score-data", "train.tsv", "--step", "0.5"],
        ["roles", "--parser", "none"],
        ["bench", "--length", "4", "--batch", "1"],
        ["prune", "--score-data", "train.tsv", "--heads", "2"],
    ],
)
def test_every_long_command_can_be_forecast(headcount, place, monkeypatch, words):
    monkeypatch.chdir(place)
    before = sorted(place.rglob("*"))
    name, *rest = words
    other = [rest.pop(0)] if rest and not rest[0].startswith("-") else []
    answer = headcount(name, "model", *other, "--data", "dev.tsv", *rest, "--dry-run", "--json", "--out", "run", "-q")
    assert (answer.code, answer.err) == (0, "")
    assert json.loads(answer.out)["seconds"] > 0
    assert sorted(place.rglob("*")) == before


def test_it_is_said_in_words(headcount, place):
    answer = headcount("evaluate", place / "model", "--data", place / "dev.tsv", "--dry-run")
    assert answer.code == 0
    assert "40 examples" in answer.out
    assert "second" in answer.out
    assert "accuracy" not in answer.out


def test_a_command_that_takes_a_second_and_a_tenth_per_example_is_forecast_so(monkeypatch):
    """By a clock that only the command moves on."""
    now = [0.0]
    for clock in ("perf_counter", "process_time"):
        monkeypatch.setattr(time, clock, lambda: now[0])
    setup, task = Setup("model"), classification(n=200)

    def command():
        part = setup.sample.of(("dev.tsv",), lambda: task)
        now[0] += 1 + 0.1 * sum(part.lengths)

    found = estimate(setup, command)
    assert found["seconds"] == found["processor_seconds"] == pytest.approx(1 + 0.1 * sum(task.lengths))
    assert found["measured"][-1][0] < sum(task.lengths)
    assert setup.sample is None


def test_data_sets_keep_their_proportions():
    sample, large, small = Sample(), classification(n=60), classification(n=30)
    for _ in range(2):  # from the second time on, all sizes are known
        sample.begin(20)
        assert len(sample.of("large", lambda: large)) == 20
        other = sample.of("small", lambda: small)
    assert len(other) == 10
    assert sample.all_tokens == sum(large.lengths) + sum(small.lengths)
