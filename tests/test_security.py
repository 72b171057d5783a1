"""Promises to those who load what others made: no code of theirs is run, their text stays text, nothing is fetched."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as Tree
from html.parser import HTMLParser

import pytest

import made_up_runs as made_up
import tiny_models
from headcount import HeadcountError, load, save
from headcount.cli.model_loading import load_tokenizer
from headcount.reporting import scatter_svg
from headcount.reporting.page import html
from headcount.reporting.runs import read
from headcount.tasks.text import word_tokenizer
from toy_jobs import WORDS, sentences

# ------------------------------------------------------------------------------------------------------ no remote code

CODE = """open({mark!r}, "w").close()
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast
class Config(BertConfig): pass
class Model(BertForSequenceClassification): pass
class Words(PreTrainedTokenizerFast): pass
"""
AUTO = {
    "AutoConfig": "evil.Config",
    "AutoModel": "evil.Model",
    "AutoModelForSequenceClassification": "evil.Model",
    "AutoTokenizer": ["evil.Words", "evil.Words"],
}


def write_jobs(root):
    """A classifier with its tokenizer, and data for it."""
    save(tiny_models.bert(pad_token_id=0), root / "model", tokenizer=word_tokenizer(WORDS))
    for name, start in (("train", 0), ("dev", 1), ("test", 2)):
        rows = [f"{text}\t{int('fine' in text or 'bien' in text)}\n" for text in sentences(start, 24)]
        (root / f"{name}.tsv").write_text("".join(rows))
    return root / "model"


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """A good model with code beside it that every file asks for, and a user who says yes to everything."""
    model, mark = write_jobs(tmp_path), tmp_path / "mark"
    for name in ("evil.py", "modeling_bert.py", "configuration_bert.py", "tokenization_bert.py", "__init__.py"):
        (model / name).write_text(CODE.format(mark=str(mark)))
    for name in ("config.json", "tokenizer_config.json"):
        content = json.loads((model / name).read_text())
        (model / name).write_text(json.dumps({**content, "auto_map": AUTO}))
    monkeypatch.setattr("builtins.input", lambda *words: "y")
    monkeypatch.chdir(model)
    return model, mark


def edit(file, **changes):
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_load_and_the_tokenizer_run_no_code_from_the_directory(hostile):
    model, mark = hostile
    assert type(load(model)).__module__.startswith("transformers.")
    assert load_tokenizer(model, "it")("a fine film").input_ids
    assert not mark.exists()


@pytest.mark.parametrize("name", ["Words", "NoSuchTokenizer", "BertTokenizer"])
def test_a_tokenizer_that_exists_as_code_only_is_refused_or_done_without(hostile, name):
    model, mark = hostile
    edit(model / "tokenizer_config.json", tokenizer_class=name)
    with contextlib.suppress(HeadcountError):
        assert type(load_tokenizer(model, "it")).__module__.startswith("transformers.")
    assert not mark.exists()


def test_commands_run_no_code_from_the_directory(hostile, tmp_path):
    model, mark = hostile
    data = ["--data", str(tmp_path / "dev.tsv")]
    commands = [["inspect", str(model)], ["evaluate", str(model), *data], ["ablate", str(model), *data, "--out", "run"]]
    commands += [["remove", str(model), "--heads", "encoder.0.1", "--out", "small"]]
    answer = in_a_fresh_process(commands, tmp_path)
    assert answer["codes"] == [0, 0, 0, 0], answer
    assert not mark.exists()


# ----------------------------------------------------------------------------------------------------------- no network

PROGRAM = """
import json, os, socket, sys
attempts = []

def watch(event, arguments):
    if event.startswith("socket.") and event.removeprefix("socket.") in WATCHED:
        if event == "socket.connect" and getattr(arguments[0], "family", None) == socket.AF_UNIX:
            return
        attempts.append(f"{event} {arguments!r}")
        raise OSError("the network is blocked")

WATCHED = ("connect", "bind", "sendto", "sendmsg", "getaddrinfo", "gethostbyname", "gethostbyaddr", "getnameinfo")
sys.addaudithook(watch)
for reach in (lambda: socket.create_connection(("127.0.0.1", 9), 1), lambda: socket.getaddrinfo("example.org", 80)):
    try:
        reach()
    except OSError as error:
        assert "blocked" in str(error), error
assert attempts, "the watch saw nothing"
attempts.clear()

from headcount.cli import main
codes = []
for words in json.loads(sys.argv[1]):
    sys.argv[1:] = words
    try:
        main()
        codes.append(0)
    except SystemExit as stop:
        codes.append(stop.code or 0)
with open("answer.json", "w") as file:
    json.dump({"codes": codes, "attempts": attempts}, file)
"""


def in_a_fresh_process(commands, place):
    """Exit codes of commands and all attempts to reach the network; nothing tells the libraries to be offline."""
    environment = {
        key: value for key, value in os.environ.items() if "OFFLINE" not in key and "PROXY" not in key.upper()
    }
    environment |= {"HF_HOME": str(place / "cache"), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", PROGRAM, json.dumps(commands)]
    done = subprocess.run(words, cwd=place, env=environment, input="y\n", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {**json.loads((place / "answer.json").read_text()), "err": done.stderr}


def test_the_demos_analysis_reaches_no_network(tmp_path):
    write_jobs(tmp_path)
    dev, train, test = (["--data", "dev.tsv"], ["--data", "train.tsv"], ["--score-data", "train.tsv"])
    commands = [
        ["inspect", "model"],
        ["evaluate", "model", *dev],
        ["ablate", "model", *dev, "--out", "runs/ablate"],
        ["importance", "model", *train, "--out", "runs/importance"],
        ["curve", "model", *test, *dev, "--step", "0.5", "--out", "runs/curve"],
        ["prune", "model", *test, *dev, "--heads", "25%", "--out", "runs/prune"],
        ["bench", "model", "runs/prune/model", "--batch", "1", "--length", "4", "--rounds", "1", "--out", "runs/bench"],
        ["compare", "model", *dev, "--against", "test.tsv", "--out", "runs/compare"],
        ["remove", "model", "--heads", "encoder.0.1", "--out", "small"],
        ["report", "runs/ablate", "runs/importance", "runs/curve", "runs/prune", "runs/bench", "-o", "report.html"],
    ]
    answer = in_a_fresh_process(commands, tmp_path)
    assert answer["codes"] == [0] * len(commands), answer["err"]
    assert answer["attempts"] == []
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert load(tmp_path / "runs" / "prune" / "model").config.headcount["sites"]


def test_only_a_name_that_may_be_a_hub_id_reaches_the_network(tmp_path):
    answer = in_a_fresh_process([["inspect", "./no-such-model"], ["inspect", "no-such/model"]], tmp_path)
    assert answer["codes"] == [1, 1]
    assert any("huggingface" in attempt for attempt in answer["attempts"])
    assert "Traceback" not in answer["err"]


# --------------------------------------------------------------------------------------------------- text stays text

NASTY = (
    "</title></text></svg></script><script>alert(1)</script><img src=x onerror=alert(1)>\"' onload=alert(1) x='\u202e"
)
TELLING = ("command", "head", "kind", "method", "metric", "best", "role", "mode", "order_by")


def poisoned(value, only=None, keys=False):
    """Every text of a run replaced by markup: of all keys, or only of one, or the keys themselves."""
    if isinstance(value, dict):
        named = {key: poisoned(item, only, keys) if only in (None, key) or not isinstance(item, str) else item
                 for key, item in value.items()}  # fmt: skip
        return {f"{key}{NASTY}": item for key, item in named.items()} | named if keys else named
    if isinstance(value, list):
        return [poisoned(item, only, keys) for item in value] if not (only and all_texts(value)) else value
    return NASTY if isinstance(value, str) and not keys else value


def all_texts(values):
    return all(isinstance(item, str) for item in values)


class Page(HTMLParser):
    """What a browser would make of a page: its elements, and attributes that would run something."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.running = [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.elements.append(tag)
        self.running += [f"{tag} {key}={value}" for key, value in attributes
                         if key.startswith("on") or str(value).lower().startswith("javascript:")]  # fmt: skip


def assert_harmless(page):
    found = Page(page)
    assert found.elements.count("script") == 1  # the report's own
    assert not {"img", "iframe", "object", "embed", "base", "form"} & set(found.elements)
    assert found.running == []
    assert "\u202e" not in page


@pytest.mark.parametrize("name", made_up.RUNS)
def test_markup_in_any_text_or_name_of_a_run_stays_text(name):
    content = made_up.run_json(name)
    for way in (*({"only": key} for key in TELLING), {}, {"keys": True}):
        assert_harmless(html([read(poisoned(content, **way))]))


def test_markup_in_gates_under_way_and_in_paths_stays_text(tmp_path):
    run = tmp_path / NASTY.replace("/", "∕")
    made_up.write(run, {"signature": {"command": "gates"}, "arguments": {}, "finished": False})
    (run / "gates").mkdir()
    state = {"stages": made_up.gates()["stages"][:1], "course": {"price": 0.1, "notes": []}}
    (run / "gates" / "gates.json").write_text(json.dumps(poisoned(state)))
    assert_harmless(html([read(run)]))


def test_markup_in_a_picture_stays_text():
    picture = scatter_svg([(NASTY, 0.1, 0.2), ("encoder.0.1", -0.1, 0.0)], NASTY, NASTY, NASTY)
    elements = {element.tag.rpartition("}")[2] for element in Tree.fromstring(picture).iter()}
    assert "svg" in elements
    assert not {"script", "img", "foreignObject", "image"} & elements
    assert Page(picture).running == []
