"""The program as a whole: help, version, exit codes, and the words of its refusals."""

import json
import os
import re
import subprocess
import sys
from typing import Annotated, Literal, get_args, get_type_hints

import pytest
import typer

import headcount as library
from headcount.cli.app import COMMANDS, add_command, call, run
from headcount.cli.demo import demo
from headcount.cli.importance import Exclude, Method
from headcount.cli.model_loading import DTYPES
from headcount.cli.options import ALIASES, METRICS, TASKS, FillName, Precision, command
from headcount.demo import STORIES
from headcount.errors import HeadcountError

HEAVY = {"torch", "transformers", "datasets", "numpy", "scipy", "pandas", "sklearn"}


def program(*arguments, after="", environment=None, **settings):
    """The installed program, as a user starts it."""
    lines = ("import sys", "sys.argv[0] = 'headcount'", "from headcount.cli import main", "try: main()")
    code = "\n".join([*lines, f"finally: {after or 'pass'}"])
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", **(environment or {})},
        **settings,
    )


def test_help_lists_the_commands_in_order_with_a_line_each(headcount):
    answer = headcount("--help")
    assert answer.code == 0
    listed = re.findall(r"^│ (\w+) {2,}(\S.*?) *│$", answer.out.split("Commands")[1], flags=re.MULTILINE)
    assert [name for name, _ in listed] == list(COMMANDS)
    assert all(about[0].isupper() for _, about in listed)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_has_examples_that_parse(headcount, monkeypatch, tmp_path, name):
    monkeypatch.chdir(tmp_path)
    answer = headcount(name, "--help")
    assert answer.code == 0
    text = answer.out.partition("╭")[0]  # above the options
    examples = [" ".join(example.split()) for example in re.split(r"\n *\n", text.partition("Examples:")[2])]
    examples = [example for example in examples if example]
    assert examples
    for example in examples:
        assert example.startswith(f"headcount {name}")
        monkeypatch.setattr("headcount.cli.console.quiet", stop)  # what most commands enter first, after their options
        with pytest.raises((Reached, HeadcountError)):  # `report` refuses runs that are not there
            call(example.split()[1:])


class Reached(Exception):
    """The options were understood, and the work would begin."""


def stop(*args, **settings):
    raise Reached


NAMES = "print(*sorted({name.split('.')[0] for name in sys.modules}), len(sys.modules), file=sys.stderr)"
MOST = 700  # modules that a help may import; torch alone would be 900 more


@pytest.mark.parametrize("words", [["--help"], *([name, "--help"] for name in COMMANDS)])
def test_help_imports_nothing_heavy(words):
    *loaded, count = program(*words, after=NAMES).stderr.splitlines()[-1].split()
    assert {"headcount", "typer"} <= set(loaded)
    assert not HEAVY & set(loaded)
    assert int(count) < MOST


DATA = ["--data", "dev.tsv"]
PRUNE = ["prune", "model", "--score-data", "dev.tsv", *DATA]


@pytest.mark.parametrize(
    ("words", "code", "fact"),
    [
        (["ablate", "model", *DATA, "--mode", "eech"], 2, "did you mean 'each'"),
        (["evaluate", "./nowhere", *DATA], 1, "nowhere is not a directory"),
        (["evaluate", "model", "--data", "dve.tsv"], 1, "dve.tsv does not exist; change --data"),
        (["evaluate", "model", *DATA, "--target-data", "dev.fr"], 1, "dev.fr does not exist; change --target-data"),
        (["evaluate", "model", *DATA, "--dtype", "float33"], 2, "did you mean 'float32'"),
        (["evaluate", "model", *DATA, "--seed", "-5"], 2, "--seed is -5; give at least 0"),
        (["evaluate", "model", *DATA, "--limit", "ten"], 2, "--limit ten is not a whole number"),
        (["evaluate", "model", *DATA, "--limit", "1.5"], 2, "--limit 1.5 is not a whole number"),
        ([*PRUNE, "--max-drop", "half"], 2, "--max-drop half is not a number"),
        ([*PRUNE, "--max-drop", "1", "--distill", "2"], 2, "--distill is 2; give at most 1"),
        (["evaluate", "model", *DATA, "--out", "dev.tsv/run"], 1, "inside a file; choose another --out"),
        (["evaluate", "model", *DATA, "--task", "taging"], 2, "did you mean 'tagging'"),
        (["evaluate", "model", *DATA, "--metric", "acuracy"], 2, "did you mean 'accuracy'"),
        (["evaluate", "model", *DATA, "--out", "dev.tsv"], 1, "dev.tsv is a file"),
        (["evaluate", "model", *DATA, "--out", "."], 1, "directory of its own; name one with --out"),
        (["ablate", "model", *DATA, "--out", "model"], 1, "config.json"),
        (["ablate", "model", *DATA, "--select-data", "dev.tsv"], 2, "--mode all-but-one"),
        (["ablate", "model", *DATA, "--layers", "x"], 2, "'x'"),
        (["compare", "model", *DATA], 2, "--against"),
        (["compare", "model", "small.onnx", *DATA], 1, "small.onnx does not exist"),
        (["importance", "model", *DATA, "--units", "neuron"], 2, "did you mean 'neurons'"),
        (["curve", "model", "--score-data", "dev.tsv", *DATA, "--methods", "magic"], 2, "'magic'"),
        (["curve", "model", "--score-data", "dev.tsv", *DATA, "--step", "0"], 2, "give --step as 0.1"),
        (["track", "model", "--score-data", "dev.tsv", *DATA, "--step", "1.5"], 2, "give --step as 0.1"),
        ([*PRUNE, "--max-drop", "1"], 2, "--out is required"),
        ([*PRUNE, "--out", "small"], 2, "--max-drop"),
        ([*PRUNE, "--out", "small", "--heads", "2", "--flops", "50%"], 2, "give --heads or --flops, not both"),
        ([*PRUNE, "--out", "small", "--heads", "200%"], 2, "2 (200%) is neither a share of the heads nor a number"),
        ([*PRUNE, "--out", "small", "--max-drop", "1", "--confidence", "2"], 2, "2 is not a confidence"),
        ([*PRUNE, "--out", "small", "--max-drop", "1", "--step", "0"], 2, "give --step as 0.1"),
        ([*PRUNE, "--out", "small", "--heads", "2", "--method", "reconstruction"], 2, "says nothing about other units"),
        (
            [*PRUNE, "--out", "small", "--heads", "2", "--recover-epochs", "1", "--lr", "0"],
            2,
            "give --lr a value above",
        ),
        ([*PRUNE, "--out", "small", "--heads", "half"], 2, "'half'"),
        ([*PRUNE, "--out", "done", "--max-drop", "1"], 1, "finished run"),
        (["gates", "model", *DATA, "--lambda", "0.1"], 2, "--out is required"),
        (["gates", "model", *DATA, "--lambda", "0.1", "--out", "a", "--lr", "-1"], 2, "give --lr a value above 0"),
        (["gates", "model", *DATA, "--lambda", "0.1", "--out", "done"], 1, "finished run"),
        (["remove", "model", "--heads", "encoder.0.1", "--out", "model"], 1, "already exists"),
        (["remove", "model", "--heads", "encoder.0", "--out", "a", "--dtype", "int4"], 2, "--dtype 'int4'"),
        (["remove", "model", "--heads", "encoder/0", "--out", "a"], 1, "'encoder/0'"),
        (["export", "model"], 2, "FILE.onnx"),
        (["export", "model", "here.onnx"], 1, "here.onnx exists already"),
        (["export", "model", "-o", "here.onnx"], 1, "here.onnx exists already"),
        (["bench", "model", "--batch", "x"], 2, "--batch"),
        (["bench", "model", "other"], 1, "other is not a directory"),
        (["inspect", "model/nowhere/at/all"], 1, "is not a directory"),
        (["inspect", "adapter"], 1, "adapter (PEFT)"),
        (["inspect", "run"], 1, "did you mean run/checkpoint-80?"),
        (["report", "nowhere"], 1, "nowhere"),
    ],
)
def test_what_needs_no_model_is_refused_before_anything_heavy_is_imported(tmp_path, words, code, fact):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter/adapter_config.json").write_text("{}")
    for number in (8, 80, 16):
        (tmp_path / f"run/checkpoint-{number}").mkdir(parents=True)
        (tmp_path / f"run/checkpoint-{number}/config.json").write_text("{}")
    (tmp_path / "dev.tsv").write_text("fine\t1\n")
    (tmp_path / "here.onnx").write_text("")
    (tmp_path / "done").mkdir()
    (tmp_path / "done/run.json").write_text('{"finished": true}')
    answer = program(*words, after=NAMES, cwd=tmp_path)
    *said, loaded = answer.stderr.splitlines()
    assert (answer.returncode, answer.stdout, len(said)) == (code, "", 1)
    assert fact in said[0]
    assert not HEAVY & set(loaded.split())


def test_only_the_command_asked_for_is_imported():
    answer = program("evaluate", "x", after="print(*sys.modules, file=sys.stderr)")
    loaded = set(answer.stderr.splitlines()[-1].split())
    assert {name for name in COMMANDS if f"headcount.cli.{name}" in loaded} == {"evaluate"}


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS)])
def test_flags_have_no_type(headcount, words):
    assert "<bool>" not in headcount(*words, "--help").out
    assert "-o" in headcount("export", "--help").out


FEW = {"--label", "--text", "--pair", "--choices", "--source", "--target", "--target-data", "--beams", "--max-length"}


def explained(text):
    """The options that a help explains, each in a line of its own."""
    return set(re.findall(r"^│ (?:\*  |   )?(--[\w-]+)", text, flags=re.MULTILINE))


@pytest.mark.parametrize("name", ["evaluate", "prune", "compare", "gates", "bench", "export"])
def test_help_shows_what_every_task_uses_and_help_all_everything(headcount, name):
    short, long = headcount(name, "--help"), headcount(name, "--help-all")
    assert (short.code, long.code, long.err) == (0, 0, "")
    left_out = explained(long.out) - explained(short.out)
    assert {"--task", "--limit", "--help-all"} <= explained(short.out)
    assert FEW - {"--beams"} <= left_out
    assert not any(one.endswith("target-data") for one in explained(short.out))
    below = short.out.rpartition("╯")[2]
    assert set(re.findall(r"--[\w-]+", below)) == {"--help-all", *left_out}  # named, so that a search finds them
    assert re.search(r"Only for translation, .*--source.*--target-data", long.out, re.DOTALL)


def test_a_command_without_tasks_has_no_options_of_tasks(headcount):
    text = headcount("roles", "--help-all").out
    assert FEW & explained(text) == {"--text", "--max-length", "--source", "--target"}  # the columns of recordings
    assert "--label2id" not in text


def test_completion_can_be_installed(tmp_path):
    assert "--install-completion" in program("--help").stdout
    asked = {"_HEADCOUNT_COMPLETE": "complete_bash", "COMP_WORDS": "headcount ab", "COMP_CWORD": "1"}
    answer = program(environment=asked)
    assert answer.stdout.split() == ["ablate"]


@pytest.mark.parametrize(
    ("name", "words", "fact"),
    [
        ("BertForNextSentencePrediction", [], "no task for BertForNextSentencePrediction"),
        ("BertForNextSentencePrediction", ["--task", "translation"], "no task for BertForNextSentencePrediction"),
        ("BertForTokenClassification", ["--task", "speech"], "not made for speech, but for tagging; change --task"),
        ("BertForTokenClassification", ["--metric", "bleu"], "'bleu'. Available: accuracy, f1, loss"),
    ],
)
def test_a_model_that_the_task_does_not_suit_is_refused_before_its_weights_are_read(
    headcount, tmp_path, name, words, fact
):
    config = {"model_type": "bert", "architectures": [name], "num_hidden_layers": 1, "hidden_size": 24}
    (tmp_path / "config.json").write_text(json.dumps(config))  # and no weights
    (tmp_path / "dev.tsv").write_text("fine\t1\n")
    answer = headcount("evaluate", tmp_path, "--data", tmp_path / "dev.tsv", *words)
    assert (answer.code, answer.out) == (1, "")
    assert fact in answer.err


def test_an_error_that_nobody_foresaw_is_one_sentence(headcount, monkeypatch):
    def fail(given, out):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("headcount.cli.command_run.refuse_unusable", fail)
    with pytest.raises(ZeroDivisionError):
        call(["evaluate", "x", "--data", "y"])
    monkeypatch.setattr("os.environ", {**os.environ, "HEADCOUNT_TRACEBACK": ""})
    assert run(["evaluate", "x", "--data", "y"]) == 1


def test_version(headcount):
    answer = headcount("--version")
    assert (answer.code, answer.out) == (0, f"headcount {library.__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (["inspekt", "x"], "did you mean 'inspect'"),
        (["inspect", "x", "--lenth", "3"], "--length"),
        (["inspect", "x", "--length", "three"], "--length"),
        (["inspect", "x", "--length", "0"], "--length"),
        (["evaluate", "x"], "--data"),
        (["demo", "review"], "did you mean 'reviews'"),
        (["importance", "x", "--data", "y", "--method", "gradeint"], "did you mean 'gradient'"),
        (["importance", "x", "--data", "y", "--per", "tokens"], "did you mean 'token'"),
        (["importance", "x", "--data", "y", "--exclude", "ends"], "did you mean 'end'"),
        (["compare", "x", "--data", "y", "--against", "z", "--fill", "meen"], "did you mean 'mean'"),
        (["evaluate", "x", "--data", "y", "--device", "cudas:1"], "did you mean 'cuda'"),
        (["remove", "x", "--heads", "encoder.0.0", "--out", "y", "--dtype", "flaot16"], "did you mean 'float16'"),
    ],
)
def test_wrong_usage_is_2_in_one_sentence(headcount, arguments, fact):
    answer = headcount(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert re.fullmatch(r"headcount: \S.*; see headcount( \w+)? --help\n", answer.err)
    assert fact in answer.err


@pytest.mark.parametrize("arguments", [[], ["inspect"], ["remove"]])
def test_a_command_alone_prints_its_help(headcount, arguments):
    answer = headcount(*arguments)
    assert (answer.code, answer.err) == (2, "")
    assert "Usage: headcount" in answer.out


def test_choices_are_the_librarys():
    from headcount import evaluation, scoring
    from headcount.scoring import confidence
    from headcount.tasks import registry

    assert tuple(kind.name for kind in registry.KINDS) == TASKS
    assert {alias for kind in registry.KINDS for alias in kind.aliases} == set(ALIASES)
    assert {name for kind in registry.KINDS for name in kind.metrics} | set(registry.metrics.UNLABELED) == set(METRICS)
    assert set(get_args(Method)) == set(scoring.METHODS)
    assert set(get_args(Exclude)) == set(confidence.EXCLUDE)
    assert set(get_args(FillName)) == set(evaluation.FILLS)
    assert set(get_args(Precision)) == {"auto", *DTYPES}
    assert set(get_args(get_type_hints(demo)["name"])) == set(STORIES)


def test_an_error_names_options_where_python_would_name_arguments(headcount, monkeypatch):
    def refuse(given, out):
        raise HeadcountError("too long", advice="use {max_length}, or another {run}")

    monkeypatch.setattr("headcount.cli.command_run.refuse_unusable", refuse)
    answer = headcount("evaluate", "x", "--data", "y")
    assert (answer.code, answer.err) == (1, "headcount: too long; use --max-length, or another --out\n")


def test_a_process_of_its_own(tmp_path):
    """One sentence on stderr, nothing on stdout, no traceback, exit code 1."""
    (tmp_path / "config.json").write_text("nonsense")
    answer = program("inspect", tmp_path)
    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr.startswith(f"headcount: {tmp_path}/config.json is not valid JSON")
    assert answer.stderr.count("\n") == 1


def test_a_closed_set_that_may_be_left_out_suggests_too():
    def choose(weights: Annotated[Literal["all", "none"] | None, typer.Option("--weights")] = None) -> None:
        chosen.append(weights)

    chosen: list[str | None] = []
    app = typer.Typer()
    add_command(app, command()(choose))
    for words in ([], ["--weights", "none"]):
        app(words, standalone_mode=False)
    with pytest.raises(typer.BadParameter, match="did you mean 'all'"):
        app(["--weights", "al"], standalone_mode=False)
    assert chosen == [None, "none"]
