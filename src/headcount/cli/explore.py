"""`headcount explore MODEL [RUN...]`: a live page where heads are turned off and their work is watched."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from headcount.cli.options import Device, DType, Limit, Model, Seed, Split, command, option

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


def register(app: typer.Typer) -> None:
    command(app, "explore")(explore)


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
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


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
