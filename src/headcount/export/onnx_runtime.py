"""Run an exported model with onnxruntime: whole, or as a generator does, step by step with its cache."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headcount.errors import HeadcountError, first_line
from headcount.files import refuse_irreplaceable

if TYPE_CHECKING:  # a file that exists already is refused before anything slow is imported
    import numpy as np

    Arrays = dict[str, np.ndarray]
FACTS = "headcount."  # what the names of our metadata begin with
OTHERS_PAST = "past_key_values"  # what other loaders call the cache that a graph takes in
# Files of the directories that other loaders run: one graph, or Optimum's three of an encoder-decoder.
MAIN, ENCODER, FIRST, LATER = "model.onnx", "encoder_model.onnx", "decoder_model.onnx", "decoder_with_past_model.onnx"
CONFIGURATIONS = ("config.json", "generation_config.json", "genai_config.json")
QUANTIZER = "onnx.quantize"  # how onnxruntime's tools sign what they write
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


def refuse_name(file: Path) -> None:
    """Refuse the name of a file that does not end as a graph's does."""
    if file.suffix != ".onnx":
        raise HeadcountError(f"{file} does not end in .onnx", advice="name the file to write, such as model.onnx")


def refuse_target(file: Path, overwrite: bool) -> None:
    """Refuse a name that is not a graph's, and, unless `overwrite`, files that exist already, one graph or two."""
    refuse_name(file)
    for name in (file, *(part_path(file, part) for part in ("encoder", "decoder"))):
        if name.is_dir():
            raise HeadcountError(f"{name} is a directory", advice="name a file")
        if name.exists() and not overwrite:
            raise HeadcountError(f"{name} exists already", advice="choose another file, or replace it with {overwrite}")


def refuse_directory(directory: Path, overwrite: bool) -> None:
    """Refuse a directory that holds something else than an earlier export, and that, too, without `overwrite`."""
    refuse_irreplaceable(directory)
    if directory.suffix in (".onnx", ".gguf"):
        raise HeadcountError(f"{directory} is the name of a file", advice="name a directory for {layout}")
    if not directory.is_dir() or not any(directory.iterdir()):
        return
    if any(directory.glob("*.safetensors")) or not any((directory / name).is_file() for name in (MAIN, ENCODER)):
        raise HeadcountError(f"{directory} holds something else than an export", advice="choose another directory")
    if not overwrite:
        raise HeadcountError(
            f"{directory} exists already", advice="choose another directory, or replace it with {overwrite}"
        )


def is_of_layout(name: str) -> bool:
    """Whether a file of such a directory is one that an export writes anew; others in it are kept."""
    return name.removesuffix(".data") in (MAIN, ENCODER, FIRST, LATER, *CONFIGURATIONS)


class OnnxModel:
    """A model that `export_onnx` wrote, opened in onnxruntime.

    file: as it was given to `export_onnx`; the two files of an encoder-decoder are found by it.
    threads: for computing one operator; all cores by default.
    """

    def __init__(self, file: str | Path, threads: int | None = None) -> None:
        require_onnx("onnxruntime")
        file = Path(file)
        self.files: tuple[Path, ...] = (file,)
        if file.is_file():
            self.main, self.decoder = open_graph(file, threads), None
        else:
            encoder, decoder = (part_path(file, part) for part in ("encoder", "decoder"))
            if not (encoder.is_file() and decoder.is_file()):
                raise HeadcountError(f"{file} does not exist, nor do {encoder.name} and {decoder.name} beside it")
            self.main, self.decoder = open_graph(encoder, threads), open_graph(decoder, threads)
            self.files = (encoder, decoder)
        inputs = {node.name for node in (self.decoder or self.main).get_inputs()}
        self.past = OTHERS_PAST if any(name.startswith(f"{OTHERS_PAST}.") for name in inputs) else "past"

    @property
    def generates(self) -> bool:
        """Whether it has a cache to decode with."""
        return bool(self.empty_past(1))

    def facts(self) -> dict[str, str]:
        """What `export_onnx` wrote about the model, as JSON, by name: `config`, `heads`, `signature`…"""
        found = self.main.get_modelmeta().custom_metadata_map
        return {name.removeprefix(FACTS): text for name, text in found.items() if name.startswith(FACTS)}

    @property
    def origin(self) -> dict[str, str]:
        """The `name`, `class` and `fingerprint` of the model that was exported."""
        return dict(json.loads(self.facts().get("signature", "{}")).get("model", {}))

    @property
    def is_int8(self) -> bool:
        """Whether the weights are in 8 bits."""
        return bool(self.main.get_modelmeta().producer_name == QUANTIZER)

    def forward(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """All outputs of a model that is one graph."""
        return run_graph(self.main, inputs)

    def begin(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """What decoding starts from: an empty cache and, for an encoder-decoder, its encoder's output."""
        batch = len(next(iter(inputs.values())))
        if self.decoder is None:
            return {**inputs, **self.empty_past(batch)}
        mask = {name: value for name, value in inputs.items() if name == "attention_mask"}
        return {**mask, **self.encode(inputs), **self.empty_past(batch)}

    def encode(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """What the decoder of an encoder-decoder reads of the source: the keys and values of its cross-attention."""
        return run_graph(self.main, inputs)

    def step(self, state: Arrays, ids: np.ndarray) -> tuple[np.ndarray, Arrays]:
        """The logits (B, T, vocabulary) of the next tokens, and the state after them."""
        import numpy as np

        named = {re.sub(r"^past\b", self.past, name): value for name, value in state.items()}
        if self.decoder is None:  # for a graph that does not derive them from the mask
            places = np.maximum(np.cumsum(state["attention_mask"], -1) - 1, 0)  # (B, P + T)
            named["position_ids"] = places[:, -ids.shape[1] :].astype(np.int64)
        outputs = run_graph(self.decoder or self.main, {**named, "input_ids": ids})
        present = {name.replace("present", "past"): value for name, value in outputs.items() if "present." in name}
        state = {**state, **present}
        if self.decoder is None:  # the mask is of all tokens so far: make room for one more
            mask = state["attention_mask"]
            state["attention_mask"] = np.concatenate([mask, np.ones_like(mask[:, :1])], axis=1)
        return outputs["logits"], state

    def cache_bytes(self) -> int:
        """Bytes of keys and values that it keeps for every decoded token."""
        return sum(array.shape[1] * array.shape[3] * array.itemsize for array in self.empty_past(1).values())

    def empty_past(self, batch: int) -> Arrays:
        """A cache that has seen nothing: each layer's keys and values, (B, heads, 0, head_dim)."""
        import numpy as np

        sizes = {}
        for node in (self.decoder or self.main).get_inputs():
            if node.name.startswith(f"{self.past}."):
                heads, size = node.shape[1::2] if isinstance(node.shape[1], int) else json.loads(self.facts()["cache"])
                sizes[node.name.replace(self.past, "past")] = (batch, heads, 0, size)
        return {name: np.zeros(size, np.float32) for name, size in sizes.items()}


def part_path(file: Path, part: str) -> Path:
    """The file of an export's encoder or decoder.

    >>> part_path(Path("out/translator.onnx"), "encoder").as_posix()
    'out/translator.encoder.onnx'
    """
    return file.with_name(f"{file.stem}.{part}{file.suffix}")


def open_graph(file: Path, threads: int | None) -> Any:
    """A session of onnxruntime for one file."""
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


def run_graph(graph: Any, inputs: Mapping[str, np.ndarray]) -> Arrays:
    """Run a graph without the inputs that it does not have: the exporter drops those that change nothing."""
    taken = {node.name for node in graph.get_inputs()}
    names = [node.name for node in graph.get_outputs()]
    return dict(zip(names, graph.run(names, {k: v for k, v in inputs.items() if k in taken}), strict=True))
