"""`headcount bench MODEL [OTHER]`: is the pruned model really faster, and how much faster could it be?"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from headcount.cli.options import Setup, command
from headcount.errors import counted, duration


@command(without=("metric", "beams"))
def bench(
    setup: Setup,
    pruned: Annotated[
        str | None, typer.Argument(metavar="OTHER", help="Model to compare: a directory or an .onnx file.")
    ] = None,
    data: Annotated[str | None, typer.Option("--data", help="Measure at the lengths of these texts.")] = None,
    batch: Annotated[str, typer.Option("--batch", help="Batch sizes.")] = "1,4,16,64",
    length: Annotated[str | None, typer.Option("--length", help="Lengths in tokens, instead of --data.")] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Measurements per model, alternating.")] = 7,
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Tokens that a generator decodes.")] = 16,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="Threads, the same for all models.")] = None,
    clock: Annotated[
        Literal["wall", "cpu"], typer.Option("--clock", help="cpu: process time, for a shared machine.")
    ] = "wall",
    compile: Annotated[bool, typer.Option("--compile", help="Compile every model with torch.compile.")] = False,
    onnx: Annotated[list[str] | None, typer.Option("--onnx", help="Another .onnx export to measure.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say how long it would take here.")] = False,
) -> None:
    """Measure speed, memory and size of one model, or of two side by side, and of .onnx files beside them.

    Examples:

      headcount bench ./model ./pruned --data dev.tsv

      headcount bench ./model ./pruned --onnx pruned.onnx --length 32,128 --threads 1
    """
    batches, lengths = _numbers("--batch", batch) or [], _numbers("--length", length)

    from headcount.bench import benchmark, is_cut_of
    from headcount.cli.command_run import run_of
    from headcount.cli.console import print_json, progress
    from headcount.cli.model_loading import load_weights

    names = [name for name in (setup.model, pruned) if name is not None] + (onnx or [])
    models: dict[str, Any] = {}
    for place, name in enumerate(names):
        model = name if name.endswith(".onnx") and place else load_weights(name, setup.device, setup.dtype)
        cut = place == 1 and name == pruned and is_cut_of(models["original"], model)
        models["original" if place == 0 else "pruned" if cut else _label(name, models)] = model
    task = None
    if data is not None and lengths is None:
        from headcount.cli.model_loading import load_reader
        from headcount.model_directory import fetch

        task = setup.load_task(
            data, load_reader(fetch(setup.model), setup.model, models["original"]), models["original"]
        )
    options: dict[str, Any] = {
        "batches": batches, "lengths": lengths, "task": task, "tokens": tokens, "threads": threads, "clock": clock,
        "compile": compile,
    }  # fmt: skip
    if dry_run:
        _forecast(setup, rounds, lambda count: benchmark(models, rounds=count, **options))
        return
    with run_of(setup, "bench", models["original"], [task] if task else [], models=names) as run:
        with progress("measuring") as bar:
            measured = benchmark(
                models, rounds=rounds, **options, progress=lambda done, of: bar(done / of),
            )  # fmt: skip
        facts = measured.to_dict()
        facts["signature"] |= run.directory.signature
        result = {"model": setup.model, "pruned": pruned, **facts}
        for label, name in zip(models, names, strict=True):
            result["sizes"][label]["cache_per_token"] = _cache_per_token(models[label])
            result["sizes"][label]["disk"] = _on_disk(name) or result["sizes"][label]["disk"]
        run.finish(result)
    if setup.as_json:
        print_json(result)
    else:
        _print(result)


def _forecast(setup: Setup, rounds: int, measure: Callable[[int], object]) -> None:
    """How long all rounds would take, from one and two of them."""
    from headcount.cli.console import console, print_json

    times = []
    for count in (1, 2):
        start = time.perf_counter()
        measure(count)
        times.append(time.perf_counter() - start)
    seconds = times[0] + max(0.0, times[1] - times[0]) * (rounds - 1)
    text = f"bench, {counted(rounds, 'round')}: about {duration(seconds)} here."
    print_json({"model": setup.model, "seconds": seconds}) if setup.as_json else console.print(text)


def _label(name: str, taken: Collection[str]) -> str:
    """What a model is called in the table: its directory or file, or its whole path where that is taken."""
    short = Path(name).resolve().name
    return short if short not in taken else name


def _numbers(option: str, text: str | None) -> list[int] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdigit() and int(part) for part in parts):
        raise typer.BadParameter(f"{option} takes positive whole numbers separated by commas; got {text!r}")
    return [int(part) for part in parts]


def _on_disk(name: str) -> int:
    """Bytes of the weights in the model's directory."""
    from headcount.model_directory import fetch

    return 0 if name.endswith(".onnx") else sum(file.stat().st_size for file in fetch(name).glob("*.safetensors"))


def _cache_per_token(model: Any) -> int:
    """Bytes of keys and values that a generator keeps for every token; 0 of any other model."""
    from headcount.export import OnnxModel
    from headcount.structure import cache_bytes

    return OnnxModel(model).cache_bytes() if isinstance(model, str) else cache_bytes(model)


def _print(result: dict[str, Any]) -> None:
    from headcount.cli.console import console

    for title, unit, rows in (
        ("generator: prefill" if result["decoding"] else "forward", "examples/s", result["rows"]),
        ("decoding", "tokens/s", result["decoding"]),
    ):
        if rows:
            _print_rows(f"{title}, {unit}", rows)
    for name, size in result["sizes"].items():
        facts = [f"{size['disk'] / 1e6:,.1f} MB on disk"]
        if size["parameters"] is not None:
            facts = [f"{size['parameters']:,} parameters", *facts, f"{size['memory'] / 1e6:,.1f} MB at the peak"]
        if size["cache_per_token"]:
            facts.append(f"{size['cache_per_token']:,} bytes of cache per token")
        console.print(f"{name}: {', '.join(facts)}")
    threads = "one thread" if result["threads"] == 1 else f"{result['threads']} threads"
    compiled = ", compiled" if result["compiled"] else ""
    spread = "95% intervals" if result["rounds"] >= 6 else "smallest to largest value (six rounds give 95% intervals)"
    console.print(
        f"Medians of {counted(result['rounds'], 'alternating round')}, {spread}, {threads}, "
        f"{result['clock']} clock{compiled}."
        + (" The limit is the ratio of counted FLOPs." if any(row["limit"] for row in result["rows"]) else "")
    )
    if result["verdict"]:
        console.print(result["verdict"], style="bold")


def _print_rows(title: str, rows: list[dict[str, Any]]) -> None:
    from rich import box

    from headcount.cli.console import print_table

    compared, cached = rows[0]["speedup"] is not None, rows[0]["cache_original"] is not None
    named, last = {row["model"] for row in rows}, "cache, MB" if cached else "ms a batch"
    other = ["other"] if len(named) > 1 else [*named]
    columns = (["model"] if len(named) > 1 else []) + ["batch", "length", "original"]
    columns += [*other, "speedup", "interval"] if compared else []
    limited = compared and any(row["limit"] is not None for row in rows)
    print_table(
        title,
        [*columns, *(["limit"] if limited else []), last],
        [_cells(row, compared, limited, cached, len(named) > 1) for row in rows],
        left=0,
        drop=[last],
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )


def _cells(row: dict[str, Any], compared: bool, limited: bool, cached: bool, named: bool) -> list[str]:
    cells = ([row["model"]] if named else []) + [str(row["batch"]), str(row["length"]), f"{row['original']:,.1f}"]
    if compared:
        cells += [f"{row['pruned']:,.1f}", f"{row['speedup']:.2f}", f"{row['low']:.2f}-{row['high']:.2f}"]
    if limited:
        cells.append("" if row["limit"] is None else f"{row['limit']:.2f}")
    what, scale, digits = ("cache", 1e-6, 2) if cached else ("latency", 1e3, 1)
    both = [scale * row[f"{what}_{name}"] for name in ("original", "pruned") if row[f"{what}_{name}"] is not None]
    return [*cells, " > ".join(f"{value:,.{digits}f}" for value in both)]
