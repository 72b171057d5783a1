"""`headcount importance`, `curve` and `prune`: tables, JSON, run directories, and refusals in one sentence."""

import json

import pytest
import torch

import tiny_models
from headcount import Scores, anatomy, load, save
from headcount.runs import RunDirectory
from headcount.structure import whole_anatomy
from headcount.tasks.text import word_tokenizer
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


def refused(result, *facts, code=1):
    """Assert that a command ended with this code and one sentence that states these facts."""
    assert result.code == code, result.err
    assert "Traceback" not in result.err
    sentence = " ".join(result.err.replace("│", " ").split())  # typer puts wrong usage into a box
    assert [fact for fact in facts if fact not in sentence] == []
    if code == 1:
        assert result.err.strip().splitlines()[-1].startswith("headcount: ")


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


def test_importance_of_neurons_and_sublayers(headcount, place, tmp_path):
    ask = ("importance", place / "classifier", "--data", place / "train.tsv", "--method", "fisher", "--units")
    found = answer(headcount(*ask, "neurons", "--json", "--out", tmp_path / "run"))
    assert found["heads"] == []
    assert [(row["site"], row["neurons"], len(row["score"])) for row in found["units"]] == [
        ("encoder_ffn.0", "0-31", 32), ("encoder_ffn.1", "0-31", 32),
    ]  # fmt: skip
    kept = Scores.load(tmp_path / "run" / "scores.json")
    assert kept["encoder_ffn.1.5"] == pytest.approx(found["units"][1]["score"][5])
    assert headcount("report", tmp_path / "run", "--out", tmp_path / "report.html").code == 0
    table = headcount(*ask, "neurons").out
    assert "encoder_ffn.1 " in table
    assert "encoder_ffn.1.5" not in table
    found = answer(headcount(*ask, "sublayers", "--json"))
    assert [row["sublayer"] for row in found["units"]] == ["encoder.0", "encoder.1", "encoder_ffn.0", "encoder_ffn.1"]
    assert all(row["low"] <= row["score"] <= row["high"] for row in found["units"])
    every = headcount(*ask, "heads,neurons,sublayers").out
    assert [name for name in ("encoder.1.3", "encoder_ffn.0", "encoder.0") if name not in every] == []
    ask = (*ask[:4], "--method", "oracle", "--units", "neurons", "--group", "16", "--json")
    assert len(set(answer(headcount(*ask))["units"][0]["score"])) <= 2


def test_importance_refusals(headcount, place):
    ask = ("importance", place / "classifier", "--data")
    refused(headcount(*ask, place / "train.tsv", "--units", "neuron"), "'neuron'", "'neurons'", code=2)
    refused(headcount(*ask, place / "train.tsv", "--units", "neurons", "--method", "relevance"), "relevance", "--units")
    refused(headcount(*ask, place / "train.tsv", "--group", "8"), "--group 8", code=2)
    refused(headcount(*ask, place / "train.tsv", "--method", "gradeint"), "'gradient'", code=2)
    refused(headcount(*ask, place / "train.tsv", "--per", "batch", "--method", "fisher"), "--per batch", code=2)
    refused(headcount(*ask, place / "one.tsv"), "label 1")
    refused(headcount(*ask, place / "empty.tsv"), "empty")


def test_curve(headcount, place, tmp_path):
    ask = ("curve", place / "classifier", "--score-data", place / "train.tsv", "--data", place / "dev.tsv")
    asked = (*ask, "--methods", "gradient,random", "--step", "0.25", "--out", tmp_path / "run", "--json")
    found = answer(headcount(*asked))
    assert [one["method"] for one in found["curves"]] == ["gradient", "random"]
    assert [point["pruned"] for point in found["curves"][0]["points"]] == [0, 0.25, 0.5, 0.75, 1]
    assert {"pruned", "removed", "score", "low", "high"} <= set(found["curves"][0]["points"][1])
    assert "50%" in headcount(*ask, "--step", "0.5").out


def test_heads_can_be_scored_on_another_number_of_examples(headcount, place):
    ask = ("curve", place / "classifier", "--score-data", place / "train.tsv", "--data", place / "dev.tsv", "--json")
    found = answer(headcount(*ask, "--step", "0.5", "--limit", "9", "--score-limit", "5"))
    assert found["n"] == 9
    assert [task["n"] for task in found["signature"]["tasks"]] == [5, 9]


def test_curves_by_raw_and_normalised_scores_and_in_several_random_orders(headcount, place, tmp_path):
    ask = ("curve", place / "classifier", "--score-data", place / "train.tsv", "--data", place / "dev.tsv")
    ask = (*ask, "--methods", "gradient,fisher,random", "--step", "0.25")
    run = tmp_path / "run"
    found = answer(headcount(*ask, "--order", "both", "--orders", "3", "--out", run, "--json"))["curves"]
    ways = [(one["method"], one["normalized"]) for one in found]
    assert ways == [("gradient", True), ("gradient", False), ("fisher", False), *[("random", False)] * 3]
    assert len({tuple(one["points"][1]["removed"]) for one in found[-3:]}) > 1
    assert headcount("report", run, "--out", tmp_path / "page.html").code == 0
    page = (tmp_path / "page.html").read_text()
    assert "gradient, raw" in page
    assert "gradient, raw" in headcount(*ask, "--order", "both").out
    raw = answer(headcount(*ask, "--order", "raw", "--json"))["curves"]
    assert raw[0]["points"] == found[1]["points"]


def test_curve_of_each_kind(headcount, place):
    data = ("--data", place / "dev.en", "--target-data", place / "dev.fr", "--metric", "loss")
    scoring = ("--score-data", place / "train.en", "--score-target-data", place / "train.fr")
    found = answer(
        headcount("curve", place / "translator", *data, *scoring, "--kinds", "each", "--step", "0.5", "--json")
    )
    assert [one["kind"] for one in found["curves"]] == ["encoder", "decoder", "cross"]


def test_other_data_needs_targets_of_its_own(headcount, place):
    ask = ("curve", place / "translator", "--data", place / "dev.en", "--target-data", place / "dev.fr")
    refused(headcount(*ask, "--score-data", place / "train.en"), "--score-target-data", code=2)


def test_curve_refusals(headcount, place):
    ask = ("curve", place / "classifier", "--score-data", place / "train.tsv", "--data")
    refused(headcount(*ask, place / "train.tsv"), "24 of 24", "--overlap")
    refused(headcount(*ask, place / "train.tsv", "--overlap", "drop"), "all 24")
    refused(headcount(*ask, place / "dev.tsv", "--overlap", "maybe"), "'maybe'", "drop", code=2)
    refused(headcount(*ask, place / "dev.tsv", "--methods", "gradient,gradient"), "gradient,gradient", code=2)
    refused(headcount(*ask, place / "dev.tsv", "--methods", "gradient,magic"), "'magic'", code=2)
    refused(headcount(*ask, place / "dev.tsv", "--step", "0"), "0 is", "--step", code=2)
    refused(headcount(*ask, place / "dev.tsv", "--kinds", "cross"), "attention kind 'cross'")


def test_curve_with_shared_rows(headcount, place, tmp_path):
    both = tmp_path / "both.tsv"
    both.write_text("".join((place / "dev.tsv").open()) + "".join((place / "train.tsv").open().readlines()[:2]))
    ask = ("curve", place / "classifier", "--score-data", place / "train.tsv", "--step", "0.5", "--json", "--data")
    refused(headcount(*ask, both, "--out", tmp_path / "run"), "2 of 26")
    dropped = answer(headcount(*ask, both, "--overlap", "drop", "--out", tmp_path / "run"))  # nothing in the way
    assert dropped["n"] == 24
    assert dropped["remarks"][0].startswith("2 of 26")
    assert dropped["curves"] == answer(headcount(*ask, place / "dev.tsv"))["curves"]
    assert answer(headcount(*ask, both, "--overlap", "allow"))["n"] == 26


def test_an_interrupted_curve_resumes(headcount, place, tmp_path, monkeypatch):
    ask = ("curve", place / "classifier", "--score-data", place / "train.tsv", "--data", place / "dev.tsv")
    ask = (*ask, "--methods", "oracle,gradient", "--step", "0.25", "--json")
    undisturbed = answer(headcount(*ask))
    computed, left = [], [5]  # both scores, the whole model and two cuts of it
    save_shard = RunDirectory.save_shard

    def kept(self, name, arrays):
        if len(computed) == left[0]:
            raise KeyboardInterrupt
        computed.append(name)
        save_shard(self, name, arrays)

    monkeypatch.setattr(RunDirectory, "save_shard", kept)
    assert headcount(*ask, "--out", tmp_path / "run").code != 0
    assert json.loads((tmp_path / "run" / "run.json").read_text())["finished"] is False
    before = list(computed)
    left[0] = -1
    assert answer(headcount(*ask, "--out", tmp_path / "run"))["curves"] == undisturbed["curves"]
    assert len(computed) == len(set(computed))  # nothing was computed twice
    assert any(name.startswith("oracle") for name in before)
    assert any(name.startswith("cut-") for name in before)
    assert any(name.startswith("cut-") for name in computed[len(before) :])


def prune_command(place, *more):
    data = ("--score-data", place / "train.tsv", "--data", place / "dev.tsv")
    return ("prune", place / "classifier", *data, *more)


def test_prune_within_a_drop(headcount, place, tmp_path):
    out = tmp_path / "small"
    ask = prune_command(place, "--test", place / "test.tsv", "--max-drop", "60", "--out", out)
    found = answer(headcount(*ask, "--json"))
    keys = {"removed", "left", "before", "after", "low", "high", "noninferior", "parameters_before", "parameters_after"}
    assert keys <= set(found)
    assert found["path"] == (out / "model").as_posix()
    assert len(anatomy(load(found["path"])).heads) == found["left"] == 8 - len(found["removed"])
    again = headcount(*ask)
    refused(again, "finished")
    assert len(anatomy(load(found["path"])).heads) == found["left"]


def test_prune_takes_neurons_and_sublayers(headcount, place, tmp_path):
    ask = prune_command(place, "--flops", "40%", "--out", tmp_path / "small")
    found = answer(headcount(*ask, "--json"))
    assert found["units"] == ["heads", "neurons"]
    assert found["flops_after"] <= 0.6 * found["flops_before"]
    left = {f"{row['kind']}.{row['layer']}": row["left"] for row in found["sites"]}
    assert {site.name: len(site.kept) for site in whole_anatomy(load(found["path"])).sites} == left
    said = headcount(*prune_command(place, "--flops", "40%", "--units", "sublayers", "--out", tmp_path / "shallow"))
    assert said.code == 0, said.err
    assert "encoder_ffn" in said.out
    planned = headcount(*prune_command(place, "--flops", "40%", "--dry-run"))
    assert "removable units" in planned.out


def test_prune_says_what_it_did(headcount, place, tmp_path):
    result = headcount(*prune_command(place, "--heads", "50%", "--recover-epochs", 1, "--out", tmp_path / "small"))
    assert result.code == 0, result.err
    for words in (
        "Heads left:",
        "4 of 8 heads removed (50%)",
        "accuracy on 12 held-out examples: ",
        "12 examples for selection, 12 for testing",
        "Parameters:",
        "times as fast",
        "headcount.load(",
    ):
        assert words in result.out
    told = json.loads((tmp_path / "small" / "run.json").read_text())
    assert told["verdict"] in result.out.splitlines()
    assert ("Non-inferior: drop ≤ 1 point" in result.out) is told["noninferior"]
    assert ("Not shown to be non-inferior: drop ≤ 1 point" in result.out) is not told["noninferior"]
    assert (tmp_path / "small" / "recovery" / "recovery.json").exists()


def test_prune_dry_run_writes_nothing(headcount, place, tmp_path):
    out = tmp_path / "small"
    result = headcount(*prune_command(place, "--max-drop", "0.5", "--dry-run", "--out", out))
    assert result.code == 0, result.err
    assert "try up to 8 cuts" in result.out
    assert "try up to 2 cuts" in headcount(*prune_command(place, "--max-drop", "0.5", "--dry-run", "--step", "0.5")).out
    assert "In all at most" in result.out
    assert "12 selection examples cannot show a drop of at most 0.5 points: 22 points" in result.out
    assert not out.exists()
    refused(headcount(*prune_command(place, "--max-drop", "0.5", "--out", out)), "12 selection", "--confidence")
    assert not out.exists()


@pytest.mark.parametrize(
    ("more", "facts", "code"),
    [
        (("--max-drop", "1"), ("--out is required",), 2),
        (("--out", "small"), ("--max-drop", "--heads", "--params", "--speedup"), 2),
        (("--heads", "2", "--speedup", "1.1", "--out", "small"), ("--heads", "--speedup"), 2),
        (("--heads", "99", "--out", "small"), ("only 8",), 1),
        (("--heads", "200%", "--out", "small"), ("200%", "--heads"), 2),
        (("--heads", "0%", "--out", "small"), ("0%", "--heads"), 2),
        (("--heads", "0", "--out", "small"), ("0 is", "--heads"), 2),
        (("--max-drop", "nan", "--out", "small"), ("drop is nan", "--max-drop", "0 or more"), 2),
        (("--params", "95%", "--out", "small"), ("95.0%",), 1),
        (("--max-drop", "-1", "--out", "small"), ("-1", "--max-drop"), 2),
        (("--heads", "2", "--method", "michell", "--out", "small"), ("'michell'", "'michel'"), 2),
        (("--heads", "2", "--compensate", "magic", "--out", "small"), ("'magic'", "refit"), 2),
        (("--heads", "2", "--overlap", "magic", "--out", "small"), ("'magic'", "refuse"), 2),
        (("--heads", "2", "--distill", "0.5", "--out", "small"), ("--distill", "--recover-epochs"), 2),
        (("--heads", "2", "--hidden", "1", "--out", "small"), ("--hidden", "--recover-epochs"), 2),
        (("--heads", "half", "--out", "small"), ("'half'", "--heads", "50%"), 2),
        (("--heads", "2", "--recover-epochs", "1", "--lr", "-1", "--out", "small"), ("-1", "--lr"), 2),
        (("--max-drop", "1", "--step", "0", "--out", "small"), ("0 is", "--step"), 2),
        (("--flops", "99.9%", "--out", "small"), ("99.9% of the FLOPs", "neurons", "--flops"), 1),
        (("--flops", "60%", "--units", "heads", "--out", "small"), ("60.0%", "heads", "--units"), 1),
        (("--flops", "60%", "--units", "heads", "--dry-run"), ("60.0%", "heads", "--units"), 1),
        (("--heads", "2", "--units", "heads,neurons", "--out", "small"), ("--params", "--flops"), 2),
        (("--flops", "50%", "--units", "heads,neuron", "--out", "small"), ("'neuron'", "neurons"), 2),
        (("--flops", "50%", "--cost", "watts", "--out", "small"), ("'watts'", "time"), 2),
        (("--flops", "50%", "--kinds", "cross", "--out", "small"), ("'cross'", "encoder_ffn"), 1),
    ],
)
def test_prune_refusals(headcount, place, tmp_path, monkeypatch, more, facts, code):
    monkeypatch.chdir(tmp_path)
    refused(headcount(*prune_command(place, *more)), *facts, code=code)
    assert not (tmp_path / "small").exists()  # the place stays free


@pytest.mark.parametrize(
    ("command", "result"), [(("prune", "--heads", "2"), "after"), (("gates", "--target-heads", "6"), "score")]
)
def test_a_model_stays_in_the_precision_that_it_was_saved_in(headcount, place, tmp_path, command, result):
    """Computed with in float32, it is tested as it is saved: rounded."""
    half = save(tiny_models.bert(pad_token_id=0).half(), tmp_path / "half", tokenizer=word_tokenizer(WORDS))
    data = {
        "prune": ("--score-data", place / "train.tsv", "--data", place / "dev.tsv"),
        "gates": ("--data", place / "train.tsv"),
    }
    name, *options = command
    out = tmp_path / "small"
    found = answer(headcount(name, half, *data[name], "--test", place / "test.tsv", *options, "--out", out, "--json"))
    smaller = load(found["path"])
    assert {weight.dtype for weight in smaller.parameters()} == {torch.float16}
    assert json.loads((out / "model" / "config.json").read_text())["dtype"] == "float16"
    tested = answer(headcount("evaluate", found["path"], "--data", place / "test.tsv", "--json"))
    assert tested["score"] == pytest.approx(found.get(result, found.get("stages", [{}])[-1].get("score")), abs=1e-9)


def test_prune_overwrites_nothing(headcount, place, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    result = headcount(*prune_command(place, "--heads", "2", "--out", tmp_path))
    refused(result, "notes.txt")
    (tmp_path / "file").write_text("mine")
    refused(headcount(*prune_command(place, "--heads", "2", "--out", tmp_path / "file")), "is a file")
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("method", ["gradient", "fisher"])
def test_the_importance_table_is_sorted_by_its_score(headcount, place, method):
    out = headcount("importance", place / "classifier", "--data", place / "train.tsv", "--method", method).out
    lines = [line.split("│")[1:] for line in out.splitlines() if line.startswith("│")]
    names = [name.strip() for name in next(line for line in out.splitlines() if line.startswith("┃")).split("┃")[1:]]
    shown = [float(line[names.index("score")]) for line in lines]
    assert len(shown) == 8
    assert shown == sorted(shown, reverse=True)
