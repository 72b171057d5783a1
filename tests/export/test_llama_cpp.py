"""GGUF: which graph a layout needs, what is refused by name, and llama.cpp itself on files of ragged models (slow)."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import elsewhere
import zoo
from headcount import HeadcountError, UnsupportedModel, export_gguf, remove, save
from headcount.export.llama_cpp import _interleaved, _rope_factors, graph_of

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


def build(kind):
    """A model of that layout, with heads of 32 numbers, as q8_0 needs."""
    torch.manual_seed(0)
    name = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}[kind]
    size = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
    size |= {"head_dim": 32, "intermediate_size": 96, "vocab_size": 320, "max_position_embeddings": 128}
    config = getattr(transformers, f"{name}Config")(**size, initializer_range=0.1, bos_token_id=0, eos_token_id=1)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def tokenizer():
    words = Tokenizer(models.BPE())
    words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    words.train_from_iterator(["The quick brown fox jumps over the lazy dog in the year 1815"], special)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>")


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
    assert graph_of(remove(build(kind), gone) if gone else build(kind)) == graph


@pytest.mark.parametrize(
    ("model", "facts"),
    [
        (lambda: remove(build("llama"), UNEVEN), ("decoder.0", "3 query heads", "2 key-value heads", "groups")),
        (lambda: remove(build("qwen3"), RAGGED), ("deci", "Qwen3", "uniform")),
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
    config = build("llama").config
    config.rope_parameters = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    assert torch.allclose(_rope_factors(transformers.LlamaForCausalLM(config), 32), torch.full((16,), 4.0))
    assert _rope_factors(build("llama"), 32) is None


def test_a_missing_extra_names_its_command(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    with pytest.raises(HeadcountError, match=r"gguf.*headcount\[gguf\]"):
        export_gguf(build("llama"), tmp_path / "a.gguf", tokenizer())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_llama_cpp_computes_the_same(tmp_path):
    python = elsewhere.environment(tmp_path / "environment", "gguf", "xllamacpp")
    cuts = {"whole": [], "ragged": RAGGED, "first": ["decoder.0"], "middle": ["decoder.1"], "ffn": ["decoder_ffn.1"]}
    names = []
    for kind in ("llama", "mistral", "qwen2"):
        for name, gone in {**cuts, "uniform": UNIFORM}.items():
            names.append(f"{kind}-{name}")
            save(remove(build(kind), gone) if gone else build(kind), tmp_path / names[-1], tokenizer=tokenizer())
    names.append("qwen3-uniform")
    save(remove(build("qwen3"), UNIFORM), tmp_path / names[-1], tokenizer=tokenizer())
    told = elsewhere.run(python, SCRIPT.format(names=names, root=str(tmp_path)), tmp_path / "home")
    found = json.loads(told[told.index("FOUND") + 5 :])
    assert len(found) == 2 * len(names)
    for name, dtype, _, difference, _ in found:
        assert difference <= (0.05 if dtype == "f16" else 0.5), (name, dtype)
    sizes = {(name, dtype): size for name, dtype, _, _, size in found}
    assert sizes["llama-ragged", "q8_0"] < sizes["llama-ragged", "f16"] < sizes["llama-whole", "f16"]
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]
