"""`export_onnx`: a model, pruned or not, as ONNX files that onnxruntime runs without PyTorch."""

from __future__ import annotations

import json
import logging
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from headcount.errors import HeadcountError, UnsupportedModel, first_line
from headcount.export.onnx_graphs import Graph, graphs, positions
from headcount.export.onnx_layouts import OnnxLayout, layout_named, save_tokenizer
from headcount.export.onnx_runtime import (
    FACTS,
    OnnxModel,
    is_of_layout,
    part_path,
    refuse_directory,
    refuse_target,
    require_onnx,
)
from headcount.files import make_parent, path_of, replaced_directory
from headcount.heads import format_ranges
from headcount.runs import model_signature, versions
from headcount.structure import anatomy, device_of, kernel_of, random_inputs, whole_anatomy

TOLERANCE = 1e-4  # absolute, and relative where numbers are larger than one
SHAPES = ((1, 5), (3, 9), (2, 16))  # batch, length: none of them is what graphs are traced with
AHEAD = 3  # tokens that are fed at once before the cache is used token by token
ONE_FILE = 2**31 - 2**24  # bytes of weights; protobuf ends at 2 GiB, and the graph itself needs some
LOUD = ("torch.onnx", "onnxscript", "onnx_ir", "torch._export", "torch.export")


@dataclass(frozen=True)
class Export:
    """What `export_onnx` wrote: the graphs, the files of weights beside them if any, and how exact it is.

    difference: the largest difference between model and export, absolute, and relative where numbers exceed one.
    int8_difference: the same after quantization, which is not exact; None where nothing was quantized.
    """

    file: Path
    graphs: tuple[Path, ...]
    weights: tuple[Path, ...]
    difference: float
    int8_difference: float | None = None

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for path in (*self.graphs, *self.weights))


def export_onnx(
    model: PreTrainedModel,
    file: str | Path,
    *,
    inputs: Iterable[Mapping[str, Tensor]] = (),
    int8: bool = False,
    external_data: bool | None = None,
    overwrite: bool = False,
    layout: str | None = None,
    tokenizer: Any = None,
) -> Export:
    """Write a model as ONNX, for any batch and length, after checking that onnxruntime computes the same with it.

    >>> import tempfile
    >>> from transformers import BertConfig, BertModel
    >>> from headcount import remove
    >>> model = BertModel(BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, vocab_size=50))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export = export_onnx(remove(model, ["encoder.0.1"]), f"{folder}/small.onnx")
    ...     [path.name for path in export.graphs], export.difference < 1e-4
    (['small.onnx'], True)

    A model that generates takes and returns its cache; an encoder-decoder becomes `NAME.encoder.onnx` and
    `NAME.decoder.onnx` (docs/onnx.md generates and translates with them).

    inputs: batches of yours to compare the export on too, as the model takes them.
    int8: quantize the weights to 8 bits per output channel, and inputs of matrix products as they come, with
        onnxruntime's own tools. The result is compared, not held to a tolerance: measure it with `evaluate`.
    external_data: weights in a file of their own beside the graph; by default only where one file cannot hold them.
    overwrite: replace files that exist already.
    layout: `optimum` or `genai`: `file` is a directory, which that loader runs (docs/onnx.md).
    tokenizer: or processor, saved in such a directory.
    """
    require_onnx()
    _refuse(model)
    file = path_of(file, "file")
    apart = _apart(model, external_data)
    inputs = list(inputs)
    if layout is not None:
        chosen = layout_named(layout)
        refuse_directory(file, overwrite)
        with _unchanged(model):
            named = chosen.graphs(model)
            with replaced_directory(file, is_of_layout) as folder:
                chosen.configure(model, folder)
                if tokenizer is not None:
                    save_tokenizer(tokenizer, folder)
                off = _write_all(model, named, folder, inputs, apart, int8, chosen)
        beside = tuple(path for name in named if (path := file / f"{name}.data").is_file())
        return Export(file, tuple(file / name for name in named), beside, *off)
    refuse_target(file, overwrite)
    split = model.can_generate() and model.config.is_encoder_decoder
    names = [part_path(file, part) for part in ("encoder", "decoder")] if split else [file]
    make_parent(file)
    with _unchanged(model), tempfile.TemporaryDirectory(dir=file.parent, prefix=f".{file.name}.") as place:
        folder = Path(place)
        named = dict(zip((name.name for name in names), graphs(model).values(), strict=True))
        plain = OnnxLayout(graphs, lambda folder: OnnxModel(folder / file.name))
        off = _write_all(model, named, folder, inputs, apart, int8, plain)
        written = sorted(folder.iterdir())
        for path in written:
            shutil.move(path, file.parent / path.name)
    weights = tuple(file.parent / path.name for path in written if path.suffix == ".data")
    return Export(file, tuple(names), weights, *off)


def _write_all(
    model: Any,
    named: dict[str, Graph],
    folder: Path,
    inputs: list[Mapping[str, Tensor]],
    apart: bool,
    int8: bool,
    layout: OnnxLayout,
) -> tuple[float, float | None]:
    """Write every graph, and say how far they are from the model, before and after quantization."""
    for name, graph in named.items():
        _write(graph, folder / name, apart, _description(model))
    layout.adapt(model, folder, apart)
    difference = check_parity(model, layout.opened(folder), inputs)
    if not int8:
        return difference, None
    for name in named:
        quantize(folder / name, apart)
    return difference, check_parity(model, layout.opened(folder), inputs, tolerance=float("inf"))


def quantize(file: Path, apart: bool = False) -> None:
    """Replace a graph by one with 8-bit weights, scaled per output channel, whose products are of 8-bit integers."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph = onnx.load(file)  # with the weights beside it, if they are
    # The exporter notes the shapes of weights, which the quantizer transposes without correcting the notes.
    del graph.graph.value_info[:]
    quantized = file.with_name(f".{file.name}.int8")
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)  # it recommends steps that the exporter has done
    try:
        quantize_dynamic(
            graph, quantized, per_channel=True, weight_type=QuantType.QInt8, use_external_data_format=apart
        )
    except Exception as error:  # the quantizer raises errors of many kinds
        raise HeadcountError(f"not exported: onnxruntime cannot quantize the graph: {first_line(error)}") from error
    finally:
        logging.disable(level)
    file.unlink()
    file.with_name(f"{file.name}.data").unlink(missing_ok=True)
    program = onnx.load(quantized)
    for path in file.parent.glob(f"{quantized.name}*"):
        path.unlink()
    onnx.save(program, file, save_as_external_data=apart, location=f"{file.name}.data", size_threshold=256)


def _write(graph: Graph, file: Path, apart: bool, description: dict[str, str]) -> None:
    """Trace a graph and write it; an operator that ONNX lacks is named."""
    try:
        program = torch.onnx.export(
            graph.module.eval(),
            (list(graph.inputs.values()),),
            input_names=list(graph.inputs),
            output_names=graph.outputs,
            dynamic_shapes=([graph.open_sizes[name] for name in graph.inputs],),
            dynamo=True,
            verbose=False,
        )
    except Exception as error:  # the exporter wraps errors of many kinds
        raise UnsupportedModel(_why(error)) from error
    assert program is not None
    program.model.metadata_props.update(description)
    program.save(file, external_data=apart)


def _why(error: BaseException) -> str:
    """The operator that ONNX lacks, if that is the reason, or the first line of what the exporter says."""
    reasons: list[str] = []
    cause: BaseException | None = error
    while cause is not None:
        reasons.append(re.sub(r"\x1b\[\d+m", "", str(cause)))
        cause = cause.__cause__
    for text in reasons:
        operator = re.search(r"No ONNX function found for <OpOverload\(op='([\w.:]+)'", text)
        if operator:
            return f"ONNX has no operator for {operator[1].replace('::', '.')}, which the model uses"
    summary = re.search(r"## Exception summary\s+(.+)", reasons[0])
    lines = (summary[1] if summary else reasons[-1]).splitlines()
    return f"the model cannot be exported to ONNX: {(lines or [type(error).__name__])[0]}"


def _refuse(model: Any) -> None:
    if not isinstance(model, PreTrainedModel):
        raise HeadcountError(f"can export a transformers model, not a {type(model).__name__}")
    anatomy(model)  # refuses what is compiled or wrapped, by name
    kinds = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    if kinds != {torch.float32}:
        found = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        raise HeadcountError(
            f"the export is compared in float32, and the model is in {found}", advice="load it in float32"
        )


def _apart(model: Any, wanted: bool | None) -> bool:
    size = sum(tensor.numel() * tensor.element_size() for tensor in (*model.parameters(), *model.buffers()))
    if wanted is False and size > ONE_FILE:
        raise HeadcountError(
            f"the weights take {size / 2**30:.1f} GiB, and one ONNX file holds at most {ONE_FILE / 2**30:.1f}",
            advice="put them in a file of their own with {external_data}",
        )
    return size > ONE_FILE if wanted is None else wanted


def _description(model: Any) -> dict[str, str]:
    """What the file says of itself."""
    sites = whole_anatomy(model).sites
    heads = {site.name: list(site.kept) for site in sites if site.unit == "head"}
    neurons = {site.name: format_ranges(site.kept) for site in sites if site.unit == "neuron"}
    signature = {"model": model_signature(model), "versions": versions()}
    config = json.loads(model.config.to_json_string(use_diff=False)) | {"architectures": [type(model).__name__]}
    facts = {"heads": heads, "neurons": neurons, "signature": signature, "config": config}
    if model.can_generate():
        facts["generation"] = model.generation_config.to_dict()
    return {f"{FACTS}{name}": json.dumps(fact, default=str) for name, fact in facts.items()}


@contextmanager
def _unchanged(model: Any) -> Iterator[None]:
    """Trace with eager attention, which every family has and which traces at every shape; restore everything after."""
    kernel, training = kernel_of(model), model.training
    loggers = [logging.getLogger(name) for name in LOUD]
    levels = [logger.level for logger in loggers]
    try:
        model.eval()
        model.set_attn_implementation("eager")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        model.set_attn_implementation(kernel)
        model.train(training)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def check_parity(
    model: Any, export: Any, given: Iterable[Mapping[str, Tensor]] = (), tolerance: float = TOLERANCE
) -> float:
    """The largest difference between the model and its export; more than the tolerance is refused.

    export: an `OnnxModel`, or what runs a layout as its loader does.
    """
    worst = 0.0
    for what, inputs in _trials(model, given):
        try:
            off = _generated_off(model, export, inputs) if model.can_generate() else _forward_off(model, export, inputs)
        except (HeadcountError, KeyboardInterrupt):
            raise
        except Exception as error:  # onnxruntime raises errors of its own kinds
            raise HeadcountError(f"not exported: the export does not run on {what}: {first_line(error)}") from error
        if not off <= tolerance:
            raise HeadcountError(
                f"not exported: the export and the model differ by {off:.2g} on {what}, and {tolerance:g} is allowed"
            )
        worst = max(worst, off)
    return worst


def _trials(model: Any, given: Iterable[Mapping[str, Tensor]]) -> Iterator[tuple[str, dict[str, Tensor]]]:
    side = "left" if model.can_generate() and not model.config.is_encoder_decoder else "right"
    limit = getattr(getattr(model.config, "text_config", model.config), "max_position_embeddings", None) or 512
    for batch, length in SHAPES:
        length = min(length, max(1, limit // 2))
        yield f"random inputs of {batch} x {length}", random_inputs(model, batch, length, padding=side)
    for number, inputs in enumerate(given):
        device = device_of(model)
        named = {name: tensor.to(device) for name, tensor in inputs.items()}
        if "input_ids" in named:  # a graph has no default: without a mask, everything is read
            named.setdefault("attention_mask", torch.ones_like(named["input_ids"]))
        yield f"your inputs {number}", named


@torch.no_grad()
def _forward_off(model: Any, export: OnnxModel, inputs: dict[str, Tensor]) -> float:
    expected = model(**inputs, return_dict=True)
    found = export.forward({name: tensor.cpu().numpy() for name, tensor in inputs.items()})
    mask = inputs.get("attention_mask")
    return max(_off(value, expected[name].cpu().numpy(), mask) for name, value in found.items())


@torch.no_grad()
def _generated_off(model: Any, export: Any, inputs: dict[str, Tensor]) -> float:
    """Logits of one pass without a cache, against the export's: some tokens at once, then one by one with its cache."""
    inputs, mask = dict(inputs), inputs.get("attention_mask")
    if model.config.is_encoder_decoder:
        if "decoder_input_ids" not in inputs:
            batch, length = len(inputs[model.main_input_name]), 2 * AHEAD
            inputs["decoder_input_ids"] = random_inputs(model, batch, length)["decoder_input_ids"]
        ids, mask = inputs["decoder_input_ids"], None
        expected = model(**inputs, use_cache=False).logits
        inputs.pop("decoder_input_ids")
    else:
        ids = inputs["input_ids"]
        assert mask is not None
        expected = model(**inputs, use_cache=False, **positions(model, mask, ids.shape[1])).logits
    numpy = {name: tensor.cpu().numpy() for name, tensor in inputs.items()}
    tokens = ids.cpu().numpy()
    state, logits = export.begin(numpy), []
    for start, stop in [(0, AHEAD), *((i, i + 1) for i in range(AHEAD, tokens.shape[1]))]:
        if export.decoder is None:
            state["attention_mask"] = numpy["attention_mask"][:, :stop]
        step, state = export.step(state, tokens[:, start:stop])
        logits.append(step)
    return _off(np.concatenate(logits, axis=1), expected.cpu().numpy(), mask)


def _off(found: np.ndarray, expected: np.ndarray, mask: Tensor | None) -> float:
    """The largest difference, padding left out."""
    if found.shape != expected.shape:
        return float("inf")
    off = np.abs(found - expected) / np.maximum(np.abs(expected), 1)  # (B, T, …) or any other shape
    if mask is not None and off.shape[:2] == tuple(mask.shape):
        off = off[mask.cpu().numpy().astype(bool)]
    return float(off.max(initial=0.0)) if np.isfinite(off).all() else float("inf")
