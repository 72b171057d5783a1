"""Exports compute what the pruned model computes, seen with onnxruntime itself; what cannot be exported is refused."""

from __future__ import annotations

import functools
import json
import sys

import numpy as np
import onnxruntime
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import tiny_models
import zoo
from headcount import HeadcountError, UnsupportedModel, anatomy, export_onnx, remove
from headcount.bench import benchmark
from headcount.export import OnnxModel
from headcount.export import onnx as exporter
from headcount.heads import parse_ranges

ENCODERS = [name for name, family in zoo.ZOO.items() if family.reads in ("text", "image", "image+text")]
GENERATORS = [name for name in zoo.FAMILIES if zoo.generates(name)]
FAST = ("bert",)


def run(file, inputs):
    graph = onnxruntime.InferenceSession(str(file))
    names = [node.name for node in graph.get_outputs()]
    return dict(zip(names, graph.run(names, {name: x.numpy() for name, x in inputs.items()}), strict=True))


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in ENCODERS])
def test_encoders(name, pruned, tmp_path):
    model = pruned(zoo.build(name))
    kernel = model.config._attn_implementation
    assert export_onnx(model, tmp_path / "a.onnx").difference <= 1e-4
    assert model.config._attn_implementation == kernel
    for batch, length, padding in ((3, 9, "right"), (1, 4, None), (5, 17, "left"), (1, 1, None)):
        inputs = zoo.inputs(name, batch, length, padding, model=model)
        with torch.no_grad():
            expected = zoo.main_output(model(**inputs), inputs.get("attention_mask"))
        found = {key: torch.tensor(value) for key, value in run(tmp_path / "a.onnx", inputs).items()}
        found = zoo.main_output(found, inputs.get("attention_mask"))
        assert torch.allclose(found, expected, atol=1e-4)
    named = onnxruntime.InferenceSession(str(tmp_path / "a.onnx")).get_modelmeta().custom_metadata_map
    assert "encoder.0" in named["headcount.heads"] or "vision.0" in named["headcount.heads"]
    kept = {site.name: len(site.kept) for site in anatomy(model, "neurons").sites}
    neurons = json.loads(named["headcount.neurons"])
    assert {site: len(parse_ranges(text, 1000)) for site, text in neurons.items()} == kept


@pytest.mark.slow
@pytest.mark.parametrize("name", GENERATORS)
def test_generators(name, pruned, tmp_path):
    model = pruned(zoo.build_generator(name))
    export_onnx(model, tmp_path / "a.onnx")
    check_generation(model, OnnxModel(tmp_path / "a.onnx"), zoo.prompt(name))


def test_a_llama_with_uneven_groups(tmp_path):
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=40, hidden_size=32, intermediate_size=32, num_hidden_layers=2, head_dim=4,
                         num_attention_heads=8, num_key_value_heads=4, initializer_range=0.5)  # fmt: skip
    whole = LlamaForCausalLM(config).eval()
    model = remove(whole, [*(f"decoder.0.{index}" for index in range(8)), "decoder.1.0", "decoder.1.4", "decoder.1.5"])
    site = anatomy(model).site("decoder.1")
    assert (len(site.kept), len(site.kv_kept)) == (5, 3)
    export_onnx(model, tmp_path / "a.onnx")
    ids = torch.randint(4, 40, (3, 6), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, :3] = 0  # padded on the left
    check_generation(model, OnnxModel(tmp_path / "a.onnx"), {"input_ids": ids, "attention_mask": mask})
    shapes = {x.name: x.shape for x in onnxruntime.InferenceSession(str(tmp_path / "a.onnx")).get_inputs()}
    assert shapes["past.0.key"] == ["batch", 1, "past", 1]  # no head left: a number per token
    assert shapes["past.1.key"] == ["batch", 3, "past", 4]


def check_generation(model, export, prompt):
    """The export's own greedy tokens are those of `generate`, and its logits agree on the way."""
    steps = 6
    with torch.no_grad():
        expected = model.generate(
            **prompt, do_sample=False, num_beams=1, max_new_tokens=steps, max_length=None, eos_token_id=None,
            return_dict_in_generate=True, output_logits=True,
        )  # fmt: skip
    inputs = {name: tensor.numpy() for name, tensor in prompt.items()}
    state = export.begin(inputs)
    ids = inputs["input_ids"] if export.decoder is None else expected.sequences[:, :1].numpy()
    written = []
    for logits in expected.logits:
        found, state = export.step(state, ids)
        assert np.allclose(found[:, -1], logits.numpy(), atol=1e-4)
        ids = found[:, -1:].argmax(-1)
        written.append(ids)
    assert np.array_equal(np.concatenate(written, axis=1), expected.sequences[:, -steps:].numpy())


@pytest.fixture(scope="module")
def bert():
    return tiny_models.bert(num_hidden_layers=1)


@pytest.fixture(scope="module")
def exported(bert, tmp_path_factory):
    """A small export, with its weights in a file of their own."""
    file = tmp_path_factory.mktemp("exports") / "small.onnx"
    return export_onnx(bert, file, external_data=True)


def test_weights_in_a_file_of_their_own(bert, exported, monkeypatch, tmp_path):
    assert [path.name for path in exported.weights] == ["small.onnx.data"]
    assert exported.weights[0].stat().st_size > 4 * sum(p.numel() for p in bert.bert.encoder.parameters())
    ids = torch.tensor([[4, 5, 6]])
    found = run(exported.file, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})["logits"]
    assert np.allclose(found, bert(ids).logits.detach().numpy(), atol=1e-4)
    monkeypatch.setattr(exporter, "ONE_FILE", 1000)
    assert exporter._apart(bert, None) is True
    with pytest.raises(HeadcountError, match=r"GiB.* external_data=…"):
        export_onnx(bert, tmp_path / "a.onnx", external_data=False)
    assert list(tmp_path.iterdir()) == []


def test_the_export_is_measured_beside_the_model(bert, exported):
    result = benchmark({"original": bert, "export": exported.file}, batches=[1, 2], lengths=[8], rounds=2)
    assert [(row.model, row.batch, row.limit) for row in result.rows] == [("export", 1, None), ("export", 2, None)]
    assert all(row.pruned > 0 and row.speedup > 0 for row in result.rows)
    assert result.sizes["export"].disk == sum(path.stat().st_size for path in exported.file.parent.iterdir())


def test_what_is_there_is_kept(bert, exported, tmp_path):
    before = exported.file.read_bytes()
    with pytest.raises(HeadcountError, match=r"small.onnx exists.* overwrite=…"):
        export_onnx(bert, exported.file)
    assert exported.file.read_bytes() == before
    (tmp_path / "b.decoder.onnx").write_text("mine")
    with pytest.raises(HeadcountError, match=r"b.decoder.onnx exists"):
        export_onnx(bert, tmp_path / "b.onnx")
    (tmp_path / "c.onnx").mkdir()
    with pytest.raises(HeadcountError, match=r"c.onnx is a directory"):
        export_onnx(bert, tmp_path / "c.onnx", overwrite=True)
    with pytest.raises(HeadcountError, match=r"model .*\.onnx"):
        export_onnx(bert, tmp_path / "model")


def test_an_export_that_differs_is_refused(bert, tmp_path, monkeypatch):
    other = tiny_models.bert(num_hidden_layers=1)
    with torch.no_grad():
        other.classifier.bias += 0.001
    graphs = exporter.graphs
    monkeypatch.setattr(exporter, "graphs", lambda model: graphs(other))
    with pytest.raises(HeadcountError, match=r"0\.001 on random inputs"):
        export_onnx(bert, tmp_path / "a.onnx")
    assert list(tmp_path.iterdir()) == []


def test_your_inputs_are_compared_too(bert, exported, monkeypatch):
    """Only on texts of three tokens that start with 29 does this model differ from its export."""
    from headcount.export.onnx import check_parity

    yours = {"input_ids": torch.tensor([[29, 4, 5]])}  # without a mask, everything is read
    assert check_parity(bert, OnnxModel(exported.file), [yours]) <= 1e-4
    forward = type(bert).forward
    bias = torch.tensor([[0.01, 0.0]])

    @functools.wraps(forward)
    def differs(self, input_ids, **rest):
        output = forward(self, input_ids, **rest)
        output.logits = output.logits + bias * (input_ids[:, :1] == 29) * (input_ids.shape[1] == 3)
        return output

    monkeypatch.setattr(type(bert), "forward", differs)
    assert check_parity(bert, OnnxModel(exported.file)) <= 1e-4
    with pytest.raises(HeadcountError, match=r"your inputs 0"):
        check_parity(bert, OnnxModel(exported.file), [yours])


def test_an_operator_that_onnx_lacks_is_named(tmp_path):
    class Bessel(torch.nn.Module):
        def forward(self, x):
            return torch.special.bessel_j0(x)

    model = tiny_models.bert(num_hidden_layers=1)
    model.bert.encoder.layer[0].intermediate.intermediate_act_fn = Bessel()
    with pytest.raises(UnsupportedModel, match=r"prims.bessel_j0"):
        export_onnx(model, tmp_path / "a.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_extra(bert, tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(HeadcountError, match=rf"{package}.*pip install 'headcount\[onnx\]'"):
        export_onnx(bert, tmp_path / "a.onnx")


def test_other_things_that_are_refused(bert, tmp_path):
    with pytest.raises(HeadcountError, match="Linear"):
        export_onnx(torch.nn.Linear(2, 2), tmp_path / "a.onnx")
    with pytest.raises(HeadcountError, match="bfloat16"):
        export_onnx(tiny_models.bert().bfloat16(), tmp_path / "a.onnx")
    with pytest.raises(HeadcountError, match=r"none.onnx.*none.encoder.onnx"):
        OnnxModel(tmp_path / "none.onnx")
    (tmp_path / "broken.onnx").write_text("no graph")
    with pytest.raises(HeadcountError, match=r"broken.onnx"):
        OnnxModel(tmp_path / "broken.onnx")
