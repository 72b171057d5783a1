"""`headcount roles MODEL [--data text|conllu]`: what heads do in sentences, or in a language model without data."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headcount.cli.options import Setup, command, listed, option
from headcount.errors import counted

UNUSED = ("task", "metric", "pair", "label", "labels", "choices", "target_data", "beams")
LANGUAGE = "Only for language models, without --data"
COMMON = ("sink", "streaming")  # roles that very many heads have: counted, not listed


@command(sharded=True, without=UNUSED)
def roles(
    setup: Setup,
    data: Annotated[
        str | None,
        option("--data", help="A CoNLL-U file, raw text, aligned pairs, or recordings; a language model needs none."),
    ] = None,
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
    induction: Annotated[
        float, option("--induction", panel=LANGUAGE, help="Mean weight on the token after the last occurrence.")
    ] = 0.4,
    previous: Annotated[float, option("--previous", panel=LANGUAGE, help="Mean weight on the token before.")] = 0.4,
    duplicate: Annotated[
        float, option("--duplicate", panel=LANGUAGE, help="Mean weight on the last occurrence.")
    ] = 0.4,
    copying: Annotated[
        float, option("--copying", panel=LANGUAGE, help="Share of tokens raised most when attended to.")
    ] = 0.5,
    sink: Annotated[float, option("--sink", panel=LANGUAGE, help="Mean weight on the initial tokens.")] = 0.5,
    retrieval: Annotated[
        float, option("--retrieval", panel=LANGUAGE, help="Share of a needle's tokens that are found again.")
    ] = 0.1,
    streaming: Annotated[
        float, option("--streaming", panel=LANGUAGE, help="Mean weight on the initial and recent tokens.")
    ] = 0.95,
    alignment: Annotated[float, option("--alignment", help="Share of tokens where they are spoken or aligned.")] = 0.4,
) -> None:
    """Find what heads do: in sentences (V19, section 5), or in a language model on random tokens.

    Examples:

      headcount roles ./model --data en_ewt-dev.conllu --out run

      headcount roles ./translator --data val.en --limit 500 --json

      headcount roles ./translator --data pairs-with-alignment.tsv

      headcount roles ./language-model --json
    """
    from headcount.cli.command_run import run_of
    from headcount.cli.console import messages, print_json, progress
    from headcount.cli.model_loading import load_model
    from headcount.roles import Sentences, Thresholds, find_roles

    limits = Thresholds(
        positional, syntactic, rare, idle, frequent,
        induction, previous, duplicate, copying, sink, retrieval, streaming, alignment,
    )  # fmt: skip
    asked = listed(relations)
    if data is None:
        about_data = {
            "--relations": asked, "--parser": parser, "--frequencies": frequencies, "--limit": setup.limit,
            "--dry-run": setup.dry_run,
        }  # fmt: skip
        for name, value in about_data.items():
            if value:
                raise typer.BadParameter(f"{name} is for --data; without it, roles are found on random tokens")
    model, tokenizer = load_model(setup.model, setup.device, setup.dtype)
    sentences: Any = None
    if data is not None and model.main_input_name == "input_features":
        sentences = setup.load_task(data, tokenizer, model)
    elif data is not None:
        sentences = _sentences(setup, data, asked, parser)
    counted_in = None if frequencies is None else Sentences.of(frequencies, parser=False)
    settings = {
        "relations": asked, "thresholds": vars(limits), "max_length": setup.max_length,
        "frequencies": None if counted_in is None else counted_in.signature(),
    }  # fmt: skip
    with run_of(setup, "roles", model, [] if sentences is None else [sentences], **settings) as run:
        with progress("reading attention") as bar:
            found = find_roles(
                model,
                sentences,
                tokenizer,
                relations=asked,
                thresholds=limits,
                frequencies=counted_in,
                max_length=setup.max_length,
                seed=setup.seed,
                run=run.directory,
                progress=bar,
            )
        answer = found.to_json()
        n = answer.pop("signature")["task"]["n"]
        result = run.finish({"model": setup.model, "n": n, **answer})
    for remark in found.remarks:
        messages.print(remark, style="dim", markup=False)
    print_json(result) if setup.as_json else _print(result, "random sequence" if data is None else "sentence")


def _sentences(setup: Setup, data: str, relations: list[str] | None, parser: str | None) -> Any:
    from headcount.roles import Sentences, chosen_relations

    reads: Any = False if parser == "none" else parser
    column = int(setup.text) if setup.text is not None and setup.text.isdigit() else setup.text
    sentences = Sentences.of(data, parser=reads, text=column, split=setup.split).take(setup.limit, setup.seed)
    if setup.sample is not None:
        sentences = setup.sample.of((data,), lambda: sentences)
    chosen_relations(sentences, relations)
    return sentences


def _print(result: dict[str, Any], example: str) -> None:
    from headcount.cli.console import console

    title = f"{result['model']}, roles in {counted(result['n'], example)}"
    listed = [row for row in result["heads"] if row["role"] not in COMMON]
    _print_heads(title, listed) if listed else console.print(f"{title}: no head has one.")
    best = [row for row in result["best"] if row["role"] in ("syntactic", "rare")]
    if best:
        _print_heads("The best head for each relation, and for the rarest token", best)
    heads = len({row["head"] for row in result["heads"]})
    console.print(f"Heads with a role: {heads}. Baseline: the most frequent position (syntactic), else any token.")
    for role in COMMON if "cache" in result else ():
        rows = [row for row in result["heads"] if row["role"] == role]
        console.print(f"Heads with the role {role}: {len(rows)} (--json lists them).")
    if "cache" in result:
        keep = [row["keep"] for row in result["cache"]["kv_heads"]]
        console.print(f"Key-value heads that need a whole cache: {keep.count('all')} of {len(keep)}.")


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
