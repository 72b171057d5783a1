"""What the tests know of the families without asking headcount: where heads lie, and what they weigh.

A head is silenced here by zeroing its columns of the output projection, found by a table of module names; what it
holds is counted from the shapes of the projections beside it. Nothing in this file imports headcount.
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
INPUTS = re.compile(
    r"(self\.)?(query|key|value|[qkv]_proj|[qkv]_lin|[qkv]|(pos_)?(query|key|value)_proj|c_attn|query_key_value|qkv_proj)"
)


class Place(NamedTuple):
    """One attention site as the test sees it."""

    output: str  # path of the output projection
    head_dim: int
    group: int  # query heads per key-value head
    heads: int


def places(model: nn.Module, name: str) -> dict[str, Place]:
    """Every site of a zoo model that has all its heads, by its name (`encoder.0`)."""
    reads = zoo.ZOO[name].reads
    table = {"pair": BART, "audio": BART, "prompt": GPT, "image": VIT, "image+text": CLIP, "text": BERT}[reads]
    table = T5 if name in ("t5", "mt5") else ALBERT if "albert" in name else table
    found: dict[str, Place] = {}
    for kind, pattern in table.items():
        for path, module in model.named_modules():
            match = re.search(rf"(?:^|\.){pattern}$", path)
            if match is None and kind in ("text", "vision"):  # one tower alone has no prefix
                tower = type(model).__name__.startswith(f"CLIP{kind.title()}")
                match = re.search(r"(?:^|\.)layers\.(\d+)\.self_attn\.out_proj$", path) if tower else None
            if match is not None:
                layer = int(match[1]) * (2 if name == "albert-groups" else 1)
                found[f"{kind}.{layer}"] = _place(model, kind, path, module)
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
    """A copy whose output projections ignore these heads: their columns are zero."""
    where = places(model, name)
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
    """How many parameters these heads hold together: a shared key-value head goes with its last query head."""
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
