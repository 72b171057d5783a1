"""evaluate, ablate and compare, as a user calls them."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from headcount import save
from headcount.cli import console as printing
from headcount.runs import read_run
from headcount.tasks.text import word_tokenizer
from tiny_models import bert, gpt, marian

WORDS = "a fine dull film was seen by all of us"


def sentences(seed, size=30):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS.split(), size=rng.integers(1, 9))) for _ in range(size)]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A saved classifier with its tokenizer, and two files of labelled sentences."""
    folder = tmp_path_factory.mktemp("classifier")
    save(bert(), folder / "model", tokenizer=word_tokenizer(WORDS))
    for name, seed in (("dev.tsv", 0), ("other.tsv", 1)):
        lines = [f"{text}\t{place % 2}" for place, text in enumerate(sentences(seed))]
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    folder = tmp_path_factory.mktemp("translator")
    save(marian(), folder / "model", tokenizer=word_tokenizer(WORDS, "marian"))
    (folder / "dev.en").write_text("\n".join(sentences(0, 6)) + "\n")
    (folder / "dev.fr").write_text("\n".join(sentences(1, 6)) + "\n")
    return folder


def test_evaluate_prints_the_metric_and_says_what_it_guessed(headcount, classifier):
    answer = headcount("evaluate", classifier / "model", "--data", classifier / "dev.tsv")
    assert answer.code == 0
    assert answer.out.startswith("accuracy 0.")
    assert "30 examples" in answer.out
    assert "column" in answer.err


def test_evaluate_with_heads_off_as_json(headcount, classifier):
    answer = headcount(
        *("evaluate", classifier / "model", "--data", classifier / "dev.tsv"),
        *("--off", "encoder.0.1,encoder.1.2", "--json"),
    )
    result = json.loads(answer.out)
    assert result["off"] == ["encoder.0.1", "encoder.1.2"]
    assert result["change"] == pytest.approx(result["score"] - result["base"])
    assert {"signature", "model", "metric", "n", "low", "high", "p"} <= set(result)


def test_evaluate_with_neurons_and_sublayers_off(headcount, classifier):
    arguments = ("evaluate", classifier / "model", "--data", classifier / "dev.tsv")
    answer = headcount(*arguments, "--off", "encoder.0.1,encoder_ffn.0.1-3,encoder_ffn.1,encoder.1", "--json")
    result = json.loads(answer.out)
    heads = ["encoder.0.1", *(f"encoder.1.{index}" for index in range(4))]
    assert result["off"] == [*heads, "encoder_ffn.0.1-3", "encoder_ffn.1"]
    assert result["change"] == pytest.approx(result["score"] - result["base"])
    assert "with 1 head and 3 neurons off" in headcount(*arguments, "--off", "encoder.0.1,encoder_ffn.0.1-3").out
    refused = headcount(*arguments, "--off", "encoder_ffn.0.5-9999")
    assert (refused.code, refused.out) == (1, "")
    assert "encoder_ffn.0.5-9999" in refused.err.splitlines()[-1]


def test_ablate_json_has_the_fixed_keys(headcount, classifier):
    answer = headcount("ablate", classifier / "model", "--data", classifier / "dev.tsv", "--json")
    result = json.loads(answer.out)
    assert {"signature", "model", "metric", "n", "base", "heads"} <= set(result)
    assert len(result["heads"]) == 8
    assert {"head", "score", "change", "low", "high", "p", "p_holm", "p_bh"} <= set(result["heads"][0])


def test_ablate_table_names_the_test_and_the_correction(headcount, classifier):
    answer = headcount("ablate", classifier / "model", "--data", classifier / "dev.tsv", "--layers", "1")
    assert answer.code == 0
    assert "encoder.1.3" in answer.out
    assert "encoder.0.0" not in answer.out
    assert "exact McNemar" in answer.out
    assert "Holm" in answer.out


def test_an_adaptive_sweep_says_what_it_decided_and_is_reported(headcount, classifier, tmp_path):
    call = ("ablate", classifier / "model", "--data", classifier / "dev.tsv", "--adaptive", "--margin", 60)
    answer = headcount(*call, "--json", "--out", tmp_path / "run")
    result = json.loads(answer.out)
    assert {"head", "score", "change", "low", "high", "p", "p_holm", "p_bh"} <= set(result["heads"][0])
    assert {row["decision"] for row in result["heads"]} <= {"missed", "within", "undecided"}
    assert result["evaluated"] == sum(row["examples"] for row in result["heads"])
    assert result["available"] == result["n"] == 30
    shown = headcount(*call)
    assert "60 points" in shown.out
    assert "betting" in shown.out
    again = headcount(*call[:-1], 50, "--out", tmp_path / "run")
    assert again.code == 1
    assert "--margin" in again.err
    assert headcount("report", tmp_path / "run", "--out", tmp_path / "page.html").code == 0
    page = (tmp_path / "page.html").read_text()
    assert "60 points" in page
    assert "decision" in page


def test_all_but_one_with_and_without_selection(headcount, classifier):
    arguments = ["ablate", classifier / "model", "--data", classifier / "dev.tsv", "--mode", "all-but-one"]
    assert "optimistic" in headcount(*arguments).out
    answer = headcount(*arguments, "--select-data", classifier / "other.tsv", "--json")
    result = json.loads(answer.out)
    assert result["chosen_apart"] is True
    assert {"kind", "layer", "best", "change", "low", "high", "p"} <= set(result["layers"][0])


def test_compare_reports_both_correlations(headcount, classifier):
    arguments = [
        "compare",
        classifier / "model",
        "--data",
        classifier / "dev.tsv",
        "--against",
        classifier / "other.tsv",
    ]
    result = json.loads(headcount(*arguments, "--metric", "loss", "--json").out)
    assert {"pearson", "spearman", "p", "heads"} <= set(result)
    assert {"head", "change", "change_against"} <= set(result["heads"][0])
    assert "Pearson r" in headcount(*arguments, "--metric", "loss").out


def test_a_run_is_kept_continued_and_not_mixed_up(headcount, classifier, tmp_path):
    arguments = ["ablate", classifier / "model", "--data", classifier / "dev.tsv", "--out", tmp_path / "run", "--json"]
    first = json.loads(headcount(*arguments).out)
    kept = read_run(tmp_path / "run")
    assert kept["finished"] is True
    assert kept["heads"] == first["heads"]
    assert json.loads(headcount(*arguments).out) == first
    other = headcount(*arguments, "--limit", "10")
    assert other.code == 1
    assert str(tmp_path / "run") in other.err
    assert "--out" in other.err
    assert json.loads(headcount(*arguments).out) == first


def test_translation_from_aligned_files(headcount, translator):
    answer = headcount(
        *("ablate", translator / "model", "--data", translator / "dev.en", "--target-data", translator / "dev.fr"),
        *("--kind", "cross", "--metric", "chrf", "--resamples", "50", "--json"),
    )
    result = json.loads(answer.out)
    assert result["metric"] == "chrf"
    assert {row["head"].split(".")[0] for row in result["heads"]} == {"cross"}


def test_a_language_model_is_guessed_from_its_class(headcount, tmp_path):
    save(gpt(), tmp_path / "model", tokenizer=word_tokenizer(WORDS, "gpt"))
    (tmp_path / "text.txt").write_text("\n".join(sentences(0, 8)) + "\n")
    result = json.loads(headcount("evaluate", tmp_path / "model", "--data", tmp_path / "text.txt", "--json").out)
    assert result["metric"] == "perplexity"
    assert result["score"] > 1


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--layers", "7"], "layer 7"),
        (["--kind", "cross"], "'cross'"),
        (["--text", "words"], "words"),
        (["--task", "translation"], "BertForSequenceClassification"),
    ],
)
def test_what_the_model_or_the_data_cannot_do_is_one_sentence(headcount, classifier, extra, message):
    answer = headcount("ablate", classifier / "model", "--data", classifier / "dev.tsv", *extra)
    assert answer.code == 1
    assert message in " ".join(answer.err.split())
    assert answer.err.splitlines()[-1].startswith("headcount: ")


@pytest.mark.parametrize(
    ("extra", "fact"),
    [
        (["--layers", "0-x"], "'0-x'"),
        (["--mode", "eech"], "did you mean 'each'"),
        (["--fill", "meen"], "did you mean 'mean'"),
        (["--device", "tpu"], "--device 'tpu'"),
        (["--dtype", "float33"], "did you mean 'float32'"),
        (["--select-data", "a-hub-id"], "--mode all-but-one"),
        (["--engine", "rey"], "did you mean 'ray'"),
        (["--workers", "2"], "--engine ray"),
        (["--task", "clasification"], "did you mean 'classification'"),
        (["--metric", "acuracy"], "did you mean 'accuracy'"),
        (["--task", "classification", "--metric", "bleu"], "'bleu'"),
        (["--address", "auto"], "--engine ray"),
        (["--adaptive", "--margin", "0"], "--margin"),
        (["--margin", "2"], "--adaptive"),
        (["--adaptive", "--resamples", "100"], "--resamples"),
        (["--adaptive", "--mode", "all-but-one"], "all-but-one"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_wrong_usage(headcount, classifier, extra, fact):
    answer = headcount("ablate", classifier / "model", "--data", classifier / "dev.tsv", *extra)
    assert (answer.code, answer.out) == (2, "")
    assert fact in answer.err
    assert answer.err.endswith("; see headcount ablate --help\n")
    assert len(answer.err.splitlines()) == 1


def test_bad_data_names_file_and_line(headcount, classifier, tmp_path):
    (tmp_path / "bad.tsv").write_text("a film\t1\nfine\na dull film\t0\n")
    answer = headcount("evaluate", classifier / "model", "--data", tmp_path / "bad.tsv")
    assert answer.code == 1
    assert "bad.tsv, line 2" in answer.err
    missing = headcount("evaluate", classifier / "model", "--data", tmp_path / "none.tsv")
    assert missing.code == 1
    assert "none.tsv" in missing.err


def test_a_model_without_tokenizer_says_so(headcount, tmp_path, classifier):
    save(bert(), tmp_path / "model")
    answer = headcount("evaluate", tmp_path / "model", "--data", classifier / "dev.tsv")
    assert answer.code == 1
    assert f"{tmp_path / 'model'} has no usable tokenizer" in answer.err


@pytest.mark.parametrize("extra", [["--layers", "1-0"], ["--layers", ""], ["--kind", ""]])
def test_an_empty_choice_of_heads_is_refused(headcount, classifier, extra):
    answer = headcount("ablate", classifier / "model", "--data", classifier / "dev.tsv", *extra)
    assert answer.code == 1
    assert "no heads" in answer.err


def test_nothing_to_turn_off_is_wrong_usage(headcount, classifier):
    answer = headcount("evaluate", classifier / "model", "--data", classifier / "dev.tsv", "--off", "")
    assert (answer.code, answer.out) == (2, "")
    assert "--off is empty" in answer.err


@pytest.mark.parametrize(("width", "gone"), [(80, ["p (BH)"]), (60, ["p (BH)", "accuracy", "p"])])
def test_a_narrow_table_of_ablations_keeps_change_interval_and_head(headcount, classifier, monkeypatch, width, gone):
    monkeypatch.setattr(printing.console, "_width", width)
    answer = headcount("ablate", classifier / "model", "--data", classifier / "dev.tsv")
    lines = answer.out.splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in answer.out
    header = next(line for line in lines if line.startswith("┃"))
    shown = {name.strip() for name in header.split("┃")}
    assert {"head", "change", "95% interval"} <= shown
    assert not shown & set(gone)
    assert re.search(rf"{', '.join(map(re.escape, gone))} left\s+out", answer.err)


def test_a_refused_run_directory_is_left_as_it_was(headcount, classifier, tmp_path):
    (tmp_path / "precious").write_text("mine")
    answer = headcount("evaluate", classifier / "model", "--data", classifier / "dev.tsv", "--out", tmp_path)
    assert answer.code == 1
    assert "'precious'" in answer.err
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_labels_that_are_names_need_to_be_the_models(headcount, classifier, tmp_path):
    (tmp_path / "names.tsv").write_text("a film\tfresh\na dull film\trotten\n")
    answer = headcount("evaluate", classifier / "model", "--data", tmp_path / "names.tsv", "--text", 0, "--label", 1)
    assert answer.code == 1
    assert "fresh, rotten" in answer.err
    assert "label2id" in answer.err


def test_a_directory_as_data_and_too_short_a_length_are_refused(headcount, classifier):
    directory = headcount("evaluate", classifier / "model", "--data", classifier)
    assert directory.code == 1
    assert f"{classifier} is a directory" in directory.err
    short = headcount("evaluate", classifier / "model", "--data", classifier / "dev.tsv", "--max-length", "1")
    assert short.code == 1
    assert "1" in short.err.splitlines()[-1]
    assert "max" in short.err.splitlines()[-1]


@pytest.mark.parametrize("how", [[], ["--adaptive", "--margin", 60]])
def test_ray_gives_what_this_process_gives(headcount, classifier, tmp_path, how):
    pytest.importorskip("ray")
    call = ("ablate", classifier / "model", "--data", classifier / "dev.tsv", "--json", *how)
    here = headcount(*call)
    there = headcount(*call, "--out", tmp_path / "run", "--engine", "ray", "--workers", 1)
    assert (here.code, there.code) == (0, 0)
    assert json.loads(there.out)["heads"] == json.loads(here.out)["heads"]
    assert read_run(tmp_path / "run")["finished"]


def test_compare_two_models(headcount, classifier, tmp_path):
    smaller = tmp_path / "smaller"
    assert headcount("remove", classifier / "model", "--heads", "encoder.0.1", "--out", smaller).code == 0
    ask = ("compare", classifier / "model", smaller, "--data", classifier / "dev.tsv")
    answer = headcount(*ask, "--max-drop", "50", "--out", tmp_path / "run")
    assert answer.code == 0
    assert "Non-inferior: drop ≤ 50 points" in answer.out
    assert "% of the examples" in answer.out
    result = json.loads(headcount(*ask, "--json").out)
    assert result["change"] == pytest.approx(result["after"] - result["before"])
    assert {"low", "high", "p", "test", "noninferior", "agreement", "verdict", "other", "n"} <= set(result)
    assert next(iter(result)) == "before"
    assert list(result)[-1] == "signature"
    assert read_run(tmp_path / "run")["finished"]
    refused = headcount(*ask, "--fill", "mean")
    assert (refused.code, "--fill" in refused.err) == (2, True)
    refused = headcount(*ask, "--against", classifier / "other.tsv")
    assert refused.code == 2


def test_models_of_different_tasks_are_not_compared(headcount, classifier, tmp_path):
    save(bert(num_labels=1), tmp_path / "other", word_tokenizer("a fine film"))
    answer = headcount("compare", classifier / "model", tmp_path / "other", "--data", classifier / "dev.tsv")
    assert answer.code == 1
    said = answer.err.splitlines()[-1]
    assert str(tmp_path / "other") in said
    assert "not made for classification, but for regression; compare two models of one task" in said


def test_evaluate_gives_the_score_first(headcount, classifier):
    answer = headcount("evaluate", classifier / "model", "--data", classifier / "dev.tsv", "--json", "-q")
    keys = list(json.loads(answer.out))
    assert (keys[0], keys[-1]) == ("score", "signature")


def test_ablate_with_outputs_of_other_examples(headcount, classifier, tmp_path):
    common = ("ablate", classifier / "model", "--data", classifier / "dev.tsv", "--resamples", 200)
    answer = headcount(*common, "--fill", "resample", "--draws", 2, "--json", "--out", tmp_path / "run")
    result = json.loads(answer.out)
    assert (result["fill"], result["draws"], result["test"]) == ("resample", 2, "paired bootstrap")
    assert len(result["heads"]) == 8
    assert read_run(tmp_path / "run")["draws"] == 2
    other = json.loads(headcount(*common, "--fill", "resample", "--draws", 2, "--seed", 5, "--json").out)
    assert [row["change"] for row in other["heads"]] != [row["change"] for row in result["heads"]]


def test_ablate_with_outputs_of_corrupted_texts(headcount, classifier, tmp_path):
    rows = [text.split() for text in sentences(0)]
    clean, swapped = ([" ".join(words[:: 1 if turn else -1]) for words in rows] for turn in (1, 0))
    for name, texts in (("clean.tsv", clean), ("corrupted.tsv", swapped)):
        lines = [f"{text}\t{place % 2}" for place, text in enumerate(texts)]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    common = ("ablate", classifier / "model", "--data", tmp_path / "clean.tsv", "--fill", "counterfactual")
    common = (*common, "--metric", "logit_difference", "--limit", 20, "--json")
    patched = json.loads(headcount(*common, "--against", tmp_path / "corrupted.tsv").out)
    assert patched["n"] == 20
    assert patched["against"] == str(tmp_path / "corrupted.tsv")
    assert any(abs(row["change"]) > 1e-3 for row in patched["heads"])
    same = json.loads(headcount(*common, "--against", tmp_path / "clean.tsv").out)
    assert all(abs(row["change"]) < 1e-5 for row in same["heads"])
    longer = (tmp_path / "corrupted.tsv").read_text().replace(f"{swapped[3]}\t", f"{swapped[3]} film\t")
    (tmp_path / "longer.tsv").write_text(longer)
    answer = headcount(*common[:-3], "--against", tmp_path / "longer.tsv")
    assert answer.code == 1
    assert "longer.tsv, line 4: " in answer.err
    assert "--against" in answer.err


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        (("--fill", "counterfactual"), ("--against",)),
        (("--against", "dev.tsv"), ("--fill counterfactual", "--against")),
        (("--draws", "3"), ("--draws", "--fill resample")),
        (("--fill", "median"), ("median", "resample")),
    ],
)
def test_fills_that_do_not_go_together(headcount, classifier, monkeypatch, options, facts):
    monkeypatch.chdir(classifier)
    answer = headcount("ablate", "model", "--data", "dev.tsv", *options)
    assert answer.code == 2
    assert all(fact in " ".join(answer.err.split()) for fact in facts)
    assert (
        headcount("compare", "model", "--data", "dev.tsv", "--against", "other.tsv", "--fill", "counterfactual").code
        == 2
    )
