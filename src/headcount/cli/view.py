"""`headcount view MODEL --text "…" -o view.html`: heads at work on a text, in one file without a server."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headcount.cli.explore import Against, Pair, Runs, Text, TextColumn, Texts, load_smaller, open_model, texts_of
from headcount.cli.options import Device, DType, Model, Seed, Split, command, option, typed

FEW = 3  # examples of --data that are viewed by default


def register(app: typer.Typer) -> None:
    command(app, "view")(view)


def view(
    context: typer.Context,
    model: Model,
    runs: Runs = None,
    text: Text = None,
    pair: Pair = None,
    data: Texts = None,
    column: TextColumn = None,
    split: Split = None,
    limit: Annotated[int, option("--limit", min=1, max=50, help="Texts of --data: a random sample.")] = FEW,
    max_length: Annotated[
        int, option("--max-length", min=1, max=256, help="Longer texts are cut to this many tokens.")
    ] = 64,
    against: Against = None,
    out: Annotated[
        str, option("--out", "-o", help="The page (.html), or a run directory that headcount report embeds.")
    ] = "view.html",
    seed: Seed = 0,
    device: Device = "auto",
    dtype: DType = "auto",
) -> None:
    """Write one self-contained page about a text: attention of all heads, and what happens without each.

    It is the page of `headcount explore`, with every answer precomputed: each head, row and feed-forward layer off
    alone, and the sets that the runs give. It needs no server and no network.

    Examples:

      headcount view ./model --text "A gripping film." -o view.html

      headcount view ./model scores small --data dev.tsv --out seen
    """
    from headcount.cli.command_run import refuse_missing_model
    from headcount.cli.console import progress

    if (text is None) == (data is None):
        raise typer.BadParameter("give either --text or --data")
    refuse_missing_model(model)

    from headcount.explore import view as precompute

    whole, tokenizer, findings = open_model(model, runs or (), device, dtype)
    texts = texts_of(whole, data, column, split, limit, seed) or [{"text": text, "pair": pair}]
    pruned = load_smaller(findings, against, device, dtype)
    with progress("reading") as bar:
        page = precompute(
            *(whole, tokenizer, texts), runs=findings.runs, name=model, progress=bar,
            max_length=max_length, pruned=pruned,
        )  # fmt: skip
    if out.endswith(".html"):
        page.save(out)
        typer.echo(f"The page is in {out}. Open it in a browser; it is one file and needs no network.")
    else:
        keep(page, out, whole, typed(context))
        typer.echo(f"The run is in {out}, with a page in {out}/view.html. headcount report {out} embeds it.")


def keep(page: Any, out: str, model: Any, command_line: list[str]) -> None:
    """Write the page and its content to a run directory."""
    from headcount.runs import RunDirectory, model_signature, versions
    from headcount.tasks import digest

    texts = [[one["text"], one["pair"]] for one in page.content["texts"]]
    signature = {
        "command": "view",
        "model": model_signature(model),
        "texts": {"n": len(texts), "fingerprint": digest(texts)},
        "versions": versions(),
    }
    with RunDirectory(out, signature, {"command_line": command_line, "model": page.content["model"]}).open() as run:
        page.save(run.path / "view.html")
        run.write({"command": "view", "model": page.content["model"], "n": len(texts), "view": page.content})
