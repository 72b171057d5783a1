"""`headcount gates`: targets, paths, roles, a layout from scratch, and what is refused."""

import json

import pytest

import tiny_models
from headcount import anatomy, load, save
from headcount.cli.gates import known_epochs
from headcount.tasks.text import word_tokenizer
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
    rows.append({"head": "encoder.0.0", "role": "idle", "score": 0.6})  # a second role, on another scale
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
    positional, idle = 2 - len(gone & {"encoder.0.0", "encoder.1.0"}), 1 - len(gone & {"encoder.0.0"})
    assert found["stages"][0]["roles"] == {"idle": idle, "positional": positional}
    assert 0 <= found["stages"][0]["open_before"] <= 8
    again = headcount(*ask, "--target-heads", 3, "--out", tmp_path / "s")
    assert again.code == 1
    assert str(tmp_path / "s") in again.err


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


def test_half_of_the_flops_by_heads_and_neurons(headcount, place, tmp_path):
    ask = ("gates", place / "classifier", "--data", place / "train.tsv", "--test", place / "test.tsv", *FAST)
    ask = (*ask, "--units", "heads,neurons", "--target-flops", "75%,50%")
    found = answer(headcount(*ask, "--out", tmp_path / "s", "--json"))
    assert [stage["name"] for stage in found["stages"]] == ["flops-0.75", "flops-0.5"]
    assert 0.48 < found["flops_left"] <= 0.5
    assert found["units"] == ["heads", "neurons"]
    smaller = anatomy(load(found["path"]), ["heads", "neurons"])
    assert found["stages"][-1]["left_by_site"] == {site.name: len(site.kept) for site in smaller.sites}
    assert [(site["left"], f"{site['kind']}.{site['layer']}") for site in found["sites"]] == [
        (len(site.kept), site.name) for site in smaller.sites
    ]
    assert set(found["left_by_site"]) == {site.name for site in smaller.sites if site.unit == "head"}
    whole = anatomy(load(place / "classifier"), ["heads", "neurons"])
    assert set(whole.check(found["removed"])) == set(whole.heads) - set(smaller.heads)


def test_the_same_layout_from_scratch(headcount, place, tmp_path):
    ask = ("gates", place / "classifier", "--data", place / "train.tsv", *FAST, "--lambda", "0.02", "--from-scratch")
    found = answer(headcount(*ask, "--out", tmp_path / "s", "--json"))
    one, other = (load(path).state_dict() for path in (found["path"], found["from_scratch"]["path"]))
    assert {name: tensor.shape for name, tensor in one.items()} == {n: t.shape for n, t in other.items()}
    assert "held out" in found["remarks"][0]
    assert "probably trained" in found["remarks"][0]
    assert "--test" in found["remarks"][0]
    scratch = found["from_scratch"]
    assert scratch["low"] <= scratch["change"] <= scratch["high"]
    assert scratch["change"] == pytest.approx(scratch["after"] - found["after"])
    assert (scratch["epochs"], scratch["selected_on"]) == (1, 2)  # of 22 that are trained on, two choose the epoch


def test_the_epochs_of_the_original_are_read_if_known(tmp_path):
    assert known_epochs(str(tmp_path)) is None
    (tmp_path / "scores.json").write_text(json.dumps({"bleu": {"epoch-1": 3.2, "epoch-2": 13.8}}))
    assert known_epochs(str(tmp_path)) == 2
    (tmp_path / "trainer_state.json").write_text(json.dumps({"epoch": 3.0, "num_train_epochs": 3}))
    assert known_epochs(str(tmp_path)) == 3
    (tmp_path / "trainer_state.json").write_text("[]")
    assert known_epochs(str(tmp_path)) is None


@pytest.mark.parametrize(
    ("options", "facts", "code"),
    [
        (("--out", "x"), ("--lambda", "--target-heads"), 2),
        (("--lambda", "0.1", "--target-heads", "3", "--out", "x"), ("--lambda", "--target-heads"), 2),
        (("--lambda", "0.1", "--target-flops", "50%", "--out", "x"), ("--lambda", "--target-flops"), 2),
        (("--target-flops", "half", "--out", "x"), ("--target-flops", "'half'"), 2),
        (("--target-flops", "50", "--out", "x"), ("--target-flops", "50"), 2),
        (("--lambda", "0", "--out", "x"), ("--lambda", "0"), 2),
        (("--target-heads", "3,6", "--out", "x"), ("--target-heads", "3, 6"), 2),
        (("--target-heads", "3", "--units", "heads,neurons", "--out", "x"), ("heads, neurons", "--target-flops"), 1),
        (("--target-flops", "50%", "--units", "layers", "--out", "x"), ("layers",), 2),
        (("--target-flops", "10%", "--out", "x"), ("10.0%", "--target-flops", "--units"), 1),
        (("--lambda", "0.1"), ("--out is required",), 2),
        (("--lambda", "much", "--out", "x"), ("--lambda", "'much'"), 2),
        (("--target-heads", "3", "--weights", "some", "--out", "x"), ("--weights", "some", "gated"), 2),
        (("--target-heads", "3", "--overlap", "keep", "--out", "x"), ("--overlap", "keep", "drop"), 2),
        (("--target-heads", "99", "--out", "x"), ("8 heads", "1 to 7", "99"), 1),
        (("--target-heads", "3", "--kinds", "cross", "--out", "x"), ("cross",), 1),
        (("--target-heads", "3", "--roles", "nowhere", "--out", "x"), ("nowhere", "headcount roles"), 1),
        (("--target-heads", "3", "--lr", "0", "--out", "x"), ("--lr", "above 0"), 2),
    ],
)
def test_refusals(headcount, place, tmp_path, monkeypatch, options, facts, code):
    monkeypatch.chdir(tmp_path)
    result = headcount("gates", place / "classifier", "--data", place / "train.tsv", *options)
    assert result.code == code, result.err
    said = " ".join(result.err.split())
    assert all(fact in said for fact in facts), said
    assert "Traceback" not in result.err
    assert not (tmp_path / "x" / "model").exists()


def test_shared_rows_are_refused_dropped_or_allowed(headcount, place, tmp_path):
    rows = (place / "train.tsv").read_text().splitlines(keepends=True)
    (tmp_path / "part.tsv").write_text("".join(rows[:12]))
    ask = ("gates", place / "classifier", "--data", tmp_path / "part.tsv", "--test", place / "train.tsv", *FAST)
    ask = (*ask, "--target-heads", 3, "--json")
    refused = headcount(*ask, "--out", tmp_path / "refused")
    assert refused.code == 1
    assert "12 of 24" in refused.err
    dropped = answer(headcount(*ask, "--overlap", "drop", "--out", tmp_path / "dropped"))
    assert dropped["n"] == 12
    assert "12 of 24" in dropped["remarks"][0]
    assert answer(headcount(*ask, "--overlap", "allow", "--out", tmp_path / "allowed"))["n"] == 24


def test_causal_gates_say_what_heads_do_and_remove_nothing(headcount, place, tmp_path):
    ask = ("gates", place / "classifier", "--data", place / "train.tsv", "--causal", "--seeds", 2, *FAST)
    found = answer(headcount(*ask, "--epochs", 4, "--out", tmp_path / "run", "--json"))
    assert (found["seeds"], found["lambda"], found["n"]) == (2, 0.01, 24)
    assert len(found["heads"]) == 8 == sum(found["causal_roles"].values())
    assert {"head", "role", "facilitating", "irrelevant", "interfering", "agreement"} == set(found["heads"][0])
    assert all(row["agreement"] in (0.5, 1.0) for row in found["heads"])
    assert not (tmp_path / "run" / "model").exists()
    kept = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (kept["finished"], kept["command"]) == (True, "gates --causal")
    assert headcount("report", tmp_path / "run", "--out", tmp_path / "page.html").code == 0
    assert "Causal head gating" in (tmp_path / "page.html").read_text()
    said = headcount(*ask, "--epochs", 4, "--out", tmp_path / "run")  # the same again: from what was kept
    assert said.code == 0
    assert "facilitating" in said.out
    other = headcount(*ask, "--lambda", 0.5, "--out", tmp_path / "run")
    assert other.code == 1


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        (("--causal", "--target-heads", 3), "--target-heads"),
        (("--causal", "--units", "neurons"), "--units"),
        (("--causal", "--from-scratch"), "--from-scratch"),
        (("--causal", "--lambda", "0.1,0.2"), "--lambda"),
        (("--target-heads", 3, "--seeds", 2), "--seeds"),
    ],
)
def test_options_that_do_not_go_with_causal_gates(headcount, place, tmp_path, options, fact):
    result = headcount("gates", place / "classifier", "--data", place / "train.tsv", "--out", tmp_path / "s", *options)
    assert result.code == 2
    assert fact in " ".join(result.err.split())
    assert "--causal" in " ".join(result.err.split())
    assert not (tmp_path / "s").exists()
