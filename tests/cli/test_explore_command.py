"""`headcount explore` and `headcount view`: one line with an address, one file with everything, and how both end."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import webbrowser

import pytest

from explored_models import build
from headcount import anatomy, remove, save
from headcount.explore import ExploreServer

# A background job of a shell ignores Ctrl-C, and what it starts inherits that: this program answers it in any case.
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv[0] = "headcount"
from headcount.cli import main
main()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("explored")
    model, tokenizer, _ = build("classifier")
    save(model, root / "model", tokenizer=tokenizer)
    save(remove(model, ["encoder.0.0"]), root / "small" / "model", tokenizer=tokenizer)
    run = {"command": "prune", "model": "model", "removed": ["encoder.0.0"], "left": 7, "before": 0.9, "finished": True}
    (root / "small" / "run.json").write_text(json.dumps({**run, "path": "elsewhere/model"}))
    (root / "dev.tsv").write_text("sentence\tlabel\na dog runs\t1\nthe cat sleeps\t0\n")
    return root


@pytest.fixture
def served(monkeypatch):
    """What a live page was served with: it ends at once, and opens no browser."""
    seen = {"opened": []}

    def end(server):
        seen.update(address=server.address, answers=server.answers, host=server.host)

    monkeypatch.setattr(ExploreServer, "serve_until_interrupted", end)
    monkeypatch.setattr(webbrowser, "open", seen["opened"].append)
    return seen


def test_a_live_page_from_start_to_ctrl_c(place, tmp_path):
    """One line on stdout; Ctrl-C ends it with code 0, says nothing, and leaves nothing behind."""
    words = ["explore", place / "model", "--text", "a dog", "--no-open"]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    try:
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert answer.read().startswith(b"<!doctype html>")
        asked = json.dumps({"what": "answer", "text": "a dog", "off": ["encoder.0.1"]}).encode()
        request = urllib.request.Request(f"{address}ask", asked, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.loads(answer.read())["bars"]
        threading.Thread(target=keep_asking, args=(address,), daemon=True).start()
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)  # while the model works
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def keep_asking(address):
    """Every head's effect on one text after the other, until nobody answers."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        for place in range(10_000):
            asked = json.dumps({"what": "effects", "text": f"{'a dog runs ' * (place % 4)} the cat"}).encode()
            request = urllib.request.Request(f"{address}ask", asked, {"Content-Type": "application/json"})
            urllib.request.urlopen(request, timeout=60).read()


def test_runs_examples_and_the_pruned_model(headcount, place, served):
    answer = headcount("explore", place / "model", place / "small", "--data", place / "dev.tsv")
    assert answer.code == 0, answer.err
    assert answer.out == f"{served['address']}\n"
    assert served["opened"] == [served["address"]]
    examples = served["answers"].examples
    texts = [(one["text"], one["label"]) for one in examples]
    assert texts == [("a dog runs", "LABEL_1"), ("the cat sleeps", "LABEL_0")]
    inspector = served["answers"].inspector
    assert inspector.facts()["pruned"] == str(place / "small" / "model")
    assert len(anatomy(inspector.smaller).heads) == 7


def test_another_host_is_warned_about(headcount, place, served):
    answer = headcount("explore", place / "model", "--host", "0.0.0.0", "--no-open")
    assert answer.code == 0
    assert "0.0.0.0" in answer.err
    assert served["opened"] == []
    assert headcount("explore", place / "model", "--no-open").err == ""
    assert served["host"] == "127.0.0.1"


def test_a_view_is_one_file_and_replaces_only_views(headcount, place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        answer = headcount("view", place / "model", "--text", "a dog", "-o", "view.html")
        assert answer.code == 0, answer.err
    page = (tmp_path / "view.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    (tmp_path / "mine.html").write_text("mine")
    answer = headcount("view", place / "model", "--text", "a dog", "-o", "mine.html")
    assert (answer.code, "mine.html" in answer.err) == (1, True)
    assert (tmp_path / "mine.html").read_text() == "mine"


def test_a_run_of_views_goes_into_the_report(headcount, place, tmp_path):
    run = tmp_path / "seen"
    answer = headcount("view", place / "model", place / "small", "--data", place / "dev.tsv", "--out", run)
    assert answer.code == 0, answer.err
    content = json.loads((run / "run.json").read_text())
    assert [one["label"] for one in content["view"]["texts"]] == ["LABEL_1", "LABEL_0"]
    assert content["view"]["texts"][0]["pruned"]["bars"]
    assert (run / "view.html").is_file()
    again = headcount("view", place / "model", place / "small", "--data", place / "dev.tsv", "--out", run, "--json")
    assert json.loads(again.out) == {"model": str(place / "model"), "n": 2, "path": str(run / "view.html")}
    assert headcount("report", run).code == 0
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "<h1>Heads at work on 2 texts</h1>" in page
    assert "headcount view" in page


@pytest.mark.parametrize(
    ("words", "code", "fact"),
    [
        (("view", "model"), 2, "--text"),
        (("view", "model", "--text", "a", "--data", "dev.tsv"), 2, "--data"),
        (("view", "model", "--text", "a", "--column", "text"), 2, "--column is for --data"),
        (("explore", "model", "--split", "test"), 2, "--split is for --data"),
        (("view", "model", "--text", " "), 1, "empty"),
        (("explore", "model", "--text", " "), 1, "empty"),
        (("explore", "nowhere"), 1, "nowhere"),
        (("explore", "model", "dev.tsv"), 1, "dev.tsv"),
        (("explore", "model", "--port", "99999"), 2, "--port"),
        (("explore", "model", "--host", "192.0.2.1"), 1, "192.0.2.1"),
        (("explore", "model", "--host", "256.1.1.1"), 1, "another --host or --port"),
    ],
)
def test_refusals(headcount, place, monkeypatch, served, words, code, fact):
    monkeypatch.chdir(place)
    answer = headcount(*words)
    assert (answer.code, fact in answer.err, answer.err.count("\n")) == (code, True, 1)
    assert not (place / "view.html").exists()
