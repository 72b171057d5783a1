"""`headcount inspect MODEL`: where heads and neurons are, and the cost of each, read from its configuration."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Annotated, Any

import typer

from headcount.cli.options import AsJson, command, option


def register(app: typer.Typer) -> None:
    command(app, "inspect")(inspect)


def inspect(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Model directory or hub id; only config.json is read.")],
    length: Annotated[int, option("--length", min=1, help="Sequence length at which FLOPs are counted.")] = 128,
    as_json: AsJson = False,
) -> None:
    """Show a model's attention and feed-forward sites, parameters and FLOPs, without loading its weights.

    Examples:

      headcount inspect ./my-model

      headcount inspect meta-llama/Llama-3.1-70B --json
    """
    from headcount.cli.console import print_json, quiet

    with quiet():
        facts = describe(model, length)
    print_json(facts) if as_json else _print(facts)


def describe(name: str, length: int) -> dict[str, Any]:
    """Everything `inspect` prints, as JSON."""
    from headcount.export import open_onnx
    from headcount.runs import versions
    from headcount.structure import cache_bytes, whole_anatomy
    from headcount.surgery import build_empty, fetch, model_class, read_config

    if name.endswith(".onnx"):
        model = open_onnx(name)
    else:
        directory = fetch(name, ("config.json", "*/config.json", "modules.json"))
        config = read_config(directory)
        model = build_empty(config, model_class(config, directory))
    model.tie_weights()  # shared embeddings count once
    found = whole_anatomy(model).sites
    parameters = sum(parameter.numel() for parameter in model.parameters())
    sites = [_site(site, length) for site in found if site.unit == "head"]
    layers = [_layer(site, length) for site in found if site.unit == "neuron"]
    return {
        "signature": {"model": name, "versions": versions()},
        "model": name,
        "class": type(model).__name__,
        "sites": sites,
        "ffn_sites": layers,
        "heads": sum(site["heads"] for site in sites),
        "neurons": sum(layer["neurons"] for layer in layers),
        "parameters": parameters,
        "attention_share": sum(site["parameters"] for site in sites) / max(parameters, 1),
        "ffn_share": sum(layer["parameters"] for layer in layers) / max(parameters, 1),
        "length": length,
        "cache_bytes": cache_bytes(model),
        "cache_bytes_original": cache_bytes(model, original=True),
    }


def _site(site: Any, length: int) -> dict[str, Any]:
    """A head counts its own rows and columns; shared keys and values go only with the last head of their group."""
    heads, size = len(site.kept), site.head_dim
    each = site.parameters_of(site.kept[:1]) if site.group == 1 else _query_parameters(site)
    return {
        "kind": site.kind,
        "layer": site.layer,
        "heads": heads,
        "head_dim": size,
        "kv_heads": len(site.kv_kept),
        "parameters": _parameters(site),
        "head_parameters": each if heads else 0,
        "head_flops": (2 * length * each + 4 * length**2 * size) if heads else 0,
        "original_heads": site.original,
        "also_layers": list(site.also_layers),
    }


def _layer(site: Any, length: int) -> dict[str, Any]:
    """A neuron counts its rows in the projections that make it, and its column in the one that reads it."""
    each = site.parameters_of(site.kept[:1])
    return {
        "kind": site.kind,
        "layer": site.layer,
        "neurons": len(site.kept),
        "parameters": _parameters(site),
        "neuron_parameters": each,
        "neuron_flops": 2 * length * each,
        "original_neurons": site.original,
        "also_layers": list(site.also_layers),
    }


def _parameters(site: Any) -> int:
    modules = [site.output, *(module for _, module in site.inputs)]
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


def _query_parameters(site: Any) -> int:
    """Parameters of one query head of a group, without the keys and values that it shares."""
    if len(site.kept) < 2:
        return site.parameters_of(site.kept)
    group = [index for index in site.kept if index // site.group == site.kv_kept[0]]
    if len(group) > 1:
        return site.parameters_of(group) - site.parameters_of(group[1:])
    return site.parameters_of(group)


def _print(facts: dict[str, Any]) -> None:
    from headcount.cli.console import console, make_table

    columns = ("site", "heads", "size", "kv", "parameters", "per head", "FLOPs/head")
    table = make_table(f"{facts['model']} ({facts['class']})", *columns)
    for span, key in _alike(facts["sites"]):
        removed = f" of {key['original_heads']}" if key["heads"] < key["original_heads"] else ""
        table.add_row(
            span,
            f"{key['heads']}{removed}",
            str(key["head_dim"]),
            str(key["kv_heads"]),
            f"{key['parameters']:,}",
            f"{key['head_parameters']:,}",
            f"{key['head_flops'] / 1e6:,.2f}M",
        )
    console.print(table)
    if facts["ffn_sites"]:
        console.print(_layers(facts["ffn_sites"]))
    for site in facts["sites"]:
        if site["also_layers"]:
            layers = ", ".join(map(str, site["also_layers"]))
            console.print(
                f"{site['kind']}.{site['layer']} also serves layers {layers}: they share one module.", soft_wrap=True
            )
    console.print(
        f"{facts['heads']:,} heads and {facts['neurons']:,} neurons, {facts['parameters']:,} parameters: "
        f"{facts['attention_share']:.1%} in attention, {facts['ffn_share']:.1%} in feed-forward layers. FLOPs are for "
        f"a text of {facts['length']} tokens.",
        soft_wrap=True,
    )
    if facts["cache_bytes"]:
        before = facts["cache_bytes_original"]
        lost = f", {before:,} before heads were removed" if before != facts["cache_bytes"] else ""
        console.print(f"Cache: {facts['cache_bytes']:,} bytes per token{lost}.", soft_wrap=True)
    if any(site["kv_heads"] < site["heads"] for site in facts["sites"]):
        shared = "Groups of heads share keys and values, which are removed with the last head of a group."
        console.print(shared, soft_wrap=True)


def _layers(layers: list[dict[str, Any]]) -> Any:
    """The table of feed-forward sites."""
    from headcount.cli.console import make_table

    table = make_table("feed-forward layers", "site", "neurons", "parameters", "per neuron", "FLOPs/neuron")
    for span, key in _alike(layers):
        removed = f" of {key['original_neurons']:,}" if key["neurons"] < key["original_neurons"] else ""
        table.add_row(
            span,
            f"{key['neurons']:,}{removed}",
            f"{key['parameters']:,}",
            f"{key['neuron_parameters']:,}",
            f"{key['neuron_flops'] / 1e6:,.2f}M",
        )
    return table


def _alike(sites: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Sites that differ only in their layer, as one: `encoder.0-5`."""
    for _, group in groupby(sites, key=lambda site: {**site, "layer": None}):
        first, *rest = group
        span = f"{first['layer']}-{rest[-1]['layer']}" if rest else str(first["layer"])
        yield f"{first['kind']}.{span}", first
