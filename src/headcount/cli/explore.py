"""`headcount explore MODEL [RUN...]`: a live page where heads are turned off; `headcount view`: one in a file."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from contextlib import nullcontext
from shlex import quote
from typing import Annotated, Any

import typer

from headcount.cli.options import AsJson, Device, DType, Limit, Model, Seed, Split, command, option, typed

TEXTS, SERVER = "The texts", "The server"
Runs = Annotated[
    list[str] | None,
    typer.Argument(metavar="[RUN...]", help="Runs of this model: importance, roles, ablate, prune, gates."),
]
Text = Annotated[str | None, option("--text", panel=TEXTS, help="A sentence, a source or a prompt.")]
Pair = Annotated[str | None, option("--pair", panel=TEXTS, help="The second text, for models of pairs.")]
Texts = Annotated[str | None, option("--data", panel=TEXTS, help="A file or hub id with texts to step through.")]
TextColumn = Annotated[str | None, option("--column", panel=TEXTS, help="Column of the text, by name or number.")]
Against = Annotated[
    str | None, option("--against", help="A smaller model to compare with; by default the one that a run has pruned.")
]
SAMPLES = {
    "translation": "Two young dogs are playing in the snow.",
    "causal": "The capital of France is",
    "masked": "The capital of France is Paris.",
}
FEW = 3  # examples of --data that are viewed by default


@command()
def explore(
    model: Model,
    runs: Runs = None,
    text: Text = None,
    pair: Pair = None,
    data: Texts = None,
    column: TextColumn = None,
    split: Split = None,
    limit: Limit = None,
    max_length: Annotated[
        int, option("--max-length", panel=TEXTS, min=1, max=1024, help="Longer texts are cut to this many tokens.")
    ] = 128,
    against: Against = None,
    host: Annotated[
        str, option("--host", panel=SERVER, help="Address to listen on; another one lets other machines in.")
    ] = "127.0.0.1",
    port: Annotated[int, option("--port", panel=SERVER, min=0, max=65535, help="0 takes a free one.")] = 0,
    no_open: Annotated[bool, option("--no-open", panel=SERVER, help="Open no browser.")] = False,
    seed: Seed = 0,
    device: Device = "auto",
    dtype: DType = "auto",
) -> None:
    """Open a page where you turn heads off and watch what the model does.

    Type a text: the page colours every head by its effect on it, shows a head's attention, and answers each click with
    the new prediction, translation or continuation beside the original. Runs add importance, roles and what was
    removed. The address is printed; Ctrl-C ends the page.

    Examples:

      headcount explore ./model

      headcount explore ./model scores roles small --data dev.tsv

      headcount explore ./translator --text "A man rides a horse." --port 8000 --no-open
    """
    from headcount.cli.command_run import refuse_missing_model
    from headcount.cli.console import messages

    refuse_without_data(data, column, split)
    refuse_missing_model(model)

    from headcount.explore import Answers, ExploreServer, Inspector

    whole, tokenizer, findings = open_model(model, runs or (), device, dtype)
    examples = texts_of(whole, tokenizer, data, column, split, limit, seed)
    pruned = load_smaller(findings, against, device, dtype)
    inspector = Inspector(whole, tokenizer, max_length=max_length, name=model, pruned=pruned)
    facts = inspector.facts()
    if text is None and not examples:
        text = SAMPLES.get(facts["kind"], "A gripping film with a wonderful cast.")
    inspector.read((examples[0]["text"], examples[0]["pair"]) if text is None else (text, pair))  # refuse it here
    content = {
        "live": True,
        **facts,
        "findings": findings.to_json(),
        "examples": len(examples),
        "text": text,
        "pair": pair,
    }
    with ExploreServer(Answers(inspector, examples), content, host, port) as server:
        if not server.is_local():
            warning = f"{host} lets other machines in: whoever has the address can use this model."
            messages.print(warning, style="yellow", markup=False, soft_wrap=True)
        typer.echo(server.address)
        if not no_open:
            webbrowser.open(server.address)
        server.serve_until_interrupted()


def refuse_without_data(data: str | None, column: str | None, split: str | None) -> None:
    """Refuse options that say how `--data` is read, where it was not given."""
    for name, value in (("--column", column), ("--split", split)):
        if data is None and value is not None:
            raise typer.BadParameter(f"{name} is for --data, which is not given")


def open_model(model: str, runs: Sequence[str], device: str, dtype: str) -> tuple[Any, Any, Any]:
    """The model, its tokenizer, and what the runs say of it."""
    from headcount.cli.console import messages
    from headcount.cli.model_loading import load_model
    from headcount.explore import Findings

    whole, tokenizer = load_model(model, device, dtype)
    findings = Findings(whole, runs)
    for remark in findings.remarks:
        messages.print(remark, style="yellow", markup=False, soft_wrap=True)
    return whole, tokenizer, findings


def load_smaller(findings: Any, against: str | None, device: str, dtype: str) -> Any:
    """The model to compare with, if there is one."""
    from headcount.cli.model_loading import load_weights

    place = against or findings.pruned()
    return None if place is None else load_weights(str(place), device, dtype)


def texts_of(
    model: Any, tokenizer: Any, data: str | None, column: str | None, split: str | None, limit: int | None, seed: int
) -> list[dict[str, Any]]:
    """The texts of `--data`, if it was given."""
    from headcount.cli.console import messages
    from headcount.explore import read_examples

    if data is None:
        return []
    name = int(column) if column is not None and column.isdecimal() else column
    examples, remarks = read_examples(model, tokenizer, data, text=name, split=split, limit=limit, seed=seed)
    for remark in remarks:
        messages.print(remark, style="dim", markup=False)
    return examples


@command()
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
    refuse_without_data(data, column, split)
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
