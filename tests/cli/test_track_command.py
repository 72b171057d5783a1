"""`headcount track`: table, JSON, resuming, and refusals in one sentence."""

import json

import pytest

import tiny_models
from headcount import save
from headcount.tasks.text import word_tokenizer
from toy_jobs import WORDS, sentences


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("tracked")
    for number, spread in ((1, 0.1), (2, 0.3), (10, 0.5)):
        model = tiny_models.bert(pad_token_id=0, initializer_range=spread)
        save(model, root / f"epoch-{number}", tokenizer=word_tokenizer(WORDS))
    for name, start in (("train", 0), ("dev", 1)):
        rows = [f"{text}\t{int('fine' in text or 'bien' in text)}\n" for text in sentences(start, 24)]
        (root / f"{name}.tsv").write_text("".join(rows))
    return root


def test_track(headcount, place, tmp_path):
    epochs = [place / f"epoch-{number}" for number in (1, 10, 2)]  # as a shell expands epoch-*
    data = ("--score-data", place / "train.tsv", "--data", place / "dev.tsv", "--step", "0.5", "--orders", "1")
    asked = ("track", *epochs, *data, "--out", tmp_path / "run")
    found = json.loads(headcount(*asked, "--json").out)
    assert [one["name"] for one in found["checkpoints"]] == ["epoch-1", "epoch-2", "epoch-10"]
    assert {"name", "base", "points", "advantage"} <= set(found["checkpoints"][0])
    assert len(found["checkpoints"][0]["points"]) == 6
    assert found["metric"] == "accuracy"
    assert len(found["with_last"]) == len(found["with_next"]) == 2
    assert json.loads((tmp_path / "run" / "run.json").read_text())["checkpoints"] == found["checkpoints"]
    table = headcount(*asked).out
    assert "epoch-10" in table
    assert found["in_words"] in table


def test_a_share_of_nothing_is_not_a_number():
    from headcount.cli.curve import _known

    assert (_known(float("nan"), ".0f"), _known(0.126, "+.2f")) == ("\u2013", "+0.13")


def test_one_checkpoint(headcount, place):
    data = ("--score-data", place / "train.tsv", "--data", place / "dev.tsv", "--step", "0.5", "--orders", "1")
    assert "one checkpoint" in headcount("track", place / "epoch-1", *data).out


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["nowhere"], "nowhere"),
        (["epoch-1", "epoch-1"], "named twice"),
        (["epoch-1", "other"], "encoder.0 is 2 heads of 8, not 4 heads of 4"),
        (["epoch-1", "--data", "train.tsv"], "24 of 24"),
    ],
)
def test_refusals(headcount, place, monkeypatch, given, words):
    monkeypatch.chdir(place)
    if not (place / "other").exists():
        save(tiny_models.bert(pad_token_id=0, num_attention_heads=2), place / "other", tokenizer=word_tokenizer(WORDS))
    result = headcount("track", "--score-data", "train.tsv", "--data", "dev.tsv", *given)
    assert result.code == 1
    assert words in result.err
    assert "Traceback" not in result.err


def test_a_step_of_nothing_is_wrong_usage(headcount, place, monkeypatch):
    monkeypatch.chdir(place)
    result = headcount("track", "--score-data", "train.tsv", "--data", "dev.tsv", "epoch-1", "--step", "0")
    assert result.code == 2
    assert "--step" in result.err


def test_the_page_runs_as_it_stands(place, tmp_path, monkeypatch, repository):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").symlink_to(place)
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).symlink_to(place / name)
    page = (repository / "docs" / "dynamics.md").read_text(encoding="utf-8")
    names = {}
    exec(page.split("```python\n")[1].split("```")[0], names)
    tracked = names["tracked"]
    assert [one.name for one in tracked.checkpoints] == ["epoch-1", "epoch-2", "epoch-10"]
    for key in tracked.to_json():
        assert f"`{key}`" in page
    for key in ("method", "pruned", "removed", "score", "low", "high", "relative"):
        assert hasattr(tracked.checkpoints[0].points[0], key)
