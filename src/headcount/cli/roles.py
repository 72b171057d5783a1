"""`headcount roles MODEL --data text|conllu`: heads that attend to a position, a relation, the rarest word, or idle."""

from __future__ import annotations

from typing import Annotated, Any

from headcount.cli.options import Setup, command, listed, option
from headcount.errors import counted

UNUSED = ("task", "metric", "pair", "label", "source", "target", "target_data", "beams")


@command(sharded=True, without=UNUSED)
def roles(
    setup: Setup,
    data: Annotated[str, option("--data", help="A CoNLL-U file, or raw text (parsed by spaCy, if it is installed).")],
    relations: Annotated[
        str | None, option("--relations", help="Dependencies to look for; by default nsubj,obj,amod,advmod.")
    ] = None,
    parser: Annotated[
        str | None, option("--parser", help="spaCy model for raw text; none skips the syntactic heads.")
    ] = None,
    positional: Annotated[float, option("--positional", help="Share of tokens at one relative position.")] = 0.9,
    syntactic: Annotated[float, option("--syntactic", help="Accuracy above that of the usual position.")] = 0.1,
    rare: Annotated[float, option("--rare", help="Share of tokens whose focus is the rarest token.")] = 0.5,
    idle: Annotated[float, option("--idle", help="Mean weight on the first token, or on separators.")] = 0.5,
    frequencies: Annotated[
        str | None,
        option("--frequencies", help="Texts to count tokens in, such as training data; by default --data."),
    ] = None,
    frequent: Annotated[int, option("--frequent", help="How many of the most frequent tokens are never rare.")] = 500,
) -> None:
    """Find positional, syntactic and rare-word heads (V19, section 5), and idle ones.

    Examples:

      headcount roles ./model --data en_ewt-dev.conllu --out run

      headcount roles ./translator --data val.en --limit 500 --json
    """
    from headcount.cli.command_run import run_of
    from headcount.cli.console import messages, print_json, progress
    from headcount.roles import Sentences, Thresholds, chosen_relations, find_roles

    limits = Thresholds(positional, syntactic, rare, idle, frequent)
    asked = listed(relations)
    reads: Any = False if parser == "none" else parser
    column = int(setup.text) if setup.text is not None and setup.text.isdigit() else setup.text
    sentences = Sentences.of(data, parser=reads, text=column, split=setup.split).take(setup.limit, setup.seed)
    if setup.sample is not None:
        sentences = setup.sample.of((data,), lambda: sentences)
    chosen_relations(sentences, asked)
    model, tokenizer = setup.load_model()
    counted_in = None if frequencies is None else Sentences.of(frequencies, parser=False)
    settings = {
        "relations": asked, "thresholds": vars(limits), "max_length": setup.max_length,
        "frequencies": None if counted_in is None else counted_in.signature(),
    }  # fmt: skip
    with run_of(setup, "roles", model, [sentences], **settings) as run:
        with progress("reading attention") as bar:
            found = find_roles(
                model,
                sentences,
                tokenizer,
                relations=asked,
                thresholds=limits,
                frequencies=counted_in,
                max_length=setup.max_length,
                run=run.directory,
                progress=bar,
            )
        answer = found.to_json()
        del answer["signature"]
        result = run.finish({"model": setup.model, "n": len(sentences), **answer})
    for remark in found.remarks:
        messages.print(remark, style="dim", markup=False)
    print_json(result) if setup.as_json else _print(result)


def _print(result: dict[str, Any]) -> None:
    from headcount.cli.console import console

    title = f"{result['model']}, roles in {counted(result['n'], 'sentence')}"
    _print_heads(title, result["heads"]) if result["heads"] else console.print(f"{title}: no head has one.")
    best = [row for row in result["best"] if row["role"] in ("syntactic", "rare")]
    if best:
        _print_heads("The best head for each relation, and for the rarest token", best)
    heads = len({row["head"] for row in result["heads"]})
    console.print(f"Heads with a role: {heads}. Baseline: the most frequent position (syntactic), else any token.")


def _print_heads(title: str, rows: list[dict[str, Any]]) -> None:
    from headcount.cli.console import print_table

    print_table(
        title,
        ["head", "role", "attends to", "score", "95% interval", "baseline", "cases"],
        [
            [
                *(row["head"], row["role"], row["detail"], f"{100 * row['score']:.1f}%"),
                f"{100 * row['low']:.1f} {100 * row['high']:.1f}",
                *(f"{100 * row['baseline']:.1f}%", f"{row['cases']:,}"),
            ]
            for row in rows
        ],
        left=3,
        drop=["cases", "baseline"],
    )
