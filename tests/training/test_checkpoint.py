"""The one checkpoint: everything comes back bit for bit, and what does not fit is refused by its name."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from headcount.errors import RunConflict
from headcount.training import Checkpointer, weights_of


class Tied(nn.Module):
    """Two layers that share one weight, and a buffer."""

    def __init__(self, width=3):
        super().__init__()
        self.one, self.other = nn.Linear(width, width), nn.Linear(width, width)
        self.other.weight = self.one.weight
        self.register_buffer("count", torch.tensor(7))

    def forward(self, x):
        return self.other(self.one(x).relu())


def trained(steps, model=None, optimizer=None):
    """A model after some steps, from the beginning or from a given state."""
    if model is None:
        torch.manual_seed(0)
        model = Tied()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(2, 3)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def fresh():
    torch.manual_seed(1)
    model = Tied()
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def equal(one, other):
    assert one.keys() == other.keys()
    return all(torch.equal(one[name], other[name]) for name in one)


def test_training_resumes_to_the_same_bits(tmp_path):
    Checkpointer(tmp_path).keep({"epoch": 2, "note": 0.1}, *trained(3))
    model, optimizer = fresh()
    checkpoint = Checkpointer(tmp_path)
    assert checkpoint.read(lambda state: (state["epoch"], state["note"])) == (2, 0.1)
    checkpoint.restore(model, optimizer)
    trained(4, model, optimizer)
    assert equal(model.state_dict(), trained(7)[0].state_dict())
    assert model.one.weight is model.other.weight


def test_tensors_and_copies_come_back_and_equal_copies_are_written_once(tmp_path):
    model, optimizer = trained(2)
    best = weights_of(trained(1)[0])
    extra = torch.tensor([0.1, float("nan")])
    checkpoint = Checkpointer(tmp_path, "gates")
    checkpoint.keep({}, model, optimizer, tensors={"gates": extra}, copies={"best": best, "last": weights_of(model)})
    written = load_file(tmp_path / "gates-1.safetensors")
    assert {name for name in written if name.startswith("copy.")} == {f"copy.best.{name}" for name in best}
    again = Checkpointer(tmp_path, "gates")
    assert again.read(dict) is not None
    found = again.restore(*fresh())
    assert equal(found.copies["best"], best)
    assert equal(found.copies["last"], model.state_dict())
    assert found.tensors["gates"].numpy().tobytes() == extra.numpy().tobytes()


def test_only_the_last_one_is_kept_and_a_torn_one_is_not_used(tmp_path, monkeypatch):
    model, optimizer = trained(1)
    checkpoint = Checkpointer(tmp_path)
    for epoch in (1, 2):
        checkpoint.keep({"epoch": epoch}, model, optimizer)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["training-2.safetensors", "training.json"]
    known = weights_of(model)
    trained(1, model, optimizer)

    def torn(path, content):
        raise KeyboardInterrupt

    from headcount.training import checkpoint as module

    whole = module.write_whole
    monkeypatch.setattr(
        module, "write_whole", lambda path, content: (torn if path.suffix == ".json" else whole)(path, content)
    )
    with pytest.raises(KeyboardInterrupt):
        checkpoint.keep({"epoch": 3}, model, optimizer)
    again, other = Checkpointer(tmp_path), fresh()[0]
    assert again.read(lambda state: state["epoch"]) == 2
    again.restore(other)
    assert equal(other.state_dict(), known)


def test_without_a_directory_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkpoint = Checkpointer(None)
    checkpoint.keep({"epoch": 1}, *trained(1))
    assert checkpoint.read(dict) is None
    assert list(tmp_path.iterdir()) == []


def test_another_signature_is_refused(tmp_path):
    Checkpointer(tmp_path / "here", signature={"lr": 0.1}).keep({}, *trained(1))
    assert Checkpointer(tmp_path / "here", signature={"lr": 0.1}).read(dict) is not None
    with pytest.raises(RunConflict, match="here"):
        Checkpointer(tmp_path / "here", signature={"lr": 0.2}).read(dict)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda tensors: tensors.pop("model.one.bias"), "one.bias is missing"),
        (lambda tensors: tensors.update({"model.one.bias": torch.ones(4)}), r"one.bias is of shape \[4\]"),
        (lambda tensors: tensors.pop("optimizer.0.exp_avg"), "0.exp_avg is missing"),
        (lambda tensors: tensors.update({"optimizer.0.exp_avg": torch.ones(2)}), r"0.exp_avg is of shape \[2\]"),
        (lambda tensors: tensors.update({"optimizer.9.step": torch.ones(())}), "9.step"),
        (lambda tensors: tensors.update({"optimizer.0.code": torch.ones(())}), "0.code"),
        (lambda tensors: tensors.pop("copy.best.one.bias"), "one.bias is missing"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(tmp_path, change, name):
    model, optimizer = trained(2)
    Checkpointer(tmp_path).keep({}, model, optimizer, copies={"best": weights_of(trained(1)[0])})
    file = tmp_path / "training-1.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    checkpoint = Checkpointer(tmp_path)
    checkpoint.read(dict)
    with pytest.raises(RunConflict, match=name):
        checkpoint.restore(*fresh())


@pytest.mark.parametrize("content", ["{", "[1]", "{}", '{"file": "training-1.safetensors"}', '{"signature": null}'])
def test_damaged_json_is_refused_by_its_path(tmp_path, content):
    Checkpointer(tmp_path).keep({"epoch": 1}, *trained(1))
    (tmp_path / "training.json").write_text(content)
    with pytest.raises(RunConflict, match=r"training\.json"):
        Checkpointer(tmp_path).read(lambda state: state["epoch"])


def test_damaged_tensors_are_refused_by_their_path(tmp_path):
    Checkpointer(tmp_path).keep({}, *trained(1))
    (tmp_path / "training-1.safetensors").write_bytes(b"nothing")
    checkpoint = Checkpointer(tmp_path)
    checkpoint.read(dict)
    with pytest.raises(RunConflict, match=r"training-1\.safetensors"):
        checkpoint.restore(*fresh())


def test_nothing_is_pickled(tmp_path):
    Checkpointer(tmp_path).keep({"epoch": 1}, *trained(1))
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".safetensors"}
    assert json.loads((tmp_path / "training.json").read_text())["epoch"] == 1
