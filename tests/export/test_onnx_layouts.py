"""Directories for Optimum and onnxruntime-genai: what is in them, what is refused, and their own loaders (slow)."""

from __future__ import annotations

import json

import onnxruntime
import pytest
import torch

import elsewhere
import tiny_models
import zoo
from headcount import HeadcountError, UnsupportedModel, anatomy, export_onnx, open_onnx, remove, save
from headcount.export import onnx as exporter
from headcount.tasks.text import word_tokenizer

TOKENS = 10
GENERATORS = ("gpt2", "opt", "gpt-neox", "bloom", "llama", "mistral-sliding", "qwen2", "qwen3", "gemma", "phi3")
TRANSLATORS = ("bart", "marian", "t5", "whisper")
LOADERS = """
import json, sys
import numpy as np
import onnxruntime_genai
import torch
from optimum.onnxruntime import (
    ORTModelForCausalLM, ORTModelForFeatureExtraction, ORTModelForSeq2SeqLM, ORTModelForSpeechSeq2Seq)
found = {{}}
for name, kind in {jobs!r}:
    given = {{key: torch.tensor(value) for key, value in json.load(open({root!r} + "/" + name + ".json")).items()}}
    model = locals()["ORTModelFor" + kind].from_pretrained({root!r} + "/" + name + "-optimum")
    if kind == "FeatureExtraction":
        found[name] = model(**given).last_hidden_state.tolist()
        continue
    found[name] = [model.generate(**given, max_new_tokens={tokens}, do_sample=False, num_beams=beams).tolist()
                   for beams in (1, 3)]
    if kind == "CausalLM":
        model = onnxruntime_genai.Model({root!r} + "/" + name + "-genai")
        ids = given["input_ids"][:1].numpy().astype(np.int32)  # the one row without padding
        settings = onnxruntime_genai.GeneratorParams(model)
        settings.set_search_options(max_length=ids.shape[1] + {tokens}, do_sample=False)
        generator = onnxruntime_genai.Generator(model, settings)
        generator.append_tokens(ids)
        while not generator.is_done():
            generator.generate_next_token()
        found[name].append([int(token) for token in generator.get_sequence(0)])
print("FOUND", json.dumps(found))
"""


def uneven():
    """A Llama whose layers have no, two and all four key-value heads left."""
    model = zoo.build_generator("llama")
    left = [len(site.heads) for site in anatomy(model).sites]
    return remove(model, [*(f"decoder.0.{i}" for i in range(left[0])), "decoder.1.0", "decoder.1.1"])


def shapes(file):
    """What a graph takes, with its shape."""
    return {node.name: node.shape for node in onnxruntime.InferenceSession(str(file)).get_inputs()}


def test_a_decoder_for_onnxruntime_genai(tmp_path):
    model = uneven()
    export = export_onnx(model, tmp_path / "small", layout="genai", tokenizer=word_tokenizer("one two"))
    assert [path.name for path in export.graphs] == ["model.onnx"]
    assert export.difference <= 1e-4
    facts = json.loads((tmp_path / "small/genai_config.json").read_text())["model"]
    kept = [len(site.kv_kept) for site in anatomy(model).sites]
    assert len(set(kept)) == 3
    found = shapes(tmp_path / "small/model.onnx")
    assert [found[f"past_key_values.{layer}.key"][1] for layer in range(len(kept))] == [max(1, n) for n in kept]
    assert facts["decoder"]["num_key_value_heads"] == max(kept)
    assert facts["decoder"]["head_size"] == anatomy(model).sites[0].head_dim
    assert "position_ids" in found
    written = json.loads((tmp_path / "small/tokenizer_config.json").read_text())
    assert written["tokenizer_class"] == "PreTrainedTokenizerFast"


def test_a_decoder_for_optimum_takes_one_empty_cache_for_all_layers(tmp_path):
    model = uneven()
    export_onnx(model, tmp_path / "small", layout="optimum")
    config = json.loads((tmp_path / "small/config.json").read_text())
    assert not {"headcount", "auto_map"} & set(config)
    found = shapes(tmp_path / "small/model.onnx")
    assert isinstance(found["past_key_values.0.key"][1], str)  # any number of heads
    prompt = zoo.prompt("llama")
    expected = model.generate(**prompt, max_new_tokens=6, do_sample=False)
    assert (
        open_onnx(tmp_path / "small/model.onnx").generate(**prompt, max_new_tokens=6, do_sample=False).equal(expected)
    )


def test_an_encoder_decoder_for_optimum(tmp_path):
    whole = tiny_models.marian(encoder_layers=1, decoder_layers=2)
    model = remove(whole, ["decoder.0.3", *(f"cross.1.{index}" for index in range(4))])
    export = export_onnx(model, tmp_path / "small", layout="optimum", int8=True)
    assert [path.name for path in export.graphs] == [
        "encoder_model.onnx", "decoder_model.onnx", "decoder_with_past_model.onnx",
    ]  # fmt: skip
    assert export.difference <= 1e-4 < export.int8_difference < 1
    caches = [name for name in shapes(export.graphs[2]) if name.startswith("past_key_values.")]
    assert caches == [
        f"past_key_values.{layer}.{stack}.{part}"
        for layer in (0, 1) for stack in ("decoder", "encoder") for part in ("key", "value")
    ]  # fmt: skip


def test_an_existing_directory_is_kept(tmp_path, monkeypatch):
    model = tiny_models.bert()
    save(model, tmp_path / "model")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/mine.txt").write_text("mine")
    for name in ("model", "notes"):
        with pytest.raises(HeadcountError, match=name):
            export_onnx(model, tmp_path / name, layout="optimum", overwrite=True)
    export_onnx(model, tmp_path / "export", layout="optimum")
    (tmp_path / "export/mine.txt").write_text("mine")
    with pytest.raises(HeadcountError, match="overwrite"):
        export_onnx(model, tmp_path / "export", layout="optimum")
    export_onnx(model, tmp_path / "export", layout="optimum", overwrite=True)
    assert (tmp_path / "export/mine.txt").read_text() == "mine"
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(exporter, "TOLERANCE", -1.0)
    monkeypatch.setattr(exporter.check_parity, "__defaults__", ((), -1.0))
    with pytest.raises(HeadcountError, match="differ"):
        export_onnx(model, tmp_path / "failed", layout="optimum")
    assert sorted(tmp_path.iterdir()) == before


def test_what_is_refused_by_name(tmp_path):
    bert = tiny_models.bert()
    with pytest.raises(UnsupportedModel, match=r"BertForSequenceClassification.*optimum"):
        export_onnx(bert, tmp_path / "a", layout="genai")
    with pytest.raises(HeadcountError, match=r"tensorrt.*optimum or genai"):
        export_onnx(bert, tmp_path / "a", layout="tensorrt")
    with pytest.raises(HeadcountError, match=r"a\.onnx.*directory"):
        export_onnx(bert, tmp_path / "a.onnx", layout="optimum")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_their_own_loaders(pruned, tmp_path):
    """Every family, half of its units gone and one layer emptied: the tokens of `generate`, greedy and with beams."""
    expected, jobs = {}, []
    for name in ("bert", *GENERATORS, *TRANSLATORS):
        generates = name != "bert"
        model = pruned(zoo.build_generator(name) if generates else zoo.build(name))
        given = zoo.prompt(name) if generates else zoo.inputs(name, 3, 9, "right", model=model)
        (tmp_path / f"{name}.json").write_text(json.dumps({key: value.tolist() for key, value in given.items()}))
        for layout in ("optimum", "genai") if name in GENERATORS else ("optimum",):
            export_onnx(model, tmp_path / f"{name}-{layout}", layout=layout)
        if not generates:
            jobs.append((name, "FeatureExtraction"))
            with torch.no_grad():
                expected[name] = model(**given).last_hidden_state
            continue
        speech = "SpeechSeq2Seq" if "input_features" in given else "Seq2SeqLM"
        jobs.append((name, "CausalLM" if name in GENERATORS else speech))
        settings = {"max_new_tokens": TOKENS, "do_sample": False}
        expected[name] = [model.generate(**given, num_beams=beams, **settings).tolist() for beams in (1, 3)]
    python = elsewhere.environment(tmp_path / "environment", "optimum-onnx[onnxruntime]", "onnxruntime-genai")
    script = LOADERS.format(jobs=jobs, root=str(tmp_path), tokens=TOKENS)
    told = elsewhere.run(python, script, tmp_path / "home")
    found = json.loads(told[told.index("FOUND") + 5 :])
    assert torch.allclose(torch.tensor(found.pop("bert")), expected.pop("bert"), atol=1e-4)
    for name, texts in expected.items():
        assert found[name][:2] == texts, name
        if name in GENERATORS:
            by_genai, first = found[name][2], texts[0][0]
            assert len(by_genai) > 9
            assert by_genai == first[: len(by_genai)], name
