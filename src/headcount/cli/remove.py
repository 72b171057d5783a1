"""`headcount remove MODEL --heads … --out DIR`: for who knows already which heads shall go."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    app.command("remove", no_args_is_help=True)(remove)


def remove(
    model: str = typer.Argument(..., help="Model directory or hub id."),
    heads: str = typer.Option(..., "--heads", help="Heads to remove: encoder.3.5,encoder.4.0,…"),
    out: str = typer.Option(..., "--out", help="Directory for the smaller model."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
    dtype: str = typer.Option("auto", "--dtype", help="auto (as saved), float32, bfloat16 or float16."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace a model that is in the directory already."),
) -> None:
    """Really remove heads, and save the smaller model.

    Example:

      headcount remove ./my-model --heads encoder.3.5,encoder.4.0 --out ./smaller
    """
    from pathlib import Path

    from headcount import surgery
    from headcount.cli.console import console, print_json, quiet
    from headcount.errors import HeadcountError, unknown
    from headcount.runs import model_signature, versions
    from headcount.structure import anatomy
    from headcount.surgery import fetch

    if dtype not in ("auto", "float32", "bfloat16", "float16"):
        raise typer.BadParameter(unknown("dtype", dtype, ("auto", "float32", "bfloat16", "float16")))
    if not heads.replace(",", " ").strip():
        raise typer.BadParameter("no heads are named; write for example --heads encoder.3.5,encoder.4.0")
    if Path(out).exists() and any(Path(out).iterdir() if Path(out).is_dir() else [out]) and not overwrite:
        raise HeadcountError(f"{out} exists already; choose another --out, or add --overwrite to replace it")
    with quiet():
        source = fetch(model)
        loaded = surgery.load(source, dtype=dtype)
        before = sum(parameter.numel() for parameter in loaded.parameters())
        removed = anatomy(loaded).check(heads)
        surgery.remove(loaded, removed, inplace=True)
        path = surgery.save(loaded, out)
    found = anatomy(loaded)
    after = sum(parameter.numel() for parameter in loaded.parameters())
    if as_json:
        print_json(
            {
                "signature": {"model": model_signature(loaded), "versions": versions()},
                "model": model,
                "removed": [str(head) for head in removed],
                "left": len(found.heads),
                "parameters_before": before,
                "parameters_after": after,
                "path": str(path),
            }
        )
        return
    console.print(
        f"Removed {len(removed)} heads, {len(found.heads)} left; "
        f"{before:,} parameters before, {after:,} after ({after / before - 1:+.1%})."
    )
    console.print(f"Saved to {path}. Load it with: headcount.load({str(path)!r})", soft_wrap=True)
