"""What the tests know of the families without asking headcount: where heads and neurons lie, and what they weigh.

A head or neuron is silenced here by zeroing its columns of the output projection, found by a table of module names;
what it holds is counted from the shapes of the projections beside it. Nothing in this file imports headcount.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import zoo

BERT = {"encoder": r"(?:encoder|transformer)\.layer\.(\d+)\.attention\.(?:output\.dense|out_lin|attn\.o)"}
ALBERT = {"encoder": r"albert_layer_groups\.(\d+)\.albert_layers\.0\.attention\.dense"}
GPT = {"decoder": r"(?:layers|h)\.(\d+)\.(?:self_attn|attn|attention|self_attention)\.(?:o_proj|out_proj|c_proj|dense)"}
BART = {
    "encoder": r"encoder\.layers\.(\d+)\.self_attn\.out_proj",
    "decoder": r"decoder\.layers\.(\d+)\.self_attn\.out_proj",
    "cross": r"decoder\.layers\.(\d+)\.encoder_attn\.out_proj",
}
T5 = {
    "encoder": r"encoder\.block\.(\d+)\.layer\.0\.SelfAttention\.o",
    "decoder": r"decoder\.block\.(\d+)\.layer\.0\.SelfAttention\.o",
    "cross": r"decoder\.block\.(\d+)\.layer\.1\.EncDecAttention\.o",
}
VIT = {"encoder": r"layers\.(\d+)\.attention\.o_proj"}
CLIP = {kind: rf"{kind}_model\.encoder\.layers\.(\d+)\.self_attn\.out_proj" for kind in ("text", "vision")}
NEURONS = {  # the output projections of feed-forward layers, by the same kinds
    "text": {"encoder": r"(?:encoder|transformer)\.layer\.(\d+)\.(?:output\.dense|ffn\.lin2)"},
    "albert": {"encoder": r"albert_layer_groups\.(\d+)\.albert_layers\.0\.ffn_output"},
    "prompt": {"decoder": r"(?:layers|h)\.(\d+)\.(?:mlp\.(?:c_proj|down_proj|dense_4h_to_h)|fc2)"},
    "pair": {kind: rf"{kind}\.layers\.(\d+)\.fc2" for kind in ("encoder", "decoder")},
    "t5": {
        "encoder": r"encoder\.block\.(\d+)\.layer\.1\.DenseReluDense\.wo",
        "decoder": r"decoder\.block\.(\d+)\.layer\.2\.DenseReluDense\.wo",
    },
    "image": {"encoder": r"layers\.(\d+)\.mlp\.fc2"},
    "image+text": {kind: rf"{kind}_model\.encoder\.layers\.(\d+)\.mlp\.fc2" for kind in ("text", "vision")},
}
MAKE_NEURONS = {  # what stands before each of these projections
    "output.dense": ("intermediate.dense",), "lin2": ("lin1",), "ffn_output": ("ffn",), "c_proj": ("c_fc",),
    "dense_4h_to_h": ("dense_h_to_4h",), "down_proj": ("gate_proj", "up_proj", "gate_up_proj"), "fc2": ("fc1",),
    "wo": ("wi", "wi_0", "wi_1"),
}  # fmt: skip
INPUTS = re.compile(
    r"(self\.)?(query|key|value|[qkv]_proj|[qkv]_lin|[qkv]|(pos_)?(query|key|value)_proj|c_attn|query_key_value|qkv_proj)"
)


class Place(NamedTuple):
    """One site as the test sees it; a neuron is a head of size 1."""

    output: str  # path of the output projection
    head_dim: int
    group: int  # query heads per key-value head
    heads: int


def places(model: nn.Module, name: str) -> dict[str, Place]:
    """Every attention site of a zoo model that has all its heads, by its name (`encoder.0`)."""
    reads = zoo.ZOO[name].reads
    table = {"pair": BART, "audio": BART, "prompt": GPT, "image": VIT, "image+text": CLIP, "text": BERT}[reads]
    table = T5 if name in ("t5", "mt5") else ALBERT if "albert" in name else table
    return {
        f"{kind}.{layer}": _place(model, kind, path, model.get_submodule(path))
        for kind, layer, path in _matches(model, name, table)
    }


def neuron_places(model: nn.Module, name: str) -> dict[str, Place]:
    """Every feed-forward site of a zoo model that has all its neurons, by its name (`encoder_ffn.0`)."""
    reads = zoo.ZOO[name].reads
    table = NEURONS["t5" if name in ("t5", "mt5") else "albert" if "albert" in name else reads.replace("audio", "pair")]
    found = {}
    for kind, layer, path in _matches(model, name, table):
        module: Any = model.get_submodule(path)
        count = module.weight.shape[0 if type(module).__name__ == "Conv1D" else 1]
        found[f"{kind}_ffn.{layer}"] = Place(path, 1, 1, count)
    return found


def _matches(model: nn.Module, name: str, table: dict[str, str]) -> list[tuple[str, int, str]]:
    """Kind, layer and path of the modules that a table names."""
    found = []
    for kind, pattern in table.items():
        for path, _ in model.named_modules():
            match = re.search(rf"(?:^|\.){pattern}$", path)
            if match is None and kind in ("text", "vision"):  # one tower alone has no prefix
                alone = pattern.partition("encoder\\.")[2]
                tower = type(model).__name__.startswith(f"CLIP{kind.title()}")
                match = re.search(rf"(?:^|\.){alone}$", path) if tower else None
            if match is not None:
                found.append((kind, int(match[1]) * (2 if name == "albert-groups" else 1), path))
    return found


def _place(model: Any, kind: str, path: str, module: Any) -> Place:
    config = model.config
    config = getattr(config, f"{kind}_config", config) if kind in ("text", "vision") else config
    side = {"encoder": "encoder", "decoder": "decoder", "cross": "decoder"}.get(kind)
    heads = getattr(config, f"{side}_attention_heads", None) or config.num_attention_heads
    width = module.weight.shape[0] if type(module).__name__ == "Conv1D" else module.weight.shape[1]
    return Place(path, width // heads, heads // (getattr(config, "num_key_value_heads", None) or heads), heads)


def all_heads(where: dict[str, Place]) -> list[str]:
    return [f"{site}.{index}" for site, place in where.items() for index in range(place.heads)]


def zeroed(model: nn.Module, name: str, heads: Iterable[Any]) -> Any:
    """A copy whose output projections ignore these heads and neurons: their columns are zero."""
    where = {**places(model, name), **neuron_places(model, name)}
    model = copy.deepcopy(model)
    for head in map(str, heads):
        site, _, index = head.rpartition(".")
        place = where[site]
        weight: Any = model.get_submodule(place.output).weight
        columns = slice(int(index) * place.head_dim, (int(index) + 1) * place.head_dim)
        with torch.no_grad():
            if type(model.get_submodule(place.output)).__name__ == "Conv1D":
                weight[columns] = 0
            else:
                weight[:, columns] = 0
    return model


def weight_of(model: nn.Module, name: str, heads: Iterable[Any]) -> int:
    """How many parameters these units hold together: a shared key-value head goes with its last query head."""
    gone: dict[str, set[int]] = {}
    for head in map(str, heads):
        site, _, index = head.rpartition(".")
        gone.setdefault(site, set()).add(int(index))
    total = 0
    for site, place in places(model, name).items():
        lost = gone.get(site, set())
        stays = set(range(place.heads)) - lost
        keys = place.heads // place.group - len({index // place.group for index in stays})
        output: Any = model.get_submodule(place.output)
        hidden = output.weight.numel() // (place.heads * place.head_dim)
        total += len(lost) * place.head_dim * hidden
        around = re.sub(r"(output\.dense|[^.]+)$", "", place.output)
        for path, module in model.named_modules():
            short = path.removeprefix(around) if path.startswith(around) else ""
            if not INPUTS.fullmatch(short):
                continue
            fused = re.search(r"c_attn|query_key_value|qkv_proj", short)
            shared = re.search(r"^(k|v)_proj$|\.(key|value)$", short)
            rows = len(lost) + 2 * keys if fused else keys if shared else len(lost)
            width = hidden + (getattr(module, "bias", None) is not None)
            total += rows * place.head_dim * width
    for site, place in neuron_places(model, name).items():
        total += len(gone.get(site, ())) * _weight_of_neuron(model, place)
    return total


def _weight_of_neuron(model: nn.Module, place: Place) -> int:
    ending = next(ending for ending in MAKE_NEURONS if place.output.endswith(f".{ending}"))
    modules = dict(model.named_modules())
    output: Any = modules[place.output]
    total = output.weight.numel() // place.heads  # its column
    for maker in MAKE_NEURONS[ending]:
        module: Any = modules.get(place.output.removesuffix(ending) + maker)
        if module is not None:
            total += sum(parameter.numel() for parameter in module.parameters()) // place.heads
    return total


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def off_by(one: Tensor, other: Tensor) -> float:
    """The largest difference, relative where numbers are larger than one."""
    assert one.shape == other.shape
    return float(((one - other).abs() / other.abs().clamp(min=1)).max()) if one.numel() else 0.0


def run(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """The model's main output, padding left out."""
    with torch.no_grad():
        return zoo.main_output(model(**batch), batch.get("attention_mask"))


def hooks_of(model: nn.Module) -> dict[tuple[str, str], int]:
    """All hooks of all modules, counted."""
    kinds = ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_backward_pre_hooks")
    return {(path, kind): len(getattr(module, kind)) for path, module in model.named_modules() for kind in kinds}
