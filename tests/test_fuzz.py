"""A quick pass of `benchmarks/fuzz`, the watch it keeps, and what it has found, each kind once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from headcount import HeadcountError, Scores, report
from headcount.cli.gates import read_roles
from headcount.errors import BadCheckpoint, BadData, RunConflict
from headcount.roles.sentences import read_treebank
from headcount.surgery import read_config
from headcount.surgery.loading import read_checkpoint
from headcount.tasks import Rows
from headcount.tasks.classification import class_ids
from headcount.training import Checkpointer

INPUTS = 800


def in_repository(repository, *arguments):
    path = os.pathsep.join([str(repository / "src"), str(repository), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=repository, env=environment, capture_output=True, text=True, check=False
    )


def test_a_quick_pass_over_every_reader(repository):
    answer = in_repository(repository, "-B", "-m", "benchmarks.fuzz", "--inputs", str(INPUTS), "--seed", "1")
    assert answer.returncode == 0, answer.stdout + answer.stderr[-2000:]
    lines = answer.stdout.splitlines()
    assert len(lines) > 20
    assert all(line.endswith(" 0 fail") for line in lines)
    assert int(lines[-1].split()[1].replace(",", "")) >= INPUTS


BAD = """
import ctypes, os, socket, sys, tempfile, time
from pathlib import Path
from benchmarks.fuzz import worker
from headcount import HeadcountError

worker.SECONDS, worker.PATIENCE = 0.1, 5.0
place = worker.Place(Path(sys.argv[1]))
place.plant({"txt": b"secret"})
secret = place.outside / "secret.txt"

def raises(given): raise KeyError("x")
def two_lines(given):
    error = HeadcountError("x"); error.message = "one" + chr(10) + "two"; raise error
def hangs(given): time.sleep(60)
def slow(given):
    end = time.process_time() + 0.2
    while time.process_time() < end: pass
def dies(given): os._exit(3)
def crashes(given): ctypes.string_at(0)
def eats(given): [bytes(2**30) for _ in range(8)]
def reads_outside(given): os.close(os.open(secret, os.O_RDONLY))
def writes_outside(given): (Path(tempfile.gettempdir()) / f"fuzz-{os.getpid()}").open("w").close()
def makes_outside(given): os.mkdir(place.linked / "x")
def connects(given):
    try: socket.create_connection(("127.0.0.1", 9), timeout=1)
    except OSError: pass
def runs(given): exec(compile("1", str(given / "a.txt"), "exec"))
def good(given): (given / "mine.txt").write_text("x")
for read in (raises, two_lines, hangs, slow, dies, crashes, eats, reads_outside, writes_outside, makes_outside,
             connects, runs, good):
    reader = worker.Reader(read.__name__, (read,), [{"a.txt": b"some text"}])
    print(read.__name__, *(failure["why"] for failure in worker.run(reader, place, 1, 0).failures), sep=" | ")
"""


def test_the_watch_sees_what_it_should(repository, tmp_path):
    answer = in_repository(repository, "-c", BAD, str(tmp_path))
    assert answer.returncode == 0, answer.stderr
    said = dict(line.split(" | ", 1) if " | " in line else (line, "") for line in answer.stdout.splitlines())
    expected = {
        "raises": "KeyError", "two_lines": "more than one sentence", "hangs": "hangs", "slow": "took",
        "dies": "ended with 3", "crashes": "ended with -", "eats": "MemoryError", "writes_outside": "to write",
        "makes_outside": "os.mkdir", "connects": "socket.connect", "runs": "ran ",
    }  # fmt: skip
    if sys.platform == "linux":
        expected["reads_outside"] = "touched secret.txt"
    assert {name: words for name, words in expected.items() if words not in said[name]} == {}
    assert said["good"] == ""


def test_an_input_can_be_made_again_from_its_number(repository, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(repository)
    from benchmarks.fuzz.mutate import mutated

    content = b'{"a": [1, 2, {"b": "text"}], "c": null}'
    made = [[mutated("x.json", content, Random(f"7 {number}"), "out") for number in range(200)] for _ in range(2)]
    assert made[0] == made[1]
    assert len(set(made[0])) > 150


# ----------------------------------------------------------------------------------------------- what fuzzing has found


def test_an_error_is_one_printable_line_whatever_it_quotes():
    said = str(HeadcountError("column 'a\x1b[2J\r\nb\u202e\ud800' " + "x" * 10_000))
    assert said.startswith(r"column 'a\x1b[2J\r\nb\u202e\ud800' xxx")
    assert said.isprintable()
    assert len(said) < 1000


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("d.jsonl", b"[" * 100_000, r"d\.jsonl, line 1: .*JSON"),
        ("d.jsonl", b'{"text": "a", "label": ' + b"9" * 5000 + b"}", r"d\.jsonl, line 1: .*JSON.*digits"),
        ("d.jsonl", b'{"text": "\\ud800", "label": 1}', r"d\.jsonl, line 1: .*JSON.*surrogates"),
        ("d.parquet", b"PAR1\x00\x00\x00\x00PAR1", r"d\.parquet .*not a parquet file"),
    ],
)
def test_data_that_no_reader_expects(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadData, match=says):
        Rows.of(tmp_path / name)


@pytest.mark.parametrize("label", ["²", "--1", "9" * 5000])
def test_digits_that_are_no_number(label):
    with pytest.raises(BadData, match=r"example 0, column 'label': .*no = 0, yes = 1"):
        class_ids(Rows({"label": [label, "1"]}), "label", {"no": 0, "yes": 1})


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["1-999999999\tab\t_\t_\t_\t_\t_\t_\t_\t_", "1\ta\t_\t_\t_\t_\t0\troot\t_\t_"], r"sentence 1.*1-999999999"),
        (["1\ta\t_\t_\t_\t_\t-3\tobj\t_\t_"], r"sentence 1.*word -3\b"),
        (["1\ta\t_\t_\t_\t_\t" + "9" * 5000 + "\tobj\t_\t_"], r"sentence 1.*CoNLL-U"),
        (
            ["2-2\tb\t_\t_\t_\t_\t_\t_\t_\t_", *(f"{i}\tb\t_\t_\t_\t_\t0\troot\t_\t_" for i in (1, 2))],
            r"sentence 1: .*before",
        ),
    ],
)
def test_treebanks_that_count_wrongly(tmp_path, lines, says):
    (tmp_path / "t.conllu").write_text("\n".join([*lines, "", ""]))
    with pytest.raises(BadData, match=says):
        read_treebank(tmp_path / "t.conllu")


@pytest.mark.parametrize("key", ["num_hidden_layers", "num_attention_heads", "num_labels", "hidden_size"])
def test_a_configuration_that_would_never_be_built(tmp_path, key):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", key: 10**9}))
    with pytest.raises(BadCheckpoint, match=rf"1000000000\b.*\b{key}"):
        read_config(tmp_path)


def test_an_index_that_names_no_possible_file(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    index = {"weight_map": {"a": "x" * 3000 + ".safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BadCheckpoint, match="xxx … xxx"):
        read_checkpoint(tmp_path)


def test_many_labels_with_names_like_settings_are_no_giants(tmp_path):
    names = {f"class {number}": number for number in range(20_000)} | {"bedhead": 20_000}
    content = {"model_type": "bert", "label2id": names, "id2label": {str(n): name for name, n in names.items()}}
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert read_config(tmp_path).num_labels == 20_001


@pytest.mark.parametrize("file", ["../secret.safetensors", "/secret.safetensors", "a\0b", "", 3, None])
def test_trainings_resume_from_a_file_beside_them_only(tmp_path, file):
    (tmp_path / "gates.json").write_text(json.dumps({"signature": None, "copies": [], "file": file}))
    with pytest.raises(RunConflict, match=r"gates\.json"):
        Checkpointer(tmp_path, "gates").read(dict)


@pytest.mark.parametrize(
    ("row", "says"),
    [({"role": "rare"}, "None"), ({"role": "rare", "head": "encoder"}, "encoder")],
)
def test_roles_that_are_no_roles(tmp_path, row, says):
    (tmp_path / "run.json").write_text(json.dumps({"heads": [row, row]}))
    with pytest.raises(HeadcountError, match=says):
        read_roles(str(tmp_path))


@pytest.mark.parametrize("command", ["\t", "", " ", 3, None])
def test_a_run_of_no_command_is_reported(tmp_path, command):
    written = report({"command": command, "heads": []}, tmp_path / "report.html")
    assert written.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_scores_that_are_nested_too_deeply(tmp_path):
    (tmp_path / "scores.json").write_bytes(b"[" * 100_000)
    with pytest.raises(BadData, match=r"scores\.json"):
        Scores.load(tmp_path / "scores.json")


CARD = "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: '{}'\n---\n# Data\n"


@pytest.mark.parametrize(
    "way", ["../secret.jsonl", "{outside}/secret.jsonl", "https://example.org/a.jsonl", "~/a.jsonl"]
)
@pytest.mark.parametrize("place", ["README.md", ".huggingface.yaml", "state.json"])
def test_a_data_directory_cannot_point_elsewhere(tmp_path, way, place):
    """The datasets library would follow it."""
    (tmp_path / "data").mkdir()
    for folder in (tmp_path, tmp_path / "data"):
        (folder / ("secret.jsonl" if folder == tmp_path else "train.jsonl")).write_text('{"text": "a", "label": 1}\n')
    way = way.format(outside=tmp_path)
    state = {"_data_files": [{"filename": way}], "_split": None}
    card = CARD.format(way)
    content = {"README.md": card, ".huggingface.yaml": card.split("---")[1], "state.json": json.dumps(state)}[place]
    (tmp_path / "data" / place).write_text(content)
    with pytest.raises(BadData, match=f"^{re.escape(place)} .*{re.escape(repr(way))}"):
        Rows.of(Path(tmp_path / "data"))
