"""`headcount roles`, and `headcount importance` by relevance and confidence: tables, JSON, runs, refusals."""

import json

import pytest

import tiny_models
from headcount import save
from headcount.tasks.text import word_tokenizer
from planted_roles import (
    PLANTED,
    PLANTED_IN_LANGUAGE,
    aligner,
    encoder,
    language_model,
    sentences,
    spoken_letters,
    translator,
)
from toy_jobs import WORDS
from toy_jobs import sentences as texts


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A planted encoder with its treebank, a classifier, a translator, and data for them."""
    root = tmp_path_factory.mktemp("roles")
    data = sentences(60)
    model, tokenizer = encoder(data)
    save(model, root / "planted", tokenizer=tokenizer)
    save(tiny_models.bert(pad_token_id=0), root / "classifier", tokenizer=word_tokenizer(WORDS))
    save(tiny_models.marian(), root / "translator", tokenizer=word_tokenizer(WORDS, "marian"))
    (root / "some.conllu").write_text("".join(map(conllu, data)))
    (root / "odd.conllu").write_text(conllu(data[0]).replace("# text = the", "# text = Xthe"))
    lines = texts(0, 24)
    (root / "plain.txt").write_text("".join(f"{line}\n" for line in lines))
    (root / "target.txt").write_text("".join(f"le {line}\n" for line in lines))
    (root / "train.tsv").write_text("".join(f"{line}\t{int('fine' in line or 'bien' in line)}\n" for line in lines))
    (root / "dev.tsv").write_text("".join(f"{line}\t{int('fine' in line)}\n" for line in texts(1, 24)))
    return root


def conllu(sentence):
    heads = {dependent: (head + 1, name) for dependent, head, name in sentence.relations}
    lines = [f"# text = {sentence.text}"]
    for i, (start, end) in enumerate(sentence.words):
        head, name = heads.get(i, (0, "root"))
        lines.append("\t".join([str(i + 1), sentence.text[start:end], *["_"] * 4, str(head), name, "_", "_"]))
    return "\n".join([*lines, "", ""])


def answer(result):
    assert result.code == 0, result.err
    return json.loads(result.out)


def assert_refused(result, fact):
    assert (result.code, result.out) == (1, "")
    assert result.err.splitlines()[-1].startswith("headcount: ")
    assert fact in result.err.splitlines()[-1]


def test_roles(headcount, place, tmp_path):
    ask = ("roles", place / "planted", "--data", place / "some.conllu", "--frequent", 48)
    found = answer(headcount(*ask, "--json", "--out", tmp_path / "run"))
    assert [(row["head"], row["role"], row["detail"]) for row in found["heads"]] == sorted(PLANTED)
    assert {"head", "role", "detail", "score", "baseline", "low", "high"} <= set(found["heads"][0])
    assert found["n"] == found["signature"]["tasks"][0]["n"] == 60
    assert json.loads((tmp_path / "run" / "run.json").read_text())["finished"]
    table = headcount(*ask)
    assert table.code == 0
    assert "obj head->dependent" in table.out
    assert "Heads with a role: 6" in table.out
    assert "attention" in table.err
    assert answer(headcount(*ask, "--relations", "dobj", "--syntactic", "1", "--json"))["heads"][3]["role"] == "idle"


def test_roles_of_a_translator_in_raw_text(headcount, place):
    ask = ("roles", place / "translator", "--data", place / "plain.txt", "--parser", "none", "--limit", 12)
    found = answer(headcount(*ask, "--positional", "0", "--json"))
    assert found["n"] == 12
    assert {row["head"].split(".")[0] for row in found["heads"]} == {"encoder", "decoder", "cross"}


@pytest.mark.parametrize(
    ("more", "fact"),
    [
        (("--data", "odd.conllu"), "sentence 1"),
        (("--data", "missing.conllu"), "missing.conllu"),
        (("--data", "some.conllu", "--relations", "nsubject"), "'nsubject'"),
        (("--data", "some.conllu", "--idle", "50"), "50.0"),
        (("--data", "plain.txt", "--parser", "no_such_model"), "CoNLL-U"),
    ],
)
def test_roles_refusals(headcount, place, monkeypatch, more, fact):
    monkeypatch.chdir(place)
    assert_refused(headcount("roles", "planted", *more), fact)


def test_an_encoder_without_data_is_refused(headcount, place):
    assert_refused(headcount("roles", place / "planted"), "--data")


@pytest.mark.parametrize("given", [("--limit", 5), ("--parser", "none"), ("--relations", "obj"), ("--dry-run",)])
def test_what_is_about_data_needs_data(headcount, place, given):
    wrong = headcount("roles", place / "planted", *given)
    assert (wrong.code, wrong.out) == (2, "")
    assert given[0] in wrong.err


def test_roles_of_a_language_model(headcount, tmp_path):
    model, tokenizer = language_model()
    save(model, tmp_path / "model", tokenizer=tokenizer)
    found = answer(headcount("roles", tmp_path / "model", "--json", "--out", tmp_path / "run"))
    assert {(row["head"], row["role"]) for row in found["heads"]} == PLANTED_IN_LANGUAGE
    assert found["papers"]["retrieval"] == "Wu et al. 2024"
    keep = [(row["layer"], row["kv_head"], row["keep"]) for row in found["cache"]["kv_heads"]]
    assert [one for one in keep if one[2] == "recent"] == [(0, 0, "recent"), (0, 2, "recent")]
    table = headcount("roles", tmp_path / "model", "--seed", 1)
    assert table.code == 0
    assert "after the last" in table.out
    assert "6 of 8" in table.out  # key-value heads with a whole cache
    strict = answer(headcount("roles", tmp_path / "model", "--streaming", "1", "--sink", "1", "--json"))
    assert {row["role"] for row in strict["heads"]} >= {"induction", "copying"}
    page = headcount("report", tmp_path / "run", "--out", tmp_path / "page.html")
    assert page.code == 0, page.err
    assert "6 of 8 key-value heads need a whole cache" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_roles_of_whisper(headcount, tmp_path):
    model, processor = aligner()
    save(model, tmp_path / "model")
    processor.save_pretrained(tmp_path / "model")
    found = answer(headcount("roles", tmp_path / "model", "--data", spoken_letters(tmp_path), "--limit", 15, "--json"))
    assert [(row["head"], row["role"]) for row in found["heads"]] == [("cross.0.0", "alignment")]
    assert found["n"] == 15


def test_importance_by_relevance_and_confidence(headcount, place, tmp_path):
    ask = ("importance", place / "classifier", "--data", place / "train.tsv", "--json")
    by_relevance = answer(headcount(*ask, "--method", "relevance", "--out", tmp_path / "run"))
    assert sum(row["score"] for row in by_relevance["heads"]) == pytest.approx(2.0, abs=1e-4)  # 1 in each layer
    end, special = (answer(headcount(*ask, "--method", "confidence", "--exclude", e)) for e in ("end", "special"))
    assert end["heads"] != special["heads"]
    assert end["order_by"] == "score"
    for wrong in (("--exclude", "special"), ("--method", "fisher", "--per", "token")):
        usage = headcount(*ask, *wrong)
        assert (usage.code, usage.out) == (2, "")
        assert wrong[-2] in usage.err
    translator = ("importance", place / "translator", "--data", place / "plain.txt", "--target-data")
    found = answer(headcount(*translator, place / "target.txt", "--limit", 4, "--method", "relevance", "--json"))
    assert len(found["heads"]) == 24


def test_curves_in_their_orders(headcount, place):
    data = ("--score-data", place / "train.tsv", "--data", place / "dev.tsv", "--overlap", "allow")
    methods = ("--methods", "relevance,confidence", "--step", "0.5", "--json")
    found = answer(headcount("curve", place / "classifier", *data, *methods))
    assert [one["method"] for one in found["curves"]] == ["relevance", "confidence"]


def test_aligned_pairs_name_the_heads_that_align_words(headcount, tmp_path):
    model, tokenizer, rows = translator()
    save(model, tmp_path / "model", tokenizer=tokenizer)
    lines = ["source\ttarget\talignment", *("\t".join(row.values()) for row in rows)]
    (tmp_path / "pairs.tsv").write_text("".join(f"{line}\n" for line in lines))
    result = json.loads(headcount("roles", tmp_path / "model", "--data", tmp_path / "pairs.tsv", "--json").out)
    found = {(row["head"], row["detail"]) for row in result["heads"] if row["role"] == "alignment"}
    assert found == {("cross.0.0", "of the word it reads"), ("cross.0.1", "of the word it predicts")}
    table = headcount("roles", tmp_path / "model", "--data", tmp_path / "pairs.tsv").out
    assert "of the word it reads" in table
    refused = headcount("roles", tmp_path / "model", "--data", tmp_path / "pairs.tsv", "--alignment", 2)
    assert refused.code == 1
    assert "--alignment" in refused.err
