"""Every kind of task through every command, from files alone, with labels and without."""

import json

import pytest

import every_task
from headcount.cli.options import TASKS

COMMANDS = {
    "evaluate": (),
    "ablate": (),
    "importance": (),
    "curve": ("--step", "0.5"),
    "prune": ("--heads", "25%", "--compensate", "mean"),
    "gates": ("--target-heads", "6", "--tokens", "400"),
}


@pytest.fixture(scope="module", params=every_task.KINDS)
def files(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return folder, *every_task.every_task(request.param, folder, size=24)


@pytest.mark.parametrize("labels", ["data", "none"])
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command(headcount, files, command, labels):
    folder, model, data = files
    given = [command, model, "--data", data, "--labels", labels, "--json", *COMMANDS[command]]
    if labels == "none" and folder.name.startswith("summarization"):  # ROUGE of two empty texts is 0
        given += ["--metric", "agreement"]
    if command in ("prune", "curve"):
        given += ["--score-data", data, "--overlap", "allow"]
    if command in ("prune", "gates"):
        given += ["--out", folder / f"{command}-{labels}"]
    answer = headcount(*given)
    assert answer.code == 0, answer.err
    result = json.loads(answer.out)
    assert result["n"] > 0 if command != "prune" else result["removed"]
    if labels == "none":
        assert result["signature"]
        if command == "evaluate":
            perfect = {"divergence": 0, "wer": 0, "bleu": 100}.get(result["metric"], 1)
            assert result["score"] == pytest.approx(perfect)


def test_every_other_task_is_refused_in_one_sentence(headcount, files):
    """Whatever `--task` is given, no traceback: the fixture lets what nobody foresaw through."""
    _, model, data = files
    served = set()
    for task in TASKS:
        answer = headcount("evaluate", model, "--data", data, "--task", task, "-q")
        if answer.code == 0:
            served.add(task)
        else:
            assert (answer.code, answer.out, answer.err.count("\n")) == (1, "", 1)
    assert 1 <= len(served) <= 3  # its own; a language model serves two names, and endings
