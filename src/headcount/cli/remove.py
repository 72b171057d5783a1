"""`headcount remove MODEL --heads … --out DIR`: remove the units you name, and save the smaller model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from headcount.cli.options import AsJson, Model, Overwrite, command, listed, option

Saved = Literal["auto", "float32", "bfloat16", "float16"]


def register(app: typer.Typer) -> None:
    command(app, "remove")(remove)


def remove(
    model: Model,
    heads: Annotated[str, option("--heads", help="Units to remove: encoder.3.5,encoder_ffn.4.0-511…")],
    out: Annotated[str, option("--out", help="Directory for the smaller model.")],
    as_json: AsJson = False,
    dtype: Annotated[Saved, option("--dtype", help="Precision to save in; auto keeps the original.")] = "auto",
    overwrite: Overwrite = False,
) -> None:
    """Remove heads, neurons or whole sublayers from the weights, and save the smaller model.

    Examples:

      headcount remove ./my-model --heads encoder.3.5,encoder.4.0 --out ./smaller

      headcount remove ./translator --heads cross.0.1 --out ./smaller --dtype float16 --overwrite

      headcount remove ./my-model --heads encoder.5,encoder_ffn.5.0-511 --out ./smaller
    """
    from headcount.cli.command_run import refuse_missing_model
    from headcount.cli.console import console, print_json
    from headcount.errors import HeadcountError
    from headcount.heads import count_units, parse_units
    from headcount.model_directory import fetch

    if not listed(heads):
        raise typer.BadParameter("--heads is empty; write for example --heads encoder.3.5,encoder.4.0")
    if Path(out).exists() and any(Path(out).iterdir() if Path(out).is_dir() else [out]) and not overwrite:
        raise HeadcountError(f"{out} already exists", advice="choose another {out}, or replace it with {overwrite}")
    parse_units(heads)
    refuse_missing_model(model)

    from headcount import surgery
    from headcount.runs import model_signature, versions
    from headcount.structure import whole_anatomy

    loaded = surgery.load(fetch(model), dtype=dtype)
    before = sum(parameter.numel() for parameter in loaded.parameters())
    found = whole_anatomy(loaded)
    removed = found.check(heads)
    names = found.written(removed)
    surgery.remove(loaded, removed, inplace=True)
    evidence = surgery.Evidence(command=["remove", model, "--heads", heads, "--out", out])
    path = surgery.save(loaded, out, evidence=evidence)
    left = whole_anatomy(loaded).heads
    neurons = sum(head.is_neuron for head in left)
    after = sum(parameter.numel() for parameter in loaded.parameters())
    if as_json:
        print_json(
            {
                "model": model,
                "removed": names,
                "left": len(left) - neurons,
                "neurons_left": neurons,
                "parameters_before": before,
                "parameters_after": after,
                "path": str(path),
                "signature": {"model": model_signature(loaded), "versions": versions()},
            }
        )
        return
    console.print(
        f"Removed {count_units(removed)}, {_left(left, removed)} left; "
        f"{before:,} parameters before, {after:,} after ({after / before - 1:+.1%})."
    )
    console.print(f"Saved to {path}. Load it with: headcount.load({str(path)!r})", soft_wrap=True)


def _left(left: tuple[Any, ...], removed: tuple[Any, ...]) -> str:
    """How much is left of what some was removed from."""
    from headcount.heads import count_units

    if not any(head.is_neuron for head in removed):
        return f"{sum(not head.is_neuron for head in left)}"
    return count_units(left)
