"""sentence-transformers directories: the transformer is pruned, and the whole thing encodes again."""

from __future__ import annotations

import json

import pytest
import torch

import zoo
from headcount import HeadcountError, load, remove, save
from headcount.surgery.other_libraries import MODULES
from oracle import off_by, run

NAMES = "sentence_transformers.models."
POOLING = {"word_embedding_dimension": zoo.WIDTH, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
GONE = ["encoder.0.1", *(f"encoder.1.{index}" for index in range(4)), "encoder_ffn.0.0-9"]


def write(root, tokenizer, transformer="", dense=False):
    """A directory as sentence-transformers writes it, by hand."""
    save(zoo.build("bert"), root / transformer, tokenizer=tokenizer)
    parts = [(transformer, "Transformer"), ("1_Pooling", "Pooling"), *([("2_Dense", "Dense")] if dense else [])]
    parts.append(("3_Normalize", "Normalize"))
    modules = [{"idx": n, "name": str(n), "path": path, "type": NAMES + kind} for n, (path, kind) in enumerate(parts)]
    (root / MODULES).write_text(json.dumps(modules))
    (root / "1_Pooling").mkdir()
    (root / "1_Pooling" / "config.json").write_text(json.dumps(POOLING))
    if dense:
        (root / "2_Dense").mkdir()
        (root / "2_Dense" / "config.json").write_text("{}")
        (root / "2_Dense" / "model.safetensors").write_bytes(b"weights")
    (root / transformer / "sentence_bert_config.json").write_text('{"max_seq_length": 16, "do_lower_case": false}')
    (root / "config_sentence_transformers.json").write_text('{"prompts": {}}')
    return root


@pytest.mark.parametrize("transformer", ["", "0_Transformer"])
def test_the_other_modules_come_along(transformer, tokenizer, tmp_path):
    source = write(tmp_path / "whole", tokenizer, transformer, dense=True)
    model = load(source)
    smaller = remove(model, GONE)
    small = save(smaller, tmp_path / "small")
    assert (small / "1_Pooling" / "config.json").read_text() == json.dumps(POOLING)
    assert (small / "2_Dense" / "model.safetensors").read_bytes() == b"weights"
    assert json.loads((small / "sentence_bert_config.json").read_text())["max_seq_length"] == 16
    assert (small / "config_sentence_transformers.json").is_file()
    assert (small / "tokenizer.json").is_file()
    paths = {module["type"]: module["path"] for module in json.loads((small / MODULES).read_text())}
    assert paths[f"{NAMES}Transformer"] == ""
    assert paths[f"{NAMES}Pooling"] == "1_Pooling"
    assert torch.equal(run(load(small), zoo.inputs("bert")), run(smaller, zoo.inputs("bert")))
    card = (small / "README.md").read_text()
    assert "library_name: sentence-transformers" in card
    assert "SentenceTransformer(" in card
    again = save(remove(load(small), ["encoder.2.0"]), small)  # in place
    assert (again / "1_Pooling" / "config.json").is_file()
    other = save(zoo.build("llama"), small)  # nothing of the sentences is left beside another model
    assert not any((other / name).exists() for name in (MODULES, "1_Pooling", "sentence_bert_config.json"))


def test_a_classifier_that_started_from_the_transformer_is_a_classifier(tokenizer, tmp_path):
    source = write(tmp_path / "whole", tokenizer)
    model = zoo.build("bert", "BertForSequenceClassification")
    model.config._name_or_path = str(source)
    assert not (save(model, tmp_path / "classifier") / MODULES).exists()


@pytest.mark.parametrize(
    ("modules", "fact"),
    [
        ("{", "modules.json"),
        ('[{"type": "x.Pooling", "path": "1_Pooling"}]', "no Transformer"),
        ('[{"type": "x.Transformer", "path": "../elsewhere"}]', "../elsewhere"),
        ('[{"type": "x.Transformer", "path": "/etc"}]', "/etc"),
        ('[{"type": "x.Transformer"}]', "path"),
        ('{"type": 3}', "modules.json"),
    ],
)
def test_bad_modules_are_refused(modules, fact, tmp_path):
    (tmp_path / MODULES).write_text(modules)
    with pytest.raises(HeadcountError) as refusal:
        load(tmp_path)
    assert fact in str(refusal.value)


@pytest.mark.slow
def test_it_encodes(tokenizer, tmp_path):
    """With the library itself."""
    library = pytest.importorskip("sentence_transformers")
    source = write(tmp_path / "whole", tokenizer)
    small = save(remove(load(source), GONE), tmp_path / "small")
    texts = ["w5 w6 w7", "w8 w9"]
    encoded = library.SentenceTransformer(str(small), trust_remote_code=True, device="cpu").encode(texts)
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    with torch.no_grad():
        hidden = load(small)(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])[0]
    mask = batch["attention_mask"][..., None]
    mean = (hidden * mask).sum(1) / mask.sum(1)
    assert off_by(torch.tensor(encoded), torch.nn.functional.normalize(mean)) <= 1e-5
    gone = [f"encoder_ffn.{layer}.0-9" for layer in range(zoo.LAYERS)]  # uniform: stock, and no trust is needed
    stock = save(remove(load(source), gone), tmp_path / "stock")
    assert library.SentenceTransformer(str(stock), device="cpu").encode(texts).shape == (2, zoo.WIDTH)
