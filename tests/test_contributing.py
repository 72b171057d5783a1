"""CONTRIBUTING's example of a new family is run: a model that was refused is masked and pruned exactly."""

from __future__ import annotations

import re
import sys

import pytest
import transformers

import zoo
from headcount import UnsupportedModel, anatomy, masked, remove
from oracle import off_by, run

SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4}
SIZE |= {"intermediate_size": 48, "vocab_size": zoo.VOCAB, **zoo.TOKENS}


def test_a_family_in_20_lines(repository, monkeypatch):
    model = transformers.PhiForCausalLM(transformers.PhiConfig(**SIZE)).eval()
    zoo.randomize(model)
    with pytest.raises(UnsupportedModel, match=r"it saw PhiAttention with q_proj, k_proj, v_proj, dense"):
        anatomy(model)
    text = (repository / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(code.splitlines()) <= 20
    example: dict = {}
    exec(code, example)
    monkeypatch.setitem(sys.modules["headcount.structure.sites"]._BY_CLASS, "PhiAttention", example["FAMILY"])
    heads = ["decoder.0.0", "decoder.0.2", "decoder.0.3", *(f"decoder.1.{index}" for index in range(8))]
    batch = zoo.inputs("llama", padding="left")
    with masked(model, off=heads):
        expected = run(model, batch)
    assert off_by(run(model, batch), expected) > 1e-3
    assert off_by(run(remove(model, heads), batch), expected) <= 1e-5
