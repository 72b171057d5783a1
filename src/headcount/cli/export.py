"""`headcount export MODEL FILE.onnx`: a model for onnxruntime, compared with PyTorch before it is written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headcount.cli.options import Overwrite, Setup, command, option
from headcount.errors import counted

EXAMPLES, BATCH = 16, 4  # of the data that the export is compared on


def register(app: typer.Typer) -> None:
    command(app, "export", without=("metric", "beams", "dtype", "device"))(export)


def export(
    setup: Setup,
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="The file to write, ending in .onnx (or --out).")
    ] = None,
    out: Annotated[str | None, option("--out", "-o", help="The same file, as an option.")] = None,
    data: Annotated[str | None, option("--data", help="Compare the export on this data, too.")] = None,
    external: Annotated[
        bool | None,
        option("--external-data/--one-file", help="Weights beside the graph; by default if they are large."),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Export a model, pruned or not, to ONNX, and check that onnxruntime computes the same.

    Examples:

      headcount export ./pruned pruned.onnx

      headcount export ./translator translator.onnx --data val.en --target-data val.fr
    """
    from headcount.export import refuse_target, require_onnx

    if (target := file or out) is None:
        raise typer.BadParameter("the file to write is missing: headcount export MODEL FILE.onnx")
    if file is not None and out is not None:
        raise typer.BadParameter(f"two files to write are given: {file} and --out {out}")
    refuse_target(Path(target), overwrite)
    require_onnx()

    from headcount.cli.console import console, print_json
    from headcount.cli.loading import load_tokenizer, load_weights
    from headcount.export import export_onnx
    from headcount.model_directory import fetch
    from headcount.runs import model_signature, versions

    model = load_weights(setup.model, "cpu", "float32")
    inputs: list[dict[str, Any]] = []
    compared_on = 0
    if data is not None:
        task = setup.load_task(data, load_tokenizer(fetch(setup.model), setup.model), model)
        chosen = range(min(EXAMPLES, len(task)))
        inputs = [task.batch(chosen[start : start + BATCH]).inputs for start in range(0, len(chosen), BATCH)]
        compared_on = len(chosen)
    written = export_onnx(model, target, inputs=inputs, external_data=external, overwrite=overwrite)
    files = [str(path) for path in (*written.graphs, *written.weights)]
    if setup.as_json:
        print_json(
            {
                "model": setup.model,
                "path": str(written.file),
                "files": files,
                "difference": written.difference,
                "n": compared_on,
                "signature": {"model": model_signature(model), "versions": versions()},
            }
        )
        return
    console.print(f"Wrote {', '.join(files)}.", soft_wrap=True)
    compared = "random inputs" + (f" and {counted(compared_on, 'example')} of yours" if compared_on else "")
    console.print(f"Its outputs differ from PyTorch's by at most {written.difference:.1g}, on {compared}.")
