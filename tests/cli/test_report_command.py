"""`headcount report`: one page about what the other commands have written."""

from __future__ import annotations

import json

import pytest

import made_up_runs as made_up
import page_reading as reading
import tiny_models
from headcount import save
from headcount.tasks.text import word_tokenizer
from toy_jobs import WORDS, sentences


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A classifier with its tokenizer, and data for it."""
    root = tmp_path_factory.mktemp("jobs")
    save(tiny_models.bert(pad_token_id=0), root / "classifier", tokenizer=word_tokenizer(WORDS))
    for name, start in (("train", 0), ("dev", 1)):
        rows = [f"{text}\t{int('fine' in text or 'bien' in text)}\n" for text in sentences(start, 24)]
        (root / f"{name}.tsv").write_text("".join(rows))
    return root


def test_what_commands_write_is_what_the_report_shows(headcount, place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, train, dev = place / "classifier", place / "train.tsv", place / "dev.tsv"
    jobs = {
        "ablation": ("ablate", model, "--data", dev),
        "alone": ("ablate", model, "--data", dev, "--mode", "all-but-one"),
        "scores": ("importance", model, "--data", train),
        "curve": ("curve", model, "--score-data", train, "--data", dev, "--step", "0.5", "--overlap", "allow"),
        "small": ("prune", model, "--score-data", train, "--data", dev, "--max-drop", "50.5"),
        "speed": ("bench", model, "small/model", "--batch", "1,2", "--length", "8", "--rounds", "2"),
        "other": ("compare", model, "--data", dev, "--against", train),
        "plain": ("evaluate", model, "--data", dev),
    }
    for name, words in jobs.items():
        done = headcount(*words, "--out", name)
        assert done.code == 0, done.err
        assert done.err.splitlines()[-1] == f"A page about this run: headcount report {name}"
        kept = json.loads((tmp_path / name / "run.json").read_text())["arguments"]["command_line"]
        assert kept[:2] == [words[0], str(model)]
        assert sorted(kept) == sorted([*map(str, words), "--out", name])
    done = headcount("report", *jobs, "-o", "report.html")
    assert (done.code, done.err) == (0, "")
    assert "report.html" in done.out
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    root = reading.tree(page)
    assert len(list(root.iter("article"))) == 1
    assert [reading.said(title) for title in root.iter("h2")] == [
        *("Which heads matter", "One head per layer", "How many heads can be removed", "Layers before and after"),
        *("Speed", "The same heads on other data", "Evaluations", "Where the numbers come from"),
    ]
    ablation = json.loads((tmp_path / "ablation" / "run.json").read_text())
    assert f"headcount ablate {model} --data {dev} --out ablation" in reading.said(root)
    (chart,) = reading.charts(page, "encoder heads: change of accuracy")
    assert [mark.lines[0] for mark in reading.marks(chart)] == [row["head"] for row in ablation["heads"]]
    assert "24 examples from dev.tsv" in page
    pruned = json.loads((tmp_path / "small" / "run.json").read_text())
    (layers,) = reading.charts(page, "remaining heads")
    gone = [mark.lines[0] for mark in reading.marks(layers) if "removed" in mark.classes]
    assert gone == pruned["removed"]
    assert sorted(pruned["removed"] + pruned["kept"]) == [row["head"] for row in ablation["heads"]]
    assert sum(row["chosen"] for row in pruned["tried"]) == 1


def test_the_report_lies_in_the_first_run_by_default(headcount, place, tmp_path):
    run = tmp_path / "run"
    ask = ("evaluate", place / "classifier", "--data", place / "dev.tsv", "--out", run)
    assert headcount(*ask).code == 0
    done = headcount("report", run)
    assert done.code == 0
    assert str(run / "report.html") in done.out
    assert "Evaluations" in (run / "report.html").read_text(encoding="utf-8")
    assert headcount(*ask).code == 0  # the run can still be used


def test_refusals_are_one_sentence(headcount, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "run.json").write_text("{")
    for given in (tmp_path / "nowhere", tmp_path, tmp_path / "notes.txt"):
        done = headcount("report", given, "-o", tmp_path / "report.html")
        assert (done.code, done.out) == (1, "")
        assert str(given) in done.err
        assert not (tmp_path / "report.html").exists()
        assert len(done.err.strip().splitlines()) == 1
    assert headcount("report", "--colour", "red").code == 2


def test_charts_for_a_paper(headcount, tmp_path):
    runs = [made_up.write(tmp_path / name, made_up.run_json(name)) for name in ("curve", "bench")]
    done = headcount("report", *runs, "-o", tmp_path / "report.html", "--figures", tmp_path / "figures")
    assert (done.code, done.err) == (0, "")
    assert str(tmp_path / "figures") in done.out
    assert (tmp_path / "report.html").is_file()
    names = ("accuracy-as-heads-are-removed", "forward-pass-speedup")
    written = {f"{name}.{ending}" for name in names for ending in ("svg", "pdf")}
    assert {file.name for file in (tmp_path / "figures").iterdir()} == written
    (tmp_path / "a file").touch()
    done = headcount("report", *runs, "-o", tmp_path / "report.html", "--figures", tmp_path / "a file")
    assert done.code == 1
    assert "--figures" in done.err
