"""CONTRIBUTING's examples are run as they stand there: a family, an importance method and a kind of task."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers

import zoo
from headcount import UnsupportedModel, anatomy, importance, load_task, masked
from headcount.scoring import METHODS
from headcount.scoring.methods import Method
from headcount.tasks import Classification, registry
from toy_jobs import JOBS

SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4}
SIZE |= {"intermediate_size": 48, "vocab_size": zoo.VOCAB, **zoo.TOKENS}
TRIED = """
import transformers, zoo
from headcount import masked, remove
from oracle import off_by, run
from test_contributing import SIZE

model = transformers.PhiForCausalLM(transformers.PhiConfig(**SIZE)).eval()
zoo.randomize(model)
heads = ["decoder.0.0", "decoder.0.2", "decoder.0.3", *(f"decoder.1.{index}" for index in range(8))]
batch = zoo.inputs("llama", padding="left")
with masked(model, off=heads):
    expected = run(model, batch)
print(off_by(run(model, batch), expected), off_by(run(remove(model, heads), batch), expected))
"""


def examples(repository, heading):
    """The blocks of Python in a section."""
    text = (repository / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (section,) = (part for part in re.split(r"^## ", text, flags=re.MULTILINE) if part.startswith(heading))
    return re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)


def test_a_family_in_20_lines(repository, tmp_path):
    model = transformers.PhiForCausalLM(transformers.PhiConfig(**SIZE)).eval()
    with pytest.raises(UnsupportedModel, match=r"PhiAttention with q_proj, k_proj, v_proj, dense"):
        anatomy(model)
    (code,) = examples(repository, "Add a model family")
    assert len(code.splitlines()) <= 20
    source = shutil.copytree(repository / "src", tmp_path / "src")
    (source / "headcount" / "structure" / "families" / "phi.py").write_text(code)
    paths = os.pathsep.join([str(source), str(repository / "tests")])
    answer = subprocess.run(
        [sys.executable, "-c", TRIED], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    whole, removed = map(float, answer.stdout.split())
    assert whole > 1e-3
    assert removed <= 1e-5


def slopes(model, task, step=0.01):
    """What the loss of each example rises by when a head is turned down a little, per unit: (examples, heads)."""
    batch = task.batch(range(len(task)))

    def losses(head, value):
        with torch.no_grad(), masked(model, xi={head: value}):
            return task.losses(task.outputs(model, batch), batch).double().numpy()

    return np.stack(
        [(losses(head, 1 - step) - losses(head, 1 + step)) / (2 * step) for head in anatomy(model).heads], axis=1
    )


def test_an_importance_method_in_30_lines(repository, monkeypatch):
    file, entry = examples(repository, "Add an importance method")
    assert len(file.splitlines()) + len(entry.splitlines()) <= 30
    example: dict = {}
    exec(file, example)
    methods = dict(METHODS)
    exec(entry, {"METHODS": methods, "Method": Method, "taylor": example["taylor"]})
    monkeypatch.setitem(METHODS, "taylor", methods["taylor"])
    build, make = JOBS["classifier"]
    model, task = build(), make(n=6)
    scores = importance(model, task, "taylor")
    assert scores.values.shape == (6, len(anatomy(model).heads))
    assert np.abs(scores.values).max() > 1e-3
    np.testing.assert_allclose(scores.values, slopes(model, task), rtol=0.01, atol=2e-4)
    assert not scores.normalize


def test_a_kind_of_task(repository, monkeypatch):
    (code,) = examples(repository, "Add a task")
    given = {}

    def similarity(rows, tokenizer, **options):
        given.update(options)
        return Classification(rows, tokenizer)

    names = {name: getattr(registry, name) for name in ("TaskKind", "_of")}
    names |= {"Similarity": similarity, "SIMILARITY": registry.metrics.CLASSIFICATION}
    kind = eval(code, names)
    monkeypatch.setattr(registry, "KINDS", (*registry.KINDS, kind))
    rows = [{"one": "a", "label": 0}, {"one": "b", "label": 1}]
    tokenizer = JOBS["classifier"][1](n=2).tokenizer
    task = load_task("Sentence_Similarity", rows, tokenizer, text="one", metric="loss", max_length=7)
    assert len(task) == 2
    assert given == {"text": "one", "metric": "loss", "max_length": 7}
