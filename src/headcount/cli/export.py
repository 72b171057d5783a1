"""`headcount export MODEL FILE.onnx`: a model for onnxruntime, compared with PyTorch before it is written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headcount.cli.setup import Setup, command

EXAMPLES, BATCH = 16, 4  # of your data, that the export is compared on


def register(app: typer.Typer) -> None:
    command(app, "export")(export)


def export(
    setup: Setup,
    file: Annotated[str | None, typer.Argument(help="The file to write, ending in .onnx (or --out).")] = None,
    data: Annotated[str | None, typer.Option("--data", help="Your data: the export is compared on it too.")] = None,
    external: Annotated[
        bool | None, typer.Option("--external-data/--one-file", help="Weights beside the graph; guessed by size.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that are there already.")] = False,
) -> None:
    """Export a model, pruned or not, to ONNX, and make sure that onnxruntime computes the same with it.

    Examples:

      headcount export ./pruned pruned.onnx

      headcount export ./translator translator.onnx --data val.en --target-data val.fr
    """
    from headcount.cli.console import console, print_json
    from headcount.cli.loading import load_tokenizer, load_weights
    from headcount.export import export_onnx, refuse_target, require_onnx
    from headcount.runs import model_signature, versions
    from headcount.surgery import fetch

    target = file or setup.out
    if target is None:
        raise typer.BadParameter("name the file to write: headcount export MODEL FILE.onnx")
    require_onnx()
    refuse_target(Path(target), overwrite)
    model = load_weights(setup.model, "cpu", "float32")
    inputs: list[dict[str, Any]] = []
    if data is not None:
        task = setup.load_task(data, load_tokenizer(fetch(setup.model), setup.model), model)
        chosen = range(min(EXAMPLES, len(task)))
        inputs = [task.batch(chosen[start : start + BATCH]).inputs for start in range(0, len(chosen), BATCH)]
    written = export_onnx(model, target, inputs=inputs, external_data=external, overwrite=overwrite)
    files = [str(path) for path in (*written.graphs, *written.weights)]
    if setup.as_json:
        print_json(
            {
                "signature": {"model": model_signature(model), "versions": versions()},
                "model": setup.model,
                "path": str(written.file),
                "files": files,
                "difference": written.difference,
                "n": min(EXAMPLES, len(task)) if data is not None else 0,
            }
        )
        return
    console.print(f"Wrote {', '.join(files)}.", soft_wrap=True)
    compared = "random inputs" + (f" and {len(inputs)} batches of yours" if inputs else "")
    console.print(f"In onnxruntime it differs from PyTorch by {written.difference:.1g} at most, on {compared}.")
