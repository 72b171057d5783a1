"""CONTRIBUTING's example of a new family is run: one more file, and a model that was refused is pruned exactly."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest
import transformers

import zoo
from headcount import UnsupportedModel, anatomy

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


def test_a_family_in_20_lines(repository, tmp_path):
    model = transformers.PhiForCausalLM(transformers.PhiConfig(**SIZE)).eval()
    with pytest.raises(UnsupportedModel, match=r"PhiAttention with q_proj, k_proj, v_proj, dense"):
        anatomy(model)
    text = (repository / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
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
