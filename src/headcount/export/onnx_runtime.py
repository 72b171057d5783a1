"""Run an exported model with onnxruntime: whole, step by step with its cache, or in the place of the model itself."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headcount.errors import HeadcountError, first_line

if TYPE_CHECKING:  # a file that exists already is refused before anything slow is imported
    import numpy as np

    Arrays = dict[str, np.ndarray]
PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def require_onnx(*packages: str) -> None:
    """Refuse to start where the extra `onnx` is not installed."""
    for package in packages or PACKAGES:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise HeadcountError(
                f"ONNX needs {package}, which is not installed", advice="pip install 'headcount[onnx]'"
            ) from error


def refuse_target(file: Path, overwrite: bool) -> None:
    """Refuse a name that is not a graph's, and, unless `overwrite`, files that exist already, one graph or two."""
    if file.suffix != ".onnx":
        raise HeadcountError(f"{file} does not end in .onnx", advice="name the file to write, such as model.onnx")
    for name in (file, *(part_path(file, part) for part in ("encoder", "decoder"))):
        if name.is_dir():
            raise HeadcountError(f"{name} is a directory", advice="name a file")
        if name.exists() and not overwrite:
            raise HeadcountError(f"{name} exists already", advice="choose another file, or replace it with {overwrite}")


class OnnxModel:
    """A model that `export_onnx` wrote, opened in onnxruntime.

    file: as it was given to `export_onnx`; the two files of an encoder-decoder are found by it.
    threads: for computing one operator; all cores by default.
    """

    def __init__(self, file: str | Path, threads: int | None = None) -> None:
        require_onnx("onnxruntime")
        file = Path(file)
        if file.is_file():
            self.main, self.decoder = _opened(file, threads), None
        else:
            encoder, decoder = (part_path(file, part) for part in ("encoder", "decoder"))
            if not (encoder.is_file() and decoder.is_file()):
                raise HeadcountError(f"there is no {file}, and no {encoder.name} with {decoder.name} beside it")
            self.main, self.decoder = _opened(encoder, threads), _opened(decoder, threads)

    @property
    def generates(self) -> bool:
        """Whether it has a cache to decode with."""
        return bool(self.empty_past(1))

    def forward(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """All outputs of a model that is one graph."""
        return _run(self.main, inputs)

    def begin(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """What decoding starts from: an empty cache and, for an encoder-decoder, its encoder's output."""
        batch = len(next(iter(inputs.values())))
        if self.decoder is None:
            return {**inputs, **self.empty_past(batch)}
        mask = {name: value for name, value in inputs.items() if name == "attention_mask"}
        return {**mask, **_run(self.main, inputs), **self.empty_past(batch)}

    def step(self, state: Arrays, ids: np.ndarray) -> tuple[np.ndarray, Arrays]:
        """The logits (B, T, vocabulary) of the next tokens, and the state after them."""
        outputs = _run(self.decoder or self.main, {**state, "input_ids": ids})
        present = {name.replace("present", "past"): value for name, value in outputs.items() if "present." in name}
        state = {**state, **present}
        if self.decoder is None:  # the mask is of all tokens so far: make room for one more
            import numpy as np

            mask = state["attention_mask"]
            state["attention_mask"] = np.concatenate([mask, np.ones_like(mask[:, :1])], axis=1)
        return outputs["logits"], state

    def empty_past(self, batch: int) -> Arrays:
        """A cache that has seen nothing: each layer's keys and values, (B, heads, 0, head_dim)."""
        import numpy as np

        graph = self.decoder or self.main
        shapes = {node.name: node.shape for node in graph.get_inputs() if node.name.startswith("past.")}
        return {name: np.zeros((batch, shape[1], 0, shape[3]), np.float32) for name, shape in shapes.items()}


@contextmanager
def standing_in(model: Any, file: str | Path) -> Iterator[None]:
    """Let an export compute what a model's forward passes compute, also inside `generate`, as long as the block lasts.

    model: the one that was exported, or what it was cut from; its configuration and generation settings are used.
    """
    from headcount.structure import Substitutes

    graphs = OnnxModel(file)
    settings = getattr(model, "generation_config", None)
    cached = None if settings is None else settings.use_cache
    with Substitutes() as substitutes:
        if graphs.decoder is None:
            substitutes.put(model, _like(model.forward, partial(_one_graph, graphs)))
        else:
            source = _Source(graphs)
            substitutes.put(model, _like(model.forward, source.decode))
            encoder = model.get_encoder()
            substitutes.put(encoder, _like(encoder.forward, source.encode))
        try:
            if settings is not None:
                settings.use_cache = False  # the graphs' own cache is not one of transformers
            yield
        finally:
            if settings is not None:
                settings.use_cache = cached


def _like(forward: Callable[..., Any], instead: Callable[..., Any]) -> Callable[..., Any]:
    """A function with the signature of a model's own `forward`, which `generate` reads."""

    @wraps(forward)
    def call(**inputs: Any) -> Any:
        return instead(**inputs)

    return call


def _one_graph(graphs: OnnxModel, **inputs: Any) -> Any:
    """A forward pass of a model that is one graph: a classifier, or a generator that reads the whole text."""
    from transformers.modeling_outputs import CausalLMOutput

    arrays = _arrays(inputs)
    if not graphs.generates:
        return CausalLMOutput(logits=_tensor(graphs.forward(arrays)["logits"]))
    logits, _ = graphs.step(graphs.begin(arrays), arrays["input_ids"])
    return CausalLMOutput(logits=_tensor(logits))


class _Source:
    """The encoder's and the decoder's passes of an encoder-decoder.

    `generate` hands what the encoder put out to the decoder, with rows repeated for beams. What the export's encoder
    puts out are many arrays, so the number of the row is handed over in their place.
    """

    def __init__(self, graphs: OnnxModel) -> None:
        self.graphs = graphs
        self.state: Arrays = {}

    def encode(self, **inputs: Any) -> Any:
        import torch
        from transformers.modeling_outputs import BaseModelOutput

        arrays = _arrays(inputs)
        self.state = self.graphs.begin(arrays)
        rows = torch.arange(len(arrays["input_ids"]), dtype=torch.float32)
        return BaseModelOutput(last_hidden_state=rows[:, None, None].repeat(1, arrays["input_ids"].shape[1], 1))

    def decode(self, **inputs: Any) -> Any:
        from transformers.modeling_outputs import Seq2SeqLMOutput

        handed = inputs.pop("encoder_outputs", None)
        encoded = self.encode(**inputs) if handed is None else handed
        rows = encoded[0][:, 0, 0].long().numpy()
        state = {name: array[rows] for name, array in self.state.items()}
        logits, _ = self.graphs.step(state, inputs["decoder_input_ids"].numpy())
        return Seq2SeqLMOutput(logits=_tensor(logits))


def _arrays(inputs: Mapping[str, Any]) -> Arrays:
    return {name: value.numpy() for name, value in inputs.items() if hasattr(value, "numpy")}


def _tensor(array: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(array)


def part_path(file: Path, part: str) -> Path:
    """The file of an export's encoder or decoder.

    >>> part_path(Path("out/translator.onnx"), "encoder").as_posix()
    'out/translator.encoder.onnx'
    """
    return file.with_name(f"{file.stem}.{part}{file.suffix}")


def _opened(file: Path, threads: int | None) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if threads is not None:
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises errors of its own kinds
        raise HeadcountError(f"onnxruntime cannot open {file}: {first_line(error)}") from error


def _run(graph: Any, inputs: Mapping[str, np.ndarray]) -> Arrays:
    """Run a graph without the inputs that it does not have: the exporter drops those that change nothing."""
    taken = {node.name for node in graph.get_inputs()}
    names = [node.name for node in graph.get_outputs()]
    return dict(zip(names, graph.run(names, {k: v for k, v in inputs.items() if k in taken}), strict=True))
