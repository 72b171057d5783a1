"""Directories that other loaders of ONNX run as they stand: Optimum's, and onnxruntime-genai's.

Both want certain names of files, inputs and outputs, and a configuration beside the graphs. Optimum starts a decoder
with empty caches of one size for all layers, so a graph for it cuts what it is given to the size of each layer;
onnxruntime-genai reads the size of each layer in the graph. Optimum's encoder-decoders are three graphs: the encoder,
the decoder's first step, which puts out what cross-attention reads, and every later step, which takes it in.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from headcount.errors import HeadcountError, UnsupportedModel
from headcount.export.onnx_graphs import PARTS, Graph, generator, graphs, three_graphs
from headcount.export.onnx_runtime import (
    ENCODER,
    FACTS,
    FIRST,
    LATER,
    MAIN,
    OTHERS_PAST,
    OnnxModel,
    open_graph,
    run_graph,
)
from headcount.structure import position_limit

if TYPE_CHECKING:
    import numpy as np

    from headcount.export.onnx_runtime import Arrays

# Optimum takes the number of cached heads from num_key_value_heads in these, from num_attention_heads in others, and
# the size of a head from head_dim in those of OWN_SIZE, from hidden_size and num_attention_heads in others.
GROUPED = {"arcee", "cohere", "gemma", "gemma3_text", "glm", "granite", "gpt_oss", "helium", "mistral", "llama",
           "nemotron", "qwen2", "qwen3", "qwen3_moe", "smollm3", "stablelm"}  # fmt: skip
OWN_SIZE = {"gemma", "gemma3_text", "gpt_oss", "nemotron"}
CONTEXT = 2048  # tokens that onnxruntime-genai may use where a model has no limit


def leave(*_: Any) -> None:
    """Nothing to adapt or configure."""


@dataclass(frozen=True)
class OnnxLayout:
    """What a loader wants: graphs by file, how it runs them, changes to them after tracing, and a configuration."""

    graphs: Callable[[Any], dict[str, Graph]]
    opened: Callable[[Path], Any]
    adapt: Callable[[Any, Path, bool], None] = leave
    configure: Callable[[Any, Path], None] = leave


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Save a tokenizer or processor as loaders with an older transformers, or none, know it."""
    tokenizer.save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    if file.is_file():
        content = json.loads(file.read_text(encoding="utf-8"))
        if content.get("tokenizer_class") == "TokenizersBackend":  # what transformers 5 calls it
            content["tokenizer_class"] = "PreTrainedTokenizerFast"
            file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def layout_named(name: str) -> OnnxLayout:
    """The layout of this name; others are refused."""
    if name not in LAYOUTS:
        raise HeadcountError(f"{name!r} is not a layout", advice=f"choose {' or '.join(LAYOUTS)} as {{layout}}")
    return LAYOUTS[name]


def _optimum_graphs(model: Any) -> dict[str, Graph]:
    if not model.can_generate():
        return {MAIN: graphs(model)["model"]}
    if not model.config.is_encoder_decoder:
        return {MAIN: _cached(model)}
    found = three_graphs(model)
    first = found["first"].renamed(lambda name: _translator_name(name).replace(OTHERS_PAST, "present"))
    return {ENCODER: found["encoder"], FIRST: first, LATER: found["later"].renamed(_translator_name)}


def _adapt_to_optimum(model: Any, folder: Path, apart: bool) -> None:
    if model.can_generate() and model.config.is_encoder_decoder:
        _complete(folder / LATER, apart)
    elif model.can_generate():
        _cut_caches(model, folder / MAIN, apart)


def _cut_caches(model: Any, file: Path, apart: bool) -> None:
    """Let each layer take an empty cache of the one size that Optimum starts with, and cut it to its own."""
    import onnx
    from onnx import helper, numpy_helper

    heads, size = _optimum_cache(_optimum_config(model))
    program = onnx.load(file)
    graph, cuts = program.graph, []
    for value in graph.input:
        dims = value.type.tensor_type.shape.dim
        if not value.name.startswith(f"{OTHERS_PAST}.") or (dims[1].dim_value, dims[3].dim_value) == (heads, size):
            continue
        own, cut = [dims[1].dim_value, dims[3].dim_value], f"{value.name}.cut"
        for node in graph.node:
            node.input[:] = [cut if name == value.name else name for name in node.input]
        bounds = {"starts": [0, 0], "ends": own, "axes": [1, 3]}
        for name, numbers in bounds.items():
            graph.initializer.append(numpy_helper.from_array(torch.tensor(numbers).numpy(), f"{cut}.{name}"))
        cuts.append(helper.make_node("Slice", [value.name, *(f"{cut}.{name}" for name in bounds)], [cut]))
        dims[1].dim_param, dims[3].dim_param = f"{value.name}.heads", f"{value.name}.size"
    for place, node in enumerate(cuts):
        graph.node.insert(place, node)
    program.metadata_props.add(key=f"{FACTS}cache", value=json.dumps([heads, size]))
    _save(program, file, apart)


def _complete(file: Path, apart: bool) -> None:
    """Give a graph the caches of all layers, in order, after its other inputs: Optimum counts them."""
    import onnx
    from onnx import helper

    program = onnx.load(file)
    found = {value.name: copy.deepcopy(value) for value in program.graph.input}
    layers = range(sum(name.endswith(".decoder.key") for name in found))
    names = [f"{OTHERS_PAST}.{n}.{stack}.{part}" for n in layers for stack in ("decoder", "encoder") for part in PARTS]
    values = [value for name, value in found.items() if name not in names]
    for name in names:  # a cross-attention without heads reads nothing
        unread = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", 1, "source", 1])
        values.append(found.get(name, unread))
    del program.graph.input[:]
    program.graph.input.extend(values)
    _save(program, file, apart)


def _save(program: Any, file: Path, apart: bool) -> None:
    import onnx

    file.unlink()
    file.with_name(f"{file.name}.data").unlink(missing_ok=True)
    onnx.save(program, file, save_as_external_data=apart, location=f"{file.name}.data", size_threshold=256)


def _optimum_config(model: Any) -> Any:
    """The configuration that leads Optimum to caches that are large enough for every layer."""
    config = copy.deepcopy(model.config)
    for name in ("headcount", "auto_map"):
        if hasattr(config, name):
            delattr(config, name)
    config.architectures = [type(model).__name__]
    if model.can_generate() and not config.is_encoder_decoder:
        heads, size = _largest(model)
        if config.model_type not in OWN_SIZE:
            number = next(n for n in range(max(1, config.hidden_size // size), 0, -1) if config.hidden_size % n == 0)
            config.num_attention_heads = number
        if config.model_type in GROUPED:
            config.num_key_value_heads = heads
        given = _optimum_cache(config)
        if given[0] < heads or given[1] < size:
            raise UnsupportedModel(
                f"a layer caches {heads} heads of {size} numbers, and Optimum would start it with {given[0]} of "
                f"{given[1]}, as it does for every {config.model_type}",
                advice="leave {layout} out, and run the file with onnxruntime",
            )
    return config


def _optimum_cache(config: Any) -> tuple[int, int]:
    """Heads and size of the empty caches that Optimum gives every layer."""
    size = config.head_dim if config.model_type in OWN_SIZE else config.hidden_size // config.num_attention_heads
    return config.num_key_value_heads if config.model_type in GROUPED else config.num_attention_heads, size


def _largest(model: Any) -> tuple[int, int]:
    """The most heads, and the largest head, that any layer caches."""
    past = [tensor for name, tensor in generator(model).inputs.items() if name.startswith("past.")]
    return max(tensor.shape[1] for tensor in past), max(tensor.shape[3] for tensor in past)


def _configure_optimum(model: Any, folder: Path) -> None:
    (folder / "config.json").write_text(_optimum_config(model).to_json_string(), encoding="utf-8")
    if model.can_generate():
        model.generation_config.save_pretrained(folder)


class OptimumTranslator:
    """An encoder-decoder in three files, run as Optimum does: the first step without a cache, later ones with it."""

    def __init__(self, folder: Path) -> None:
        self.main, self.decoder, self.later = (open_graph(folder / name, 1) for name in (ENCODER, FIRST, LATER))

    def begin(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        mask = {f"encoder_{name}": value for name, value in inputs.items() if name == "attention_mask"}
        return {"encoder_hidden_states": run_graph(self.main, inputs)["last_hidden_state"], **mask}

    def step(self, state: Arrays, ids: np.ndarray) -> tuple[np.ndarray, Arrays]:
        graph = self.later if any(name.startswith(OTHERS_PAST) for name in state) else self.decoder
        outputs = run_graph(graph, {**state, "input_ids": ids})
        logits = outputs.pop("logits")
        return logits, {**state, **{name.replace("present", OTHERS_PAST): value for name, value in outputs.items()}}


def _genai_graphs(model: Any) -> dict[str, Graph]:
    if not model.can_generate() or model.config.is_encoder_decoder:
        raise UnsupportedModel(
            f"onnxruntime-genai generates text with a decoder alone, and this is a {type(model).__name__}",
            advice="choose optimum as {layout}",
        )
    return {MAIN: _cached(model)}


def _configure_genai(model: Any, folder: Path) -> None:
    """`genai_config.json`; the size of each layer's cache is in the graph, where onnxruntime-genai looks for it."""
    config, generation = model.config, model.generation_config
    heads, size = _largest(model)
    tokens = {}
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        number = getattr(generation, name, None)
        tokens[name] = getattr(config, name, None) if number is None else number
    end = tokens["eos_token_id"] if tokens["eos_token_id"] is not None else []
    tokens["eos_token_id"] = end
    if tokens["pad_token_id"] is None:
        tokens["pad_token_id"] = end[0] if isinstance(end, list) and end else end or 0
    context = position_limit(model) or CONTEXT
    decoder = {
        "filename": MAIN,
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "head_size": size,
        "hidden_size": config.hidden_size,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": heads,
        "num_hidden_layers": config.num_hidden_layers,
        "inputs": {
            "input_ids": "input_ids", "attention_mask": "attention_mask", "position_ids": "position_ids",
            "past_key_names": f"{OTHERS_PAST}.%d.key", "past_value_names": f"{OTHERS_PAST}.%d.value",
        },
        "outputs": {
            "logits": "logits", "present_key_names": "present.%d.key", "present_value_names": "present.%d.value",
        },
    }  # fmt: skip
    known = {name: number for name, number in tokens.items() if number is not None}
    content = {
        "model": {"type": "decoder", "context_length": context, "vocab_size": config.vocab_size, **known,
                  "decoder": decoder},
        "search": {"max_length": context, "do_sample": False, "past_present_share_buffer": False},
    }  # fmt: skip
    (folder / "genai_config.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _cached(model: Any) -> Graph:
    """A decoder with the names, and the input of positions, that both loaders know."""
    graph = generator(model, positions_given=True)
    return graph.renamed(lambda name: re.sub(r"^past\b", OTHERS_PAST, name))


def _translator_name(name: str) -> str:
    """Optimum's name for what goes into or comes out of a decoder.

    >>> [_translator_name(name) for name in ("past.0.key", "cross.0.value", "present.1.key", "attention_mask")]
    ['past_key_values.0.decoder.key', 'past_key_values.0.encoder.value', 'present.1.decoder.key', \
'encoder_attention_mask']
    """
    if name == "attention_mask":
        return f"encoder_{name}"
    found = re.fullmatch(r"(past|present|cross)\.(\d+)\.(key|value)", name)
    if found is None:
        return name
    kind, layer, part = found.groups()
    stack = "encoder" if kind == "cross" else "decoder"
    return f"{'present' if kind == 'present' else OTHERS_PAST}.{layer}.{stack}.{part}"


def _open_optimum(folder: Path) -> Any:
    return OnnxModel(folder / MAIN) if (folder / MAIN).is_file() else OptimumTranslator(folder)


LAYOUTS = {
    "optimum": OnnxLayout(_optimum_graphs, _open_optimum, _adapt_to_optimum, _configure_optimum),
    "genai": OnnxLayout(_genai_graphs, lambda folder: OnnxModel(folder / MAIN), configure=_configure_genai),
}
