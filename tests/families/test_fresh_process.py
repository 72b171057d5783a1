"""Every family pruned, saved, and loaded in a process that knows nothing of it: the same logits, to the bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import torch
from safetensors.torch import save_file

import zoo
from headcount import anatomy, remove, save
from oracle import all_heads, neuron_places, places, run

READER = """
import json, pathlib, sys
import torch
from oracle import run
from safetensors.torch import load_file
import headcount

torch.set_num_threads(int(sys.argv[2]))
answers = {}
for directory in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    seen = load_file(directory / "seen.safetensors")
    expected = seen.pop("expected")
    model = headcount.load(directory / "model")
    heads = [str(head) for head in headcount.anatomy(model, ["heads", "neurons"]).units]
    answers[directory.name] = [torch.equal(run(model, seen), expected), heads, type(model).__name__, model.training]
print(json.dumps(answers))
"""


def heads_to_remove(name, model):
    """A third of the units, and all of the first and last site (for ALBERT, which has few sites: a half)."""
    where = {**places(model, name), **neuron_places(model, name)}
    if len(where) < 6:
        return all_heads(where)[::2]
    first, *_, last = where
    emptied = (first, last)
    return [head for n, head in enumerate(all_heads(where)) if n % 3 == 0 or head.rpartition(".")[0] in emptied]


def test_a_fresh_process_computes_the_same(tmp_path, repository):
    expected = {}
    for name in zoo.FAMILIES:
        class_name = zoo.ZOO[name].classes[0 if name == "clip" else -1]
        model = zoo.build(name, class_name)
        smaller = remove(model, heads_to_remove(name, model))
        batch = zoo.inputs(name, model=model)
        directory = tmp_path / name
        save(smaller, directory / "model")
        seen = {**batch, "expected": run(smaller, batch).contiguous()}
        save_file({key: tensor.contiguous() for key, tensor in seen.items()}, directory / "seen.safetensors")
        expected[name] = [True, [str(u) for u in anatomy(smaller, ["heads", "neurons"]).units], class_name, False]
    answer = subprocess.run(
        [sys.executable, "-c", READER, str(tmp_path), str(torch.get_num_threads())],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(str(repository / name) for name in ("tests", "src"))},
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    found = json.loads(answer.stdout.splitlines()[-1])
    assert found == expected
    assert all(heads for _, heads, _, _ in found.values())
