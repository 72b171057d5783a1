"""`headcount gates`: targets, paths, roles, a layout from scratch, and refusals in one sentence."""

import json

import pytest

import tiny_models
from headcount import anatomy, load, save
from headcount.tasks.toy import word_tokenizer
from toy_jobs import WORDS, sentences

FAST = ("--tokens", 96, "--gate-lr", 0.3)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("gates")
    save(tiny_models.bert(pad_token_id=0), root / "classifier", tokenizer=word_tokenizer(WORDS))
    save(tiny_models.marian(), root / "translator", tokenizer=word_tokenizer(WORDS, "marian"))
    for name, start in (("train", 0), ("test", 2)):
        texts = sentences(start, 24)
        rows = [f"{text}\t{int('fine' in text or 'bien' in text)}\n" for text in texts]
        (root / f"{name}.tsv").write_text("".join(rows))
        (root / f"{name}.en").write_text("".join(f"{text}\n" for text in texts[:8]))
        (root / f"{name}.fr").write_text("".join(f"le {text}\n" for text in texts[:8]))
    (root / "roles").mkdir()
    rows = [{"head": f"encoder.{layer}.0", "role": "positional", "score": 0.95} for layer in (0, 1)]
    (root / "roles" / "run.json").write_text(json.dumps({"finished": True, "heads": rows}))
    return root


def answer(result):
    assert result.code == 0, result.err
    return json.loads(result.out)


def test_as_many_heads_stay_as_asked_for(headcount, place, tmp_path):
    ask = ("gates", place / "classifier", "--data", place / "train.tsv", "--test", place / "test.tsv", *FAST)
    found = answer(headcount(*ask, "--target-heads", 3, "--roles", place / "roles", "--out", tmp_path / "s", "--json"))
    assert found["left"] == 3 == len(anatomy(load(found["path"])).heads)
    assert len(found["removed"]) == 5
    assert found["n"] == 24
    assert found["change"] == pytest.approx(found["after"] - found["before"])
    gone = set(found["removed"])
    assert found["stages"][0]["roles"] == {"positional": 2 - len(gone & {"encoder.0.0", "encoder.1.0"})}
    again = headcount(*ask, "--target-heads", 3, "--out", tmp_path / "s")
    assert again.code == 1
    assert "holds a finished run already" in again.err


def test_a_path_over_encoder_gates_of_a_translator(headcount, place, tmp_path):
    result = headcount(
        "gates", place / "translator", "--data", place / "train.en", "--target-data", place / "train.fr",
        "--test", place / "test.en", "--test-target-data", place / "test.fr", *FAST,
        "--kinds", "encoder", "--target-heads", "6,2", "--out", tmp_path / "path",
    )  # fmt: skip
    assert result.code == 0, result.err
    assert "heads-6: 6 of 8 gated heads left" in result.out
    assert "heads-2: 2 of 8 gated heads left" in result.out
    kinds = [sum(head.kind == "encoder" for head in anatomy(load(tmp_path / "path" / where)).heads)
             for where in ("stages/heads-6", "stages/heads-2", "model")]  # fmt: skip
    assert kinds == [6, 2, 2]


def test_the_same_layout_from_scratch(headcount, place, tmp_path):
    ask = ("gates", place / "classifier", "--data", place / "train.tsv", *FAST, "--lambda", "0.02", "--from-scratch")
    found = answer(headcount(*ask, "--out", tmp_path / "s", "--json"))
    one, other = (load(path).state_dict() for path in (found["path"], found["from_scratch"]["path"]))
    assert {name: tensor.shape for name, tensor in one.items()} == {n: t.shape for n, t in other.items()}
    assert "held out" in found["remarks"][0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--out", "x"), "say what an open gate costs"),
        (("--lambda", "0.1"), "Give --out"),
        (("--lambda", "much", "--out", "x"), "--lambda much: write a number"),
        (("--target-heads", "99", "--out", "x"), "of 8 heads with gates, 1 to 7 can stay"),
        (("--target-heads", "3", "--kinds", "cross", "--out", "x"), "cross"),
        (("--target-heads", "3", "--weights", "some", "--out", "x"), "choice of weights"),
        (("--target-heads", "3", "--roles", "nowhere", "--out", "x"), "no finished run of `headcount roles`"),
    ],
)
def test_refusals(headcount, place, tmp_path, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    result = headcount("gates", place / "classifier", "--data", place / "train.tsv", *options)
    assert result.code == 1
    assert words in result.err
    assert "Traceback" not in result.err
    assert not (tmp_path / "x" / "model").exists()
