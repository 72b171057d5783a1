"""`headcount export MODEL FILE`: for onnxruntime or llama.cpp; `headcount push DIR REPO`: on the hub, with its card."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from headcount.cli.options import AsJson, Overwrite, Setup, command, option, usage
from headcount.errors import HeadcountError, counted

Gguf = Literal["f32", "f16", "q8_0"]
Loader = Literal["optimum", "genai"]
EXAMPLES, BATCH = 16, 4  # of the data that the export is compared on


@command(without=("metric", "beams", "dtype", "device", "dry_run"))
def export(
    setup: Setup,
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="The file to write, ending in .onnx (or --out).")
    ] = None,
    out: Annotated[str | None, option("--out", "-o", help="The same file, as an option.")] = None,
    data: Annotated[
        str | None, option("--data", help="Compare the export on this data, too; with --int8, measure it there.")
    ] = None,
    gguf: Annotated[
        Gguf | None, option("--gguf", help="Write GGUF for llama.cpp instead, with matrices of this type.")
    ] = None,
    int8: Annotated[bool, option("--int8", help="8-bit weights, quantized per channel by onnxruntime.")] = False,
    layout: Annotated[
        Loader | None, option("--layout", help="Write a directory that Optimum or onnxruntime-genai loads instead.")
    ] = None,
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

      headcount export ./pruned pruned.int8.onnx --int8 --data dev.tsv

      headcount export ./pruned pruned-onnx --layout optimum

      headcount export ./llama llama.gguf --gguf f16
    """
    from headcount.export import refuse_directory, refuse_name, refuse_target, require_onnx

    if (target := file or out) is None:
        raise typer.BadParameter("the file to write is missing: headcount export MODEL FILE.onnx")
    if file is not None and out is not None:
        raise typer.BadParameter(f"two files to write are given: {file} and --out {out}")
    if setup.model.endswith(".onnx"):
        raise typer.BadParameter(f"{setup.model} is an export already; name the directory of a saved model")
    if gguf is not None and layout is not None:
        raise typer.BadParameter(f"--gguf {gguf} writes one file, and --layout {layout} a directory: choose one")
    if gguf is not None:
        _gguf(setup, Path(target), gguf, overwrite)
        return
    if layout is None:
        with usage():
            refuse_name(Path(target))
        refuse_target(Path(target), overwrite)
    else:
        refuse_directory(Path(target), overwrite)
    require_onnx()

    from headcount.cli.console import console, print_json
    from headcount.cli.model_loading import load_reader, load_weights
    from headcount.export import export_onnx
    from headcount.model_directory import fetch
    from headcount.runs import model_signature, versions

    model = load_weights(setup.model, "cpu", "float32")
    if layout is not None and int8 and data is not None and model.config.is_encoder_decoder:
        raise HeadcountError(
            "the three files of an encoder-decoder are for Optimum, and cannot be measured here",
            advice="leave out {data}, or measure an export without {layout}",
        )
    task, inputs = None, list[dict[str, Any]]()
    reader = None if data is None and layout is None else load_reader(fetch(setup.model), setup.model, model)
    if data is not None:
        task = setup.load_task(data, reader, model)
        chosen = range(min(EXAMPLES, len(task)))
        inputs = [task.batch(chosen[start : start + BATCH]).inputs for start in range(0, len(chosen), BATCH)]
    given: dict[str, Any] = {"external_data": external, "overwrite": overwrite, "layout": layout, "tokenizer": reader}
    written = export_onnx(model, target, inputs=inputs, int8=int8, **given)
    result: dict[str, Any] = {
        "model": setup.model,
        "path": str(written.file),
        "files": [str(path) for path in (*written.graphs, *written.weights)],
        "size": written.size,
        "difference": written.difference,
        "int8_difference": written.int8_difference,
        "n": sum(len(next(iter(batch.values()))) for batch in inputs),
    }
    if int8 and task is not None:
        result |= _measured(model, written.file if layout is None else written.graphs[0], task)
    result["signature"] = {"model": model_signature(model), "versions": versions()}
    if setup.as_json:
        print_json(result)
        return
    yours = f" and {counted(result['n'], 'example')} of yours" if inputs and not int8 else ""
    compared = f"random inputs{yours}"
    console.print(f"Wrote {', '.join(result['files'])}: {written.size / 1e6:,.1f} MB.", soft_wrap=True)
    console.print(f"Its outputs differ from PyTorch's by at most {written.difference:.1g}, on {compared}.")
    if int8:
        apart = layout is not None and model.config.is_encoder_decoder
        _print_int8(result, task, "with --data and without --layout" if apart else "with --data")


def _gguf(setup: Setup, file: Path, dtype: str, overwrite: bool) -> None:
    """Write the file for llama.cpp, and say how exact it is."""
    from headcount.cli.console import console, print_json
    from headcount.cli.model_loading import load_model
    from headcount.export import export_gguf, refuse_gguf, require_gguf
    from headcount.runs import model_signature, versions

    require_gguf()
    refuse_gguf(file, overwrite)
    model, tokenizer = load_model(setup.model, "cpu", "float32")
    written = export_gguf(model, file, tokenizer, dtype=dtype, overwrite=overwrite)
    facts = {"path": str(file), "graph": written.graph, "size": written.size, "difference": written.difference}
    if setup.as_json:
        signature = {"model": model_signature(model), "versions": versions()}
        print_json({"model": setup.model, **facts, "signature": signature})
        return
    console.print(f"Wrote {file}: {written.size / 1e6:,.1f} MB, for llama.cpp's {written.graph} graph.", soft_wrap=True)
    console.print(f"Log probabilities of likely next tokens differ from PyTorch's by at most {written.difference:.2g}.")


def _measured(model: Any, file: Path, task: Any) -> dict[str, Any]:
    """The metric of the model and of its export on the same examples, the change with its interval, and both speeds."""
    from headcount.bench import measure_speed
    from headcount.cli.console import progress
    from headcount.evaluation import evaluate
    from headcount.export import open_onnx
    from headcount.stats import paired_test

    exported = open_onnx(file)
    with progress("measuring") as bar:
        before = evaluate(model, task, progress=lambda share: bar(share / 2))
        after = evaluate(exported, task, progress=lambda share: bar(0.5 + share / 2))
    test = paired_test(before.of(), after.of()[None], task.metric)
    size = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    return {
        **task.metric.facts(),
        "n": len(task),
        "before": before.score(),
        "after": after.score(),
        "change": float(test.change[0]),
        "low": float(test.low[0]),
        "high": float(test.high[0]),
        "size_before": size,
        "speed": vars(measure_speed(model, exported, task)),
    }


def _print_int8(result: dict[str, Any], task: Any, how: str) -> None:
    from headcount.cli.console import console
    from headcount.pruning import before_and_after

    console.print(f"In 8 bits, which are not exact, they differ by up to {result['int8_difference']:.2g}.")
    if task is None:
        console.print(f"Measure what that costs: export it {how}.")
        return
    before, after, change, low, high = (result[name] for name in ("before", "after", "change", "low", "high"))
    found = before_and_after(task.metric, result["n"], before, after, change, low, high, of="example")
    console.print(found, soft_wrap=True)
    speed, size = result["speed"], result["size_before"]
    console.print(f"Size: {size / 1e6:,.1f} MB before, {result['size'] / 1e6:,.1f} MB after.")
    console.print(
        f"Speed here: {speed['before']:.0f} examples/s in PyTorch, {speed['after']:.0f} in onnxruntime "
        f"({speed['speedup']:.2f} times as fast in paired rounds, 95% interval {speed['low']:.2f} to "
        f"{speed['high']:.2f}).",
        soft_wrap=True,
    )


@command()
def push(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A saved model, or the run of headcount prune.")],
    repository: Annotated[str, typer.Argument(metavar="REPO", help="Repository on the hub: you/name.")],
    private: Annotated[
        bool | None, option("--private/--public", help="Who sees a new repository; by default as you have set.")
    ] = None,
    revision: Annotated[str | None, option("--revision", help="Branch to commit to.")] = None,
    message: Annotated[str, option("--message", help="Message of the commit.")] = (
        "Upload a model pruned with headcount"
    ),
    as_json: AsJson = False,
) -> None:
    """Upload a saved model, with its card, to a repository on the hub.

    Log in before with: hf auth login, or set HF_TOKEN. The token is never written or printed.

    Examples:

      headcount push small you/minilm-sst2-small

      headcount push small/model you/minilm-sst2-small --private --revision try-2
    """
    from headcount.cli.console import console, print_json
    from headcount.export import push_to_hub

    address = push_to_hub(directory, repository, private=private, revision=revision, message=message)
    if as_json:
        print_json({"path": directory, "repository": repository, "commit": address})
        return
    console.print(f"Pushed {directory} to {repository}: {address}", soft_wrap=True)
    console.print(f"Load it with: headcount.load({repository!r})", soft_wrap=True)
