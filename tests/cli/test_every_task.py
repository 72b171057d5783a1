"""Every kind of task through every command, from files alone, with labels and without."""

import json

import pytest

import every_task

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
