"""`headcount inspect MODEL`: where heads and neurons are, and the cost of each, read from its configuration."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Annotated, Any

import typer

from headcount.cli.options import AsJson, command, option
from headcount.errors import counted


@command()
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
    from headcount.cli.command_run import refuse_missing_model
    from headcount.cli.console import print_json

    refuse_missing_model(model)
    facts = describe(model, length)
    print_json(facts) if as_json else _print(facts)


def describe(name: str, length: int) -> dict[str, Any]:
    """Everything `inspect` prints, as JSON."""
    from headcount.model_directory import DESCRIPTION, fetch
    from headcount.runs import versions
    from headcount.structure import cache_bytes, whole_anatomy
    from headcount.surgery import build_empty, model_class, read_config

    if name.endswith(".onnx"):
        from headcount.export import open_onnx

        model = open_onnx(name)
    else:
        directory = fetch(name, DESCRIPTION)
        config = read_config(directory)
        model = build_empty(config, model_class(config, directory))
    model.tie_weights()  # shared embeddings count once
    found = whole_anatomy(model).sites
    parameters = sum(parameter.numel() for parameter in model.parameters())
    sites = [_site(site, length) for site in found if site.unit == "head"]
    layers = [_layer(site, length) for site in found if site.unit == "neuron"]
    return {
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
        "signature": {"model": name, "versions": versions()},
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
    from headcount.cli.console import console, print_table

    print_table(
        f"{facts['model']} ({facts['class']})",
        ["site", "heads", "size", "kv", "parameters", "per head", "FLOPs/head"],
        [
            [
                *(span, _left(key, "heads"), str(key["head_dim"]), str(key["kv_heads"]), f"{key['parameters']:,}"),
                *(f"{key['head_parameters']:,}", f"{key['head_flops'] / 1e6:,.2f}M"),
            ]
            for span, key in _alike(facts["sites"])
        ],
        drop=["FLOPs/head", "kv", "per head"],
    )
    if facts["ffn_sites"]:
        print_table(
            "feed-forward layers",
            ["site", "neurons", "parameters", "per neuron", "FLOPs/neuron"],
            [
                [
                    *(span, _left(key, "neurons"), f"{key['parameters']:,}", f"{key['neuron_parameters']:,}"),
                    f"{key['neuron_flops'] / 1e6:,.2f}M",
                ]
                for span, key in _alike(facts["ffn_sites"])
            ],
            drop=["FLOPs/neuron", "per neuron"],
        )
    for site in facts["sites"]:
        if site["also_layers"]:
            layers = ", ".join(map(str, site["also_layers"]))
            console.print(
                f"{site['kind']}.{site['layer']} also serves layers {layers}: they share one module.", soft_wrap=True
            )
    console.print(
        f"{counted(facts['heads'], 'head')} and {counted(facts['neurons'], 'neuron')}, "
        f"{counted(facts['parameters'], 'parameter')}: "
        f"{facts['attention_share']:.1%} in attention, {facts['ffn_share']:.1%} in feed-forward layers. FLOPs are for "
        f"a text of {counted(facts['length'], 'token')}.",
        soft_wrap=True,
    )
    if facts["cache_bytes"]:
        before = facts["cache_bytes_original"]
        lost = f", {before:,} before heads were removed" if before != facts["cache_bytes"] else ""
        console.print(f"Cache: {facts['cache_bytes']:,} bytes per token{lost}.", soft_wrap=True)
    if any(site["kv_heads"] < site["heads"] for site in facts["sites"]):
        shared = "Groups of heads share keys and values, which are removed with the last head of a group."
        console.print(shared, soft_wrap=True)


def _left(site: dict[str, Any], units: str) -> str:
    """How many heads or neurons a site has, and of how many if some were removed."""
    original = site[f"original_{units}"]
    return f"{site[units]:,}{f' of {original:,}' if site[units] < original else ''}"


def _alike(sites: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Sites that differ only in their layer, as one: `encoder.0-5`."""
    for _, group in groupby(sites, key=lambda site: {**site, "layer": None}):
        first, *rest = group
        span = f"{first['layer']}-{rest[-1]['layer']}" if rest else str(first["layer"])
        yield f"{first['kind']}.{span}", first
