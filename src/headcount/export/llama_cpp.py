"""`export_gguf`: a model, pruned or not, as a GGUF file that llama.cpp runs.

Where every layer has the same heads and neurons left, the file has the family's own layout. Elsewhere it has that of
DeciLM ("deci"), the one graph of llama.cpp that reads the number of heads, key-value heads and neurons of each layer.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headcount.errors import HeadcountError, UnsupportedModel, first_line
from headcount.files import make_parent
from headcount.runs import model_signature
from headcount.structure import AttentionSite, FeedForwardSite, anatomy

FAMILIES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}  # model type -> graph
TYPES = ("f32", "f16", "q8_0")
BLOCK = 32  # numbers that one scale of q8_0 serves
TOLERANCE = {"f32": 1e-2, "f16": 0.05, "q8_0": 0.5}  # of log probabilities of the likeliest tokens
LIKELIEST = 20
TRIALS = ("The quick brown fox", "In the year 1815", "a")
# Pre-tokenizers of llama.cpp, by what their regular expression has that others do not.
SPLITS = (("\\p{N}{1,3}", "llama-bpe"), ("\\p{N}", "qwen2"))


@dataclass(frozen=True)
class GgufExport:
    """What `export_gguf` wrote, and how exact it is: the largest difference of a likely token's log probability."""

    file: Path
    graph: str
    difference: float

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.file.stat().st_size


def export_gguf(
    model: Any, file: str | Path, tokenizer: Any, *, dtype: str = "f16", overwrite: bool = False
) -> GgufExport:
    """Write a Llama, Mistral, Qwen2 or Qwen3 for llama.cpp, after checking that llama.cpp computes the same with it.

    tokenizer: of the model; its vocabulary goes into the file. dtype: `f32`, `f16` or `q8_0`, of the matrices.
    overwrite: replace a file that exists already.

    Groups of query heads must be even: prune with `groups="whole"`. The comparison is of the probabilities of the next
    token, as llama.cpp's server gives them.
    """
    require_gguf()
    file = Path(file)
    refuse_gguf(file, overwrite)
    graph = graph_of(model)
    if dtype not in TYPES:
        raise HeadcountError(
            f"{dtype} is not a type of GGUF that headcount writes", advice=f"choose {', '.join(TYPES)}"
        )
    vocabulary = _vocabulary(tokenizer, model.get_input_embeddings().weight.shape[0])
    make_parent(file)
    partial = file.with_name(f".{file.stem}.{os.getpid()}.gguf")
    try:
        _write(model, partial, graph, dtype, vocabulary)
        difference = _check(model, tokenizer, partial, TOLERANCE[dtype])
        os.replace(partial, file)
    finally:
        partial.unlink(missing_ok=True)
    return GgufExport(file, graph, difference)


def require_gguf() -> None:
    """Refuse to start where the extra `gguf` is not installed."""
    for package in ("gguf", "xllamacpp"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise HeadcountError(
                f"GGUF needs {package}, which is not installed", advice="pip install 'headcount[gguf]'"
            ) from error


def refuse_gguf(file: Path, overwrite: bool) -> None:
    """Refuse a name that is not a GGUF file's, and, unless `overwrite`, a file that exists already."""
    if file.suffix != ".gguf":
        raise HeadcountError(f"{file} does not end in .gguf", advice="name the file to write, such as model.gguf")
    if file.is_dir() or (file.exists() and not overwrite):
        raise HeadcountError(f"{file} exists already", advice="choose another file, or replace it with {overwrite}")


def graph_of(model: Any) -> str:
    """The graph of llama.cpp that runs a model; what it cannot run is refused by name."""
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if kind not in FAMILIES or not model.can_generate():
        known = "Llama, Mistral, Qwen2 and Qwen3 that generate text"
        raise UnsupportedModel(f"GGUF is for {known}, and this is a {type(model).__name__}")
    sites = anatomy(model, ["heads", "neurons"]).sites
    for site in sites:
        if isinstance(site, AttentionSite) and site.kept and not site.layout.is_even:
            raise UnsupportedModel(
                f"{site.name} has {len(site.kept)} query heads for {len(site.kv_kept)} key-value heads, unevenly, "
                "and llama.cpp divides one number by the other",
                advice="prune with {groups} set to whole",
            )
    counts = {(site.unit, len(site.kept), len(getattr(site, "kv_kept", ()))) for site in sites}
    wide = sites[0].width * len(sites[0].kept) == model.config.hidden_size
    if len(counts) == 2 and all(site.kept for site in sites) and (wide or kind != "qwen2"):
        return FAMILIES[kind]  # Qwen2's graph wants as many numbers in all heads as in the hidden state
    if kind == "qwen3":
        raise UnsupportedModel(
            "the layers have different numbers of heads or neurons, which llama.cpp reads in its deci graph only, "
            "and that has no norms of queries and keys, as Qwen3 has",
            advice="prune with {uniform} and {groups} set to whole",
        )
    return "deci"


def _write(model: Any, file: Path, graph: str, dtype: str, vocabulary: Vocabulary) -> None:
    import gguf

    config, sites = model.config, anatomy(model, ["heads", "neurons"]).sites
    heads = [site for site in sites if isinstance(site, AttentionSite)]
    layers = [site for site in sites if isinstance(site, FeedForwardSite)]
    writer = gguf.GGUFWriter(file, graph)
    writer.add_name(model_signature(model)["name"].rpartition("/")[2])
    window = getattr(config, "sliding_window", None) or config.max_position_embeddings
    writer.add_context_length(min(config.max_position_embeddings, window))
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(len(heads))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    counts = [_attention_counts(site) for site in heads]
    neurons = [_width(site, dtype) for site in layers]
    per_layer = graph == "deci"
    writer.add_head_count([count for count, _ in counts] if per_layer else counts[0][0])
    writer.add_head_count_kv([count for _, count in counts] if per_layer else counts[0][1])
    writer.add_feed_forward_length(neurons if per_layer else neurons[0])
    size = heads[0].head_dim
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_rope_dimension_count(size)
    writer.add_rope_freq_base(float(config.rope_parameters["rope_theta"]))
    writer.add_vocab_size(len(vocabulary.tokens))
    writer.add_file_type({"f32": 0, "f16": 1, "q8_0": 7}[dtype])
    vocabulary.write(writer)
    for name, tensor in _tensors(model, heads, layers, graph, dtype):
        _add(writer, name, tensor, dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _attention_counts(site: AttentionSite) -> tuple[int, int]:
    """Query and key-value heads of a layer; llama.cpp sizes heads by its first layer, which keeps one of zeros."""
    if not site.kept:
        return (1, 1) if site.layer == 0 else (0, 0)
    return len(site.kept), len(site.kv_kept)


def _width(site: FeedForwardSite, dtype: str) -> int:
    """Neurons of a layer in the file: whole blocks in q8_0, and never none: the graph would skip the residual."""
    multiple = BLOCK if dtype == "q8_0" or not site.kept else 1
    return max(BLOCK, -(-len(site.kept) // multiple) * multiple) if multiple > 1 else len(site.kept)


def _tensors(
    model: Any, heads: list[AttentionSite], layers: list[FeedForwardSite], graph: str, dtype: str
) -> Iterator[tuple[str, Tensor]]:
    """Every tensor by llama.cpp's name, with zeros where its graph needs something that the model does not have."""
    inner = model.model
    yield "token_embd.weight", inner.embed_tokens.weight
    yield "output_norm.weight", inner.norm.weight
    if not model.config.tie_word_embeddings:
        yield "output.weight", model.lm_head.weight
    factors = _rope_factors(model, heads[0].head_dim)
    if factors is not None:
        yield "rope_freqs.weight", factors
    for site, layer in zip(heads, layers, strict=True):
        block: Any = site.block
        module: Any = site.module
        name, size = f"blk.{site.layer}", site.head_dim
        queries, keys = _attention_counts(site)
        if queries:
            yield f"{name}.attn_norm.weight", block.input_layernorm.weight
            parts: tuple[tuple[str, Any, int], ...] = (
                ("attn_q", module.q_proj, queries), ("attn_k", module.k_proj, keys), ("attn_v", module.v_proj, keys),
            )  # fmt: skip
            for part, projection, count in parts:
                weight = _filled(projection.weight, count * size, 0)
                interleaved = graph in ("llama", "deci") and part != "attn_v"
                yield f"{name}.{part}.weight", _interleaved(weight, size) if interleaved else weight
                if projection.bias is not None:
                    bias = _filled(projection.bias, count * size, 0)
                    yield f"{name}.{part}.bias", _interleaved(bias, size) if interleaved else bias
            yield f"{name}.attn_output.weight", _filled(module.o_proj.weight, queries * size, 1)
            if module.o_proj.bias is not None:
                yield f"{name}.attn_output.bias", module.o_proj.bias
            if graph == "qwen3":
                yield f"{name}.attn_q_norm.weight", module.q_norm.weight
                yield f"{name}.attn_k_norm.weight", module.k_norm.weight
        elif module.o_proj.bias is not None:
            raise UnsupportedModel(f"{site.name} has no heads but a bias, which llama.cpp would leave out")
        yield f"{name}.ffn_norm.weight", block.post_attention_layernorm.weight
        width = _width(layer, dtype)
        yield f"{name}.ffn_gate.weight", _filled(block.mlp.gate_proj.weight, width, 0)
        yield f"{name}.ffn_up.weight", _filled(block.mlp.up_proj.weight, width, 0)
        yield f"{name}.ffn_down.weight", _filled(block.mlp.down_proj.weight, width, 1)


def _filled(tensor: Tensor, size: int, axis: int) -> Tensor:
    """The tensor with zeros after it along an axis, up to a size."""
    missing = list(tensor.shape)
    missing[axis] = size - tensor.shape[axis]
    return torch.cat([tensor, tensor.new_zeros(missing)], axis) if missing[axis] else tensor


def _interleaved(tensor: Tensor, size: int) -> Tensor:
    """Rows of queries or keys in llama.cpp's order: it rotates neighbours, transformers the two halves of a head."""
    rows = torch.arange(len(tensor)).view(-1, 2, size // 2).transpose(1, 2).reshape(-1)
    return tensor[rows]


def _rope_factors(model: Any, size: int) -> Tensor | None:
    """What each frequency is divided by, where the model's are not the plain ones (Llama 3.1's scaling)."""
    rotary = model.model.rotary_emb
    if getattr(rotary, "attention_scaling", 1.0) != 1.0:
        raise UnsupportedModel("the model scales attention with its positions (YaRN), which GGUF is not written for")
    theta = float(model.config.rope_parameters["rope_theta"])
    plain = 1.0 / theta ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
    factors = plain / rotary.inv_freq.float().cpu()
    return None if torch.allclose(factors, torch.ones_like(factors), rtol=1e-5) else factors


def _add(writer: Any, name: str, tensor: Tensor, dtype: str) -> None:
    import gguf

    array = tensor.detach().float().cpu().numpy()
    if array.ndim == 1 or dtype == "f32":
        writer.add_tensor(name, array)
    elif dtype == "q8_0" and array.shape[-1] % BLOCK == 0:
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
    else:
        writer.add_tensor(name, array.astype(np.float16))


@dataclass(frozen=True)
class Vocabulary:
    """A byte-level BPE tokenizer as GGUF has it: tokens, their types, merges, and how text is split before."""

    tokens: list[str]
    types: list[int]
    merges: list[str]
    split: str
    special: dict[str, int]

    def write(self, writer: Any) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(self.split)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types)
        writer.add_token_merges(self.merges)
        writer.add_add_bos_token(False)
        for name, number in self.special.items():
            getattr(writer, f"add_{name}_token_id")(number)


def _vocabulary(tokenizer: Any, rows: int) -> Vocabulary:
    import gguf

    backend = getattr(tokenizer, "backend_tokenizer", None)
    content = {} if backend is None else json.loads(backend.to_str())
    parts = json.dumps([content.get("pre_tokenizer"), content.get("decoder")])
    if content.get("model", {}).get("type") != "BPE" or "ByteLevel" not in parts:
        raise UnsupportedModel(
            f"{type(tokenizer).__name__} is not a byte-level BPE tokenizer, the one kind that headcount writes to GGUF"
        )
    known = {number: token for token, number in tokenizer.get_vocab().items()}
    added = tokenizer.added_tokens_decoder
    tokens = [known.get(number, f"[PAD{number}]") for number in range(max(rows, len(known)))]
    kinds = gguf.TokenType
    types = [
        int(kinds.CONTROL if number in added and added[number].special else kinds.USER_DEFINED if number in added
            else kinds.NORMAL if number in known else kinds.UNUSED)
        for number in range(len(tokens))
    ]  # fmt: skip
    merges = [one if isinstance(one, str) else " ".join(one) for one in content["model"]["merges"]]
    split = next((name for pattern, name in SPLITS if pattern.replace("\\", "\\\\") in parts), "gpt-2")
    special = {name: getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad", "unk")}
    return Vocabulary(tokens, types, merges, split, {name: n for name, n in special.items() if n is not None})


def _check(model: Any, tokenizer: Any, file: Path, tolerance: float) -> float:
    """The largest difference between the log probabilities of likely next tokens; more than allowed is refused."""
    worst = 0.0
    prompts = [tokenizer(text)["input_ids"] for text in TRIALS]
    letter = tokenizer.convert_tokens_to_ids("a")
    for ids, found in zip(prompts, _llama_cpp(file, prompts, letter), strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids], device=model.device)).logits[0, -1]
        expected = torch.log_softmax(logits.float(), -1).cpu()
        likely = expected.topk(min(LIKELIEST, len(expected))).indices.tolist()
        off = max(abs(found.get(token, float("-inf")) - float(expected[token])) for token in likely)
        if not off <= tolerance:
            raise HeadcountError(
                f"not exported: llama.cpp and the model differ by {off:.2g} in the log probability of the next token, "
                f"and {tolerance:g} is allowed"
            )
        worst = max(worst, off)
    return worst


def _llama_cpp(file: Path, prompts: list[list[int]], letter: int) -> list[dict[int, float]]:
    """What llama.cpp says of the token after each prompt: log probabilities by token."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.n_ctx, params.n_parallel, params.warmup = 128, 1, False
    params.cpuparams.n_threads = 1
    # llama.cpp holds back a token that is only part of a character, and its probabilities: let it choose a letter.
    asked = {"n_predict": 1, "n_probs": 10**6, "logit_bias": [[letter, 1e4]], "cache_prompt": False}
    with _what_it_logs() as log:
        try:
            server = xllamacpp.Server(params)
            answers = [server.handle_completions({"prompt": ids, **asked}) for ids in prompts]
            del server
        except Exception as error:  # llama.cpp raises errors of its own kinds, and logs the reason
            reason = re.search(r"error loading model: (.+)", log()) or re.search(r"(.+)", first_line(error))
            told = reason[1].strip() if reason else ""
            raise HeadcountError(f"not exported: llama.cpp does not take the file: {told}") from error
    found = []
    for answer in answers:
        content = json.loads(answer) if isinstance(answer, str) else answer
        if "choices" not in content:
            raise HeadcountError(f"not exported: llama.cpp answers {str(content)[:200]}")
        top = content["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        found.append({int(one["id"]): float(one["logprob"]) for one in top})
    return found


@contextmanager
def _what_it_logs() -> Iterator[Callable[[], str]]:
    """What is written to stderr inside the block, below Python, in a function that reads it."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)

        def read() -> str:
            log.seek(0)
            return log.read().decode(errors="replace")

        try:
            yield read
        finally:
            os.dup2(kept, 2)
            os.close(kept)
