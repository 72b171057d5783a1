"""`headcount importance`, `curve` and `prune`: tables, JSON, run directories, and refusals in one sentence."""

import json

import pytest

import tiny_models
from headcount import anatomy, load, save
from headcount.tasks.toy import word_tokenizer
from toy_jobs import WORDS, sentences


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A classifier and a translator with their tokenizers, and data for them."""
    root = tmp_path_factory.mktemp("jobs")
    save(tiny_models.bert(pad_token_id=0), root / "classifier", tokenizer=word_tokenizer(WORDS))
    save(tiny_models.marian(), root / "translator", tokenizer=word_tokenizer(WORDS, "marian"))
    for name, start, n in (("train", 0, 24), ("dev", 1, 24), ("test", 2, 24)):
        texts = sentences(start, n)
        rows = [f"{text}\t{int('fine' in text or 'bien' in text)}\n" for text in texts]
        (root / f"{name}.tsv").write_text("".join(rows))
        (root / f"{name}.en").write_text("".join(f"{text}\n" for text in texts[:8]))
        (root / f"{name}.fr").write_text("".join(f"le {text}\n" for text in texts[:8]))
    (root / "one.tsv").write_text("".join(row for row in (root / "train.tsv").open() if row.endswith("1\n")))
    (root / "empty.tsv").write_text("")
    return root


def answer(result):
    assert result.code == 0, result.err
    return json.loads(result.out)


def refused(result, *words):
    assert result.code == 1
    assert "Traceback" not in result.err
    last = result.err.strip().splitlines()[-1]
    return all(word in result.err for word in words) and last != ""


def test_importance(headcount, place, tmp_path):
    ask = ("importance", place / "classifier", "--data", place / "train.tsv")
    found = answer(headcount(*ask, "--json", "--out", tmp_path / "run"))
    assert found["method"] == "gradient"
    assert len(found["heads"]) == 8
    assert {"head", "score", "normalized", "low", "high"} <= set(found["heads"][0])
    assert found["signature"]["tasks"][0]["n"] == found["n"] == 24
    assert json.loads((tmp_path / "run" / "run.json").read_text())["finished"]
    assert (tmp_path / "run" / "scores.json").exists()
    table = headcount(*ask, "--method", "fisher")
    assert "encoder.1.3" in table.out
    assert "order" in table.out
    assert answer(headcount(*ask, "--per", "batch", "--json"))["heads"] != found["heads"]
    assert answer(headcount(*ask, "--method", "oracle", "--json", "--out", tmp_path / "oracle"))["method"] == "oracle"


def test_importance_refusals(headcount, place):
    ask = ("importance", place / "classifier", "--data")
    assert refused(headcount(*ask, place / "train.tsv", "--method", "gradeint"), "did you mean 'gradient'")
    assert refused(
        headcount(*ask, place / "train.tsv", "--per", "batch", "--method", "fisher"), "--per batch is a variant"
    )
    assert refused(headcount(*ask, place / "one.tsv"), "have the label 1")
    assert refused(headcount(*ask, place / "empty.tsv"), "empty")


def test_curve(headcount, place, tmp_path):
    ask = ("curve", place / "classifier", "--score-data", place / "train.tsv", "--data", place / "dev.tsv")
    asked = (*ask, "--methods", "gradient,random", "--step", "0.25", "--out", tmp_path / "run", "--json")
    found = answer(headcount(*asked))
    assert [one["method"] for one in found["curves"]] == ["gradient", "random"]
    assert [point["pruned"] for point in found["curves"][0]["points"]] == [0, 0.25, 0.5, 0.75, 1]
    assert {"pruned", "removed", "score", "low", "high"} <= set(found["curves"][0]["points"][1])
    assert "50%" in headcount(*ask, "--step", "0.5").out


def test_curve_of_each_kind(headcount, place):
    data = ("--data", place / "dev.en", "--target-data", place / "dev.fr", "--metric", "loss")
    scoring = ("--score-data", place / "train.en", "--score-target-data", place / "train.fr")
    found = answer(
        headcount("curve", place / "translator", *data, *scoring, "--kinds", "each", "--step", "0.5", "--json")
    )
    assert [one["kind"] for one in found["curves"]] == ["encoder", "decoder", "cross"]


def test_other_data_needs_targets_of_its_own(headcount, place):
    ask = ("curve", place / "translator", "--data", place / "dev.en", "--target-data", place / "dev.fr")
    assert refused(headcount(*ask, "--score-data", place / "train.en"), "give --score-target-data")


def test_curve_refusals(headcount, place):
    ask = ("curve", place / "classifier", "--score-data", place / "train.tsv", "--data")
    assert refused(headcount(*ask, place / "train.tsv"), "are also in the score data", "--allow-overlap")
    assert headcount(*ask, place / "train.tsv", "--allow-overlap", "--step", "0.5").code == 0
    assert refused(headcount(*ask, place / "dev.tsv", "--methods", "gradient,magic"), "unknown importance method")
    assert refused(headcount(*ask, place / "dev.tsv", "--step", "0"), "a step is a share")
    assert refused(headcount(*ask, place / "dev.tsv", "--kinds", "cross"), "unknown attention kind")


def prune_command(place, *more):
    data = ("--score-data", place / "train.tsv", "--data", place / "dev.tsv")
    return ("prune", place / "classifier", *data, *more)


def test_prune_within_a_drop(headcount, place, tmp_path):
    out = tmp_path / "small"
    ask = prune_command(place, "--test", place / "test.tsv", "--max-drop", "20", "--out", out)
    found = answer(headcount(*ask, "--json"))
    keys = {"removed", "left", "before", "after", "low", "high", "noninferior", "parameters_before", "parameters_after"}
    assert keys <= set(found)
    assert found["path"] == (out / "model").as_posix()
    assert len(anatomy(load(found["path"])).heads) == found["left"] == 8 - len(found["removed"])
    again = headcount(*ask)
    assert refused(again, "holds a finished run already")
    assert len(anatomy(load(found["path"])).heads) == found["left"]


def test_prune_says_what_it_did(headcount, place, tmp_path):
    result = headcount(*prune_command(place, "--heads", "50%", "--recover-epochs", 1, "--out", tmp_path / "small"))
    assert result.code == 0, result.err
    for words in (
        "Heads left:",
        "4 of 8 heads removed (50%)",
        "12 examples that no choice was made on",
        "12 examples chose, 12 prove",
        "Parameters:",
        "times as fast",
        "headcount.load(",
    ):
        assert words in result.out
    assert "hown" in result.out  # Shown, or Not shown
    assert (tmp_path / "small" / "recovery" / "recovery.json").exists()


def test_prune_dry_run_writes_nothing(headcount, place, tmp_path):
    out = tmp_path / "small"
    result = headcount(*prune_command(place, "--max-drop", "0.5", "--dry-run", "--out", out))
    assert result.code == 0, result.err
    assert "try up to 8 cuts" in result.out
    assert "try up to 2 cuts" in headcount(*prune_command(place, "--max-drop", "0.5", "--dry-run", "--step", "0.5")).out
    assert "In all about" in result.out
    assert not out.exists()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--max-drop", "1"), "Give --out"),
        (("--out", "small"), "say how far to cut"),
        (("--heads", "2", "--speedup", "1.1", "--out", "small"), "say two things at once"),
        (("--heads", "99", "--out", "small"), "only 8"),
        (("--params", "95%", "--out", "small"), "cannot be saved"),
        (("--max-drop", "-1", "--out", "small"), "not negative"),
        (("--heads", "2", "--method", "michell", "--out", "small"), "did you mean 'michel'"),
        (("--heads", "2", "--compensate", "magic", "--out", "small"), "unknown compensation"),
        (("--heads", "2", "--distill", "0.5", "--out", "small"), "--recover-epochs"),
        (("--heads", "half", "--out", "small"), "write a share such as 50%"),
        (("--max-drop", "1", "--step", "0", "--out", "small"), "a step is a share"),
    ],
)
def test_prune_refusals(headcount, place, tmp_path, monkeypatch, more, words):
    monkeypatch.chdir(tmp_path)
    assert refused(headcount(*prune_command(place, *more)), words)
    assert not (tmp_path / "small").exists()  # the place stays free


def test_prune_overwrites_nothing(headcount, place, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    result = headcount(*prune_command(place, "--heads", "2", "--out", tmp_path))
    assert refused(result, "holds 'notes.txt' and is no run directory")
    (tmp_path / "file").write_text("mine")
    assert refused(headcount(*prune_command(place, "--heads", "2", "--out", tmp_path / "file")), "is a file")
    assert (tmp_path / "notes.txt").read_text() == "mine"
