"""`headcount view MODEL --text "…" -o view.html`: heads at work on a text, in one file without a server."""

from __future__ import annotations

from contextlib import nullcontext
from shlex import quote
from typing import Annotated, Any

import typer

from headcount.cli.explore import Against, Pair, Runs, Text, TextColumn, Texts, load_smaller, open_model, texts_of
from headcount.cli.options import AsJson, Device, DType, Model, Seed, Split, command, option, typed

FEW = 3  # examples of --data that are viewed by default


def register(app: typer.Typer) -> None:
    command(app, "view")(view)


def view(
    context: typer.Context,
    model: Model,
    runs: Runs = None,
    text: Text = None,
    pair: Pair = None,
    out: Annotated[
        str, option("--out", "-o", help="The page (.html), or a run directory that headcount report embeds.")
    ] = "view.html",
    data: Texts = None,
    column: TextColumn = None,
    split: Split = None,
    limit: Annotated[int, option("--limit", min=1, max=50, help="Texts of --data: a random sample.")] = FEW,
    max_length: Annotated[
        int, option("--max-length", min=1, max=256, help="Longer texts are cut to this many tokens.")
    ] = 64,
    against: Against = None,
    seed: Seed = 0,
    device: Device = "auto",
    dtype: DType = "auto",
    as_json: AsJson = False,
) -> None:
    """Write one self-contained page about a text: attention of all heads, and what happens without each.

    It is the page of `headcount explore`, with every answer precomputed: each head, row and feed-forward layer off
    alone, and the sets that the runs give. It needs no server and no network.

    Examples:

      headcount view ./model --text "A gripping film." -o view.html

      headcount view ./model scores small --data dev.tsv --out seen
    """
    from headcount.cli.command_run import refuse_missing_model
    from headcount.cli.console import print_json, progress

    if (text is None) == (data is None):
        raise typer.BadParameter("give either --text or --data")
    refuse_missing_model(model)

    from headcount.explore import view as precompute

    whole, tokenizer, findings = open_model(model, runs or (), device, dtype)
    texts = texts_of(whole, tokenizer, data, column, split, limit, seed) or [{"text": text, "pair": pair}]
    pruned = load_smaller(findings, against, device, dtype)
    run = None if out.endswith(".html") else run_of_views(out, model, whole, texts, typed(context))
    with nullcontext() if run is None else run.open():
        with progress("reading") as bar:
            page = precompute(
                *(whole, tokenizer, texts), runs=findings.runs, name=model, progress=bar,
                max_length=max_length, pruned=pruned,
            )  # fmt: skip
        path = page.save(out if run is None else run.path / "view.html")
        if run is not None:
            run.write({"command": "view", "model": model, "n": len(texts), "view": page.content})
    if as_json:
        print_json({"model": model, "n": len(texts), "path": str(path)})
    else:
        typer.echo(f"The page is in {path}. Open it in a browser; it is one file and needs no network.")
        if run is not None:
            typer.echo(f"headcount report {quote(out)} embeds it in a report.")


def run_of_views(out: str, name: str, model: Any, texts: list[dict[str, Any]], command_line: list[str]) -> Any:
    """The run directory of these texts."""
    from headcount.runs import RunDirectory, model_signature, versions
    from headcount.tasks import digest

    signature = {
        "command": "view",
        "model": model_signature(model),
        "texts": {"n": len(texts), "fingerprint": digest(texts)},
        "versions": versions(),
    }
    return RunDirectory(out, signature, {"command_line": command_line, "model": name})
