"""Run directories: whole files, one owner, the right signature, and nothing done twice."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from headcount.errors import RunConflict
from headcount.files import write_whole
from headcount.runs import RunDirectory, open_run, read_run

SIGNATURE = {"model": {"name": "m"}, "tasks": [{"n": 3, "data": "dev.tsv"}]}


def test_results_and_shards_come_back(tmp_path):
    arrays = {"values": np.arange(6.0).reshape(1, 2, 3)}
    with RunDirectory(tmp_path / "run", SIGNATURE, {"limit": 3}).open() as run:
        assert read_run(tmp_path / "run")["finished"] is False
        run.save_shard("outcomes-00000", arrays)
        run.write({"base": 0.5})
    with RunDirectory(tmp_path / "run", SIGNATURE).open() as again:
        assert np.array_equal(again.load_shard("outcomes-00000")["values"], arrays["values"])
        assert again.load_shard("outcomes-00001") is None
    content = read_run(tmp_path / "run")
    assert (content["base"], content["finished"], content["arguments"]) == (0.5, True, {"limit": 3})


def test_numbers_that_json_lacks_are_null_and_numpy_numbers_are_numbers(tmp_path):
    with RunDirectory(tmp_path / "run", SIGNATURE).open() as run:
        run.write({"p": float("nan"), "points": ({"relative": np.float64("inf"), "n": np.int64(3)},)})

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    content = json.loads((tmp_path / "run" / "run.json").read_text(), parse_constant=refuse)
    assert (content["p"], content["points"]) == (None, [{"relative": None, "n": 3}])


def test_another_signature_is_refused_and_says_what_differs(tmp_path):
    with RunDirectory(tmp_path, SIGNATURE).open() as run:
        run.save_shard("one", {"x": np.ones(2)})
    other = {**SIGNATURE, "tasks": [{"n": 4, "data": "dev.tsv"}]}
    with (
        pytest.raises(RunConflict, match="on 3 examples, now 4") as refused,
        RunDirectory(tmp_path, other).open(),
    ):
        pass
    assert "run=…" in str(refused.value)
    assert "--out" in refused.value.in_words({"run": "--out"}.__getitem__)


def test_a_run_that_ended_before_it_had_anything_leaves_its_place_free(tmp_path):
    with pytest.raises(ValueError), RunDirectory(tmp_path, SIGNATURE).open():
        raise ValueError("an option that is refused")
    with RunDirectory(tmp_path, {**SIGNATURE, "x": 1}).open() as run:
        run.write({"score": 1.0}, finished=False)
    with pytest.raises(RunConflict), RunDirectory(tmp_path, SIGNATURE).open():
        pass


def test_a_run_of_another_command_is_named_by_it(tmp_path):
    flags = {"adaptive": False, "limit": 3}
    with RunDirectory(tmp_path / "run", {**SIGNATURE, "command": "ablate"}, flags).open() as run:
        run.save_shard("one", {"x": np.ones(2)})
    other = RunDirectory(tmp_path / "run", {**SIGNATURE, "command": "importance"}, {"limit": 3})
    with pytest.raises(RunConflict, match=r"headcount ablate.*headcount importance") as refused, other.open():
        pass
    assert "adaptive" not in str(refused.value)
    same = RunDirectory(tmp_path / "run", {**SIGNATURE, "command": "ablate", "x": 1}, {**flags, "adaptive": True})
    with pytest.raises(RunConflict, match=r"made without adaptive=…, now adaptive=…;"), same.open():
        pass


def test_a_directory_inside_a_file_is_refused(tmp_path):
    (tmp_path / "dev.tsv").write_text("mine")
    with pytest.raises(RunConflict, match=r"inside is inside a file.*run=…"):
        RunDirectory(tmp_path / "dev.tsv/inside", SIGNATURE).open().__enter__()


def test_a_directory_with_other_things_in_it_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunConflict, match=r"thesis\.tex"), RunDirectory(tmp_path, SIGNATURE).open():
        pass
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_process_killed_while_it_began_is_resumed(tmp_path):
    """What it leaves before `run.json` is whole: a lock, an empty folder, a part of the file."""
    (tmp_path / "outcomes").mkdir()
    (tmp_path / "lock").touch()
    (tmp_path / ".run.json.4711.partial").write_text("{")
    with RunDirectory(tmp_path, SIGNATURE).open():
        assert {entry.name for entry in tmp_path.iterdir()} == {"outcomes", "lock", "run.json"}


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b'{"signature": ' * 3000])
def test_a_damaged_run_file_is_refused_by_name(tmp_path, content):
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(RunConflict, match=r"run\.json"), RunDirectory(tmp_path, SIGNATURE).open():
        pass


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b[:40], lambda b: b"", lambda b: b[:50] + b"x" + b[51:]]
)
def test_a_damaged_shard_counts_as_missing(tmp_path, damage):
    with RunDirectory(tmp_path, SIGNATURE).open() as run:
        run.save_shard("outcomes-00000", {"values": np.ones(4)})
        file = tmp_path / "outcomes" / "outcomes-00000.shard"
        file.write_bytes(damage(file.read_bytes()))
        assert run.load_shard("outcomes-00000") is None


HOLD = """
import sys, time
from headcount.runs import RunDirectory
with RunDirectory(sys.argv[1], {"model": {"name": "m"}, "tasks": [{"n": 3, "data": "dev.tsv"}]}).open():
    print("holding", flush=True)
    time.sleep(600)
"""


def test_a_directory_in_use_is_refused_at_once_and_a_dead_owner_does_not_count(tmp_path):
    owner = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout.readline().strip() == "holding"
        begun = time.monotonic()
        with pytest.raises(RunConflict, match=f"{tmp_path.name}.* in use"), RunDirectory(tmp_path, SIGNATURE).open():
            pass
        assert time.monotonic() - begun < 5
    finally:
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
    with RunDirectory(tmp_path, SIGNATURE).open() as run:
        assert run.path == tmp_path
        assert (tmp_path / "lock").is_file()


def test_a_directory_in_use_by_this_process_is_refused_until_it_is_closed(tmp_path):
    with (
        RunDirectory(tmp_path, SIGNATURE).open(),
        pytest.raises(RunConflict, match="in use"),
        RunDirectory(tmp_path, SIGNATURE).open(),
    ):
        pass
    with RunDirectory(tmp_path, SIGNATURE).open():
        pass


def test_a_full_disk_keeps_the_earlier_file(tmp_path, monkeypatch):
    file = tmp_path / "run.json"
    write_whole(file, b"old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunConflict, match="No space left on device"):
        write_whole(file, b"new")
    assert file.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_a_path_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(RunConflict, match="/run is a file"), RunDirectory(tmp_path / "run", SIGNATURE).open():
        pass


def test_open_run_takes_a_path_an_open_directory_or_nothing(tmp_path):
    with open_run(None, SIGNATURE) as nothing:
        assert nothing is None
    with open_run(tmp_path, SIGNATURE) as directory, open_run(directory, {"other": 1}) as same:
        assert same is directory


def test_run_files_hold_no_pickle(tmp_path):
    with RunDirectory(tmp_path, SIGNATURE).open() as run:
        run.save_shard("outcomes-00000", {"values": np.ones(2)})
    content = (tmp_path / "outcomes" / "outcomes-00000.shard").read_bytes()[32:]
    length = int.from_bytes(content[:8], "little")
    assert json.loads(content[8 : 8 + length])["values"]["shape"] == [2]
