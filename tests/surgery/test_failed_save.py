"""A save that fails, however it fails, leaves the earlier checkpoint whole and nothing lying about."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors import SafetensorError

import zoo
from headcount import HeadcountError, files, load, remove, save
from oracle import run


@pytest.fixture(scope="module")
def models():
    model = zoo.build("bert")
    return model, remove(model, "encoder.0.1")


@pytest.fixture
def checkpoint(models, tmp_path):
    path = save(models[0], tmp_path / "model")
    (path / "notes.txt").write_text("mine")
    return path


def content(directory):
    return {path.name: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def full(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


def stopped(*args, **kwargs):
    raise KeyboardInterrupt


def broken(*args, **kwargs):
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


WHERE = {
    "weights": lambda monkeypatch, fail: monkeypatch.setattr("transformers.modeling_utils.safe_save_file", fail),
    "sync": lambda monkeypatch, fail: monkeypatch.setattr(files, "_sync", fail),
    "carry": lambda monkeypatch, fail: monkeypatch.setattr(files, "_carry_over", fail),
    "swap": lambda monkeypatch, fail: monkeypatch.setattr(files, "_swap", fail),
    "exchange": lambda monkeypatch, fail: monkeypatch.setattr(files, "_exchange", fail),
}


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize(
    ("fail", "error"), [(full, HeadcountError), (broken, HeadcountError), (stopped, KeyboardInterrupt)]
)
def test_the_earlier_checkpoint_stays(models, checkpoint, monkeypatch, where, fail, error):
    before = content(checkpoint)
    WHERE[where](monkeypatch, fail)
    with pytest.raises(error) as failure:
        save(models[1], checkpoint)
    assert content(checkpoint) == before
    assert os.listdir(checkpoint.parent) == ["model"]
    if error is HeadcountError:
        assert str(checkpoint) in str(failure.value)
        assert "No space left on device" in str(failure.value)
    monkeypatch.undo()
    save(models[1], checkpoint)
    assert torch.equal(run(load(checkpoint), zoo.inputs("bert")), run(models[1], zoo.inputs("bert")))
    assert (checkpoint / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("fail", [full, stopped])
def test_a_new_directory_does_not_stay_half_made(models, tmp_path, monkeypatch, fail):
    WHERE["weights"](monkeypatch, fail)
    with pytest.raises((HeadcountError, KeyboardInterrupt)):
        save(models[1], tmp_path / "new")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("fails_at", [1, 2, None])
def test_where_directories_cannot_change_places_in_one_step(models, checkpoint, monkeypatch, fails_at):
    """Two renames then: if either is interrupted, the earlier checkpoint is put back."""
    before, rename, calls = content(checkpoint), os.rename, []

    def counted(source, target):
        calls.append(source)
        if len(calls) == fails_at:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    monkeypatch.setattr(os, "rename", counted)
    if fails_at is None:
        save(models[1], checkpoint)
        assert torch.equal(run(load(checkpoint), zoo.inputs("bert")), run(models[1], zoo.inputs("bert")))
    else:
        with pytest.raises(KeyboardInterrupt):
            save(models[1], checkpoint)
        assert content(checkpoint) == before
    assert os.listdir(checkpoint.parent) == ["model"]


def test_a_disk_that_is_really_full(models, tmp_path):
    small = remove(models[0], [f"encoder.{layer}.{index}" for layer in range(3) for index in range(4)])
    sizes = [sum(map(len, content(save(model, tmp_path / "size")).values())) for model in (small, models[0])]
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={sizes[0] + sizes[1] // 2}", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("only root can mount a tiny disk")
    try:
        checkpoint = save(small, disk / "model")
        before = content(checkpoint)
        with pytest.raises(HeadcountError, match=r"model: .*No space left on device"):
            save(models[0], checkpoint)
        assert content(checkpoint) == before
        assert os.listdir(disk) == ["model"]
        assert torch.equal(run(load(checkpoint), zoo.inputs("bert")), run(small, zoo.inputs("bert")))
    finally:
        subprocess.run(["umount", str(disk)], check=True)


KILLED = """
import sys, torch
from transformers import BertConfig, BertModel
import headcount
model = BertModel(BertConfig(hidden_size=24, num_hidden_layers=1, num_attention_heads=4, vocab_size=61))
smaller = headcount.remove(model, "encoder.0.1")
headcount.save(model, sys.argv[1])
print("ready", flush=True)
while True:
    headcount.save(smaller, sys.argv[1])
    headcount.save(model, sys.argv[1])
"""


@pytest.mark.slow
def test_killed_at_any_moment_one_checkpoint_is_whole(tmp_path):
    for attempt in range(5):
        directory = tmp_path / str(attempt) / "model"
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(directory)], stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.05 + 0.037 * attempt)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert len(load(directory).encoder.layer) == 1


def test_a_model_that_transformers_does_not_save(checkpoint, monkeypatch):
    """As one that it loaded from GGUF without dequantizing it."""

    class Unsavable:
        quantization_config = type("Settings", (), {"quant_method": "gguf"})

        def is_serializable(self):
            return False

    before, model = content(checkpoint), zoo.build("bert")
    monkeypatch.setattr(model, "hf_quantizer", Unsavable(), raising=False)
    with pytest.raises(HeadcountError, match=r"gguf.*dequantize"):
        save(model, checkpoint)
    assert content(checkpoint) == before
