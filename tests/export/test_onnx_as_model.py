"""Exports as models: tasks measure them, generators decode with their cache, and nothing pretends to mask them."""

from __future__ import annotations

import functools

import pytest
import torch

import tiny_models
import zoo
from headcount import HeadcountError, anatomy, capture, evaluate, export_onnx, masked, open_onnx, remove
from headcount.runs import fingerprint
from headcount.tasks import Classification, LanguageModeling, Translation
from headcount.tasks.text import word_tokenizer
from oracle import off_by, run
from toy_jobs import WORDS, sentences

GENERATORS = ["gpt2", "llama", "mistral-sliding", "bart", "t5"]


@functools.cache
def classifier():
    return remove(tiny_models.bert(pad_token_id=0), ["encoder.0.1", "encoder_ffn.1.0-9"])


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A classifier, in 32 and in 8 bits."""
    root = tmp_path_factory.mktemp("onnx")
    exact, rough = (export_onnx(classifier(), root / name, int8=name == "b.onnx") for name in ("a.onnx", "b.onnx"))
    return root, exact, rough


def rows():
    return [{"text": text, "label": i % 2} for i, text in enumerate(sentences(1, 24))]


def test_a_classifier_measures_the_same(exported):
    _, exact, rough = exported
    task = Classification(rows(), word_tokenizer(WORDS))
    expected = evaluate(classifier(), task)
    found = evaluate(open_onnx(exact.file), task)
    assert torch.allclose(torch.tensor(found.values), torch.tensor(expected.values), atol=1e-5)
    assert found.signature["model"]["fingerprint"] != expected.signature["model"]["fingerprint"]
    in_8_bits = evaluate(open_onnx(rough.file), task)
    assert not torch.allclose(torch.tensor(in_8_bits.values), torch.tensor(expected.values), atol=1e-6)
    assert abs(in_8_bits.values[..., 2] - expected.values[..., 2]).max() < 0.5  # losses
    assert fingerprint(open_onnx(exact.file)) != fingerprint(open_onnx(rough.file))


def test_int8_is_smaller_and_says_how_far_off_it_is(exported):
    _, exact, rough = exported
    assert exact.int8_difference is None
    assert rough.difference <= 1e-4 < rough.int8_difference < 1
    assert {"MatMulInteger", "DynamicQuantizeLinear"} <= operators(rough.file)
    assert not {"MatMulInteger", "DynamicQuantizeLinear"} & operators(exact.file)


def operators(file):
    onnx = pytest.importorskip("onnx")
    return {node.op_type for node in onnx.load(file).graph.node}


def test_weights_in_8_bits_are_scaled_per_channel(exported):
    """Every 8-bit weight has a scale for each of its outputs, and stands for the model's within half a step."""
    onnx = pytest.importorskip("onnx")
    graph = onnx.load(exported[2].file).graph
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    scales = {name.removesuffix("_scale"): value for name, value in arrays.items() if name.endswith("_scale")}
    weight = classifier().bert.encoder.layer[1].intermediate.dense.weight.detach().numpy().T  # (in, out)
    found = [
        values * scales[name.removesuffix("_quantized")]
        for name, values in arrays.items()
        if name.endswith("_quantized") and values.shape == weight.shape
    ]
    off = [abs(each - weight).max() / (abs(weight).max(0) / 127).max() for each in found]
    assert min(off) <= 0.51
    assert any(value.shape == (weight.shape[1],) for value in scales.values())


def test_external_data(tmp_path):
    written = export_onnx(classifier(), tmp_path / "x.onnx", int8=True, external_data=True)
    assert [path.name for path in written.weights] == ["x.onnx.data"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.onnx", "x.onnx.data"]
    assert open_onnx(written.file)(input_ids=torch.tensor([[5, 6, 7]])).logits.shape == (1, 2)


@pytest.mark.parametrize(
    "name", [n if n in ("llama", "bart") else pytest.param(n, marks=pytest.mark.slow) for n in GENERATORS]
)
def test_generators_decode_the_same(name, tmp_path):
    model = zoo.build_generator(name)
    sites = anatomy(model).sites
    model = remove(model, [str(sites[0].heads[1]), *map(str, sites[1].heads), *map(str, sites[-1].heads)])
    opened = open_onnx(export_onnx(model, tmp_path / "g.onnx").file)
    assert off_by(run(opened, zoo.inputs(name)), run(model, zoo.inputs(name))) <= 1e-5
    for beams in (1, 3):
        assert torch.equal(zoo.generate(opened, name, beams=beams), zoo.generate(model, name, beams=beams))
    assert opened.generation_config.to_dict() == model.generation_config.to_dict()


def test_translation_and_language_are_measured(tmp_path):
    translator = remove(tiny_models.marian(), ["cross.0.1", "encoder.1.0"])
    texts = [{"source": text, "target": f"le {text}"} for text in sentences(0, 6)]
    task = Translation(texts, word_tokenizer(WORDS, "marian"), metric="bleu", max_new_tokens=6)
    opened = open_onnx(export_onnx(translator, tmp_path / "t.onnx").file)
    assert (evaluate(opened, task).values == evaluate(translator, task, fast=False).values).all()
    writer = remove(tiny_models.gpt(), ["decoder.0.1"])
    task = LanguageModeling([{"text": text} for text in sentences(0, 6)], word_tokenizer(WORDS), masked=False)
    opened = open_onnx(export_onnx(writer, tmp_path / "g.onnx").file)
    assert abs(evaluate(opened, task).score() - evaluate(writer, task).score()) < 1e-3


def test_heads_in_a_graph_are_fixed(exported):
    opened = open_onnx(exported[1].file)
    assert anatomy(opened).heads == anatomy(classifier()).heads
    task = Classification(rows(), word_tokenizer(WORDS))
    for attempt in (
        lambda: evaluate(opened, task, [["encoder.0.0"]]),
        lambda: remove(opened, ["encoder.0.0"]),
        lambda: masked(opened, off=["encoder.0.0"]).__enter__(),
        lambda: capture(opened).__enter__(),
    ):
        with pytest.raises(HeadcountError, match=r"a\.onnx"):
            attempt()


def test_a_file_of_somebody_else_is_refused(tmp_path):
    onnx = pytest.importorskip("onnx")
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    other = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "g", [value], [other])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, tmp_path / "other.onnx")
    with pytest.raises(HeadcountError, match=r"other\.onnx"):
        open_onnx(tmp_path / "other.onnx")
    with pytest.raises(HeadcountError, match=r"none\.onnx"):
        open_onnx(tmp_path / "none.onnx")


def test_a_failed_quantization_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise ValueError("no such operator")

    monkeypatch.setattr("onnxruntime.quantization.quantize_dynamic", fail)
    with pytest.raises(HeadcountError, match="no such operator"):
        export_onnx(classifier(), tmp_path / "x.onnx", int8=True)
    assert list(tmp_path.iterdir()) == []
