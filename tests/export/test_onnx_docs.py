"""docs/onnx.md generates and translates with onnxruntime alone: its code is run as it stands there."""

from __future__ import annotations

import re

import pytest
import torch
from tokenizers import Tokenizer

import tiny_models
from headcount import anatomy, export_onnx, load, remove


@pytest.fixture(scope="module")
def shown():
    """The functions that the page defines."""
    from conftest import REPOSITORY

    page = (REPOSITORY / "docs/onnx.md").read_text(encoding="utf-8")
    blocks = [block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "def " in block]
    assert len(blocks) == 2
    assert "torch" not in "".join(blocks)
    assert "headcount" not in "".join(blocks)
    names = {}
    for block in blocks:
        exec(block, names)
    return names


def test_generating(shown, tmp_path):
    model = remove(tiny_models.gpt(), ["decoder.0.0", "decoder.0.1", "decoder.0.2", "decoder.0.3", "decoder.1.2"])
    export_onnx(model, tmp_path / "gpt.onnx")
    ids = torch.tensor([[5, 9, 7], [8, 4, 6]])
    found = shown["generate"](str(tmp_path / "gpt.onnx"), ids.numpy(), 6)
    expected = model.generate(ids, do_sample=False, max_new_tokens=6, eos_token_id=None, pad_token_id=0)
    assert found.tolist() == expected.tolist()


def test_translating(shown, tmp_path):
    whole = tiny_models.marian(encoder_layers=1, decoder_layers=1)
    gone = [*(f"encoder.0.{index}" for index in range(4)), "decoder.0.3"]
    model = remove(whole, [*gone, "cross.0.0", "cross.0.2"])
    export_onnx(model, tmp_path / "marian.onnx")
    for ids in (torch.tensor([[5, 9, 7, 2]]), torch.tensor([[8, 4, 6, 11, 20, 2]])):
        found = shown["translate"](str(tmp_path / "marian"), ids.numpy(), start=0, end=2, most=8)
        expected = model.generate(ids, do_sample=False, num_beams=1, max_new_tokens=8, max_length=None)[0, 1:].tolist()
        assert found == (expected[: expected.index(2)] if 2 in expected else expected)
        assert len(found) > 1


@pytest.mark.slow
def test_a_real_translator(shown, shared, tmp_path):
    model = load(shared / "models/multi30k-en-fr", dtype=torch.float32)
    heads = anatomy(model).heads
    model = remove(model, heads[::9])
    export_onnx(model, tmp_path / "translator.onnx")
    tokenizer = Tokenizer.from_file(str(shared / "models/multi30k-en-fr/tokenizer.json"))
    ids = torch.tensor([tokenizer.encode("A man is riding a bicycle.").ids])
    config = model.config
    found = shown["translate"](
        str(tmp_path / "translator"), ids.numpy(), config.decoder_start_token_id, config.eos_token_id
    )
    expected = model.generate(ids, do_sample=False, num_beams=1, max_new_tokens=60, max_length=None)[0, 1:]
    assert found == expected[: expected.tolist().index(config.eos_token_id)].tolist()
    assert "homme" in tokenizer.decode(found)
