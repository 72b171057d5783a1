"""`headcount push DIR REPO`: a saved model, with its card, on the hub."""

from __future__ import annotations

from typing import Annotated

import typer

from headcount.cli.options import AsJson, command, option


def register(app: typer.Typer) -> None:
    command(app, "push")(push)


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
