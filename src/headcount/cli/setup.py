"""Options that most commands share, written once: what model, what data, how to run and what to print."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from headcount.errors import HeadcountError

Model = Annotated[str, typer.Argument(help="Model directory or hub id.")]
TASK, RUN, MACHINES = "The task", "The run", "Many machines"
ENGINE = ("engine", "address", "workers", "threads")


def _option(*names: str, panel: str, **settings: Any) -> Any:
    return typer.Option(*names, rich_help_panel=panel, **settings)


@dataclass
class Setup:
    """The shared options of one call of a command."""

    model: Model
    task: Annotated[str | None, _option("--task", panel=TASK, help="classification, translation or language.")] = None
    metric: Annotated[str | None, _option("--metric", panel=TASK, help="accuracy, f1, matthews, bleu, perplexity…")] = (
        None
    )
    text: Annotated[str | None, _option("--text", panel=TASK, help="Column of the text, by name or number.")] = None
    pair: Annotated[str | None, _option("--pair", panel=TASK, help="Column of the second text.")] = None
    label: Annotated[str | None, _option("--label", panel=TASK, help="Column of the label.")] = None
    source: Annotated[str | None, _option("--source", panel=TASK, help="Column of the source.")] = None
    target: Annotated[str | None, _option("--target", panel=TASK, help="Column of the target.")] = None
    target_data: Annotated[str | None, _option("--target-data", panel=TASK, help="Line-aligned file of targets.")] = (
        None
    )
    split: Annotated[str | None, _option("--split", panel=TASK, help="Split of a hub data set.")] = None
    limit: Annotated[int | None, _option("--limit", panel=TASK, min=1, help="Only so many examples, at random.")] = None
    beams: Annotated[int, _option("--beams", panel=TASK, min=1, help="Beams in decoding; 1 is greedy.")] = 1
    max_length: Annotated[
        int | None, _option("--max-length", panel=TASK, min=1, help="Cut texts to so many tokens.")
    ] = None
    seed: Annotated[int, _option("--seed", panel=RUN, help="Seed of everything random.")] = 0
    device: Annotated[str, _option("--device", panel=RUN, help="auto, cpu, cuda, mps, or spread over all.")] = "auto"
    dtype: Annotated[str, _option("--dtype", panel=RUN, help="auto, saved, float32, bfloat16 or float16.")] = "auto"
    out: Annotated[str | None, _option("--out", panel=RUN, help="Run directory: results, and resuming.")] = None
    as_json: Annotated[bool, _option("--json", panel=RUN, help="Print one JSON object.")] = False
    engine: Annotated[str, _option("--engine", panel=MACHINES, help="local, or ray: shards in parallel.")] = "local"
    address: Annotated[
        str | None, _option("--address", panel=MACHINES, help="Of a Ray cluster; without it, one is started here.")
    ] = None
    workers: Annotated[int | None, _option("--workers", panel=MACHINES, min=1, help="Default: as many as fit.")] = None
    threads: Annotated[int, _option("--threads", panel=MACHINES, min=1, help="Of each worker.")] = 1
    own: dict[str, Any] = field(init=False, default_factory=dict)  # the command's own options, and what was typed
    said: set[str] = field(init=False, default_factory=set)  # remarks, each of which is made once

    def load_model(self) -> tuple[Any, Any]:
        """The model on its device, and its tokenizer."""
        from headcount.cli.loading import load_model

        return load_model(self.model, self.device, self.dtype)

    @contextmanager
    def machines(self) -> Iterator[None]:
        """The engine that was chosen, as long as the block lasts."""
        from headcount.errors import HeadcountError, unknown

        if self.engine not in ("local", "ray"):
            raise HeadcountError(unknown("engine", self.engine, ("local", "ray")))
        given = [f"--{name}" for name in ENGINE[1:] if getattr(self, name) != getattr(Setup, name)]
        if self.engine == "local":
            if given:
                raise HeadcountError(f"{given[0]} is for --engine ray")
            yield
            return
        from headcount.engine import using
        from headcount.engine.ray import Ray

        if self.device == "auto":
            self.device = "cpu"  # here; workers use the GPUs that the cluster has
        with Ray(self.address, workers=self.workers, threads=self.threads, share=True) as engine, using(engine):
            if engine.gpus and self.dtype == "auto":
                self.dtype = "saved"
            yield

    def load_task(self, data: str, tokenizer: Any, model: Any) -> Any:
        """The task on `--data`."""
        return self._load_task(data, tokenizer, model, self.target_data)

    def load_other(self, data: str, tokenizer: Any, model: Any, target_data: str | None, option: str) -> Any:
        """The same task on other data, whose targets another option names."""
        if target_data is None and self.target_data is not None:
            raise HeadcountError(f"{data} needs targets of its own, as --data has with --target-data: give {option}")
        return self._load_task(data, tokenizer, model, target_data)

    def _load_task(self, data: str, tokenizer: Any, model: Any, target_data: str | None) -> Any:
        """What was guessed or cut is said."""
        from headcount.cli.console import messages
        from headcount.tasks import load_task

        columns = {name: _column(getattr(self, name)) for name in ("text", "pair", "label", "source", "target")}
        task = load_task(
            self.task, data, tokenizer, model, split=self.split, limit=self.limit, seed=self.seed, metric=self.metric,
            target_data=target_data, beams=self.beams, max_length=self.max_length, **columns,
        )  # fmt: skip
        for remark in task.check(model):
            if remark not in self.said:
                messages.print(f"[dim]{_escape(remark)}[/dim]")
            self.said.add(remark)
        return task

    def arguments(self) -> dict[str, Any]:
        """Everything given, for `run.json`."""
        given = {**vars(self), **self.own}
        return {name: value for name, value in given.items() if value is not None and name not in ("own", "said")}


def command(app: typer.Typer, name: str, sharded: bool = False) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a command: its own options, then the shared ones, which it gets as a `Setup`.

    sharded: whether other machines can do its work.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]  # the first is the Setup
        shared = list(inspect.signature(Setup, eval_str=True).parameters.values())
        taken = {parameter.name for parameter in own} | (set() if sharded else set(ENGINE))
        first = [] if "model" in taken else shared[:1]  # `track` takes several
        context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        parameters = [context, *first, *own, *(one for one in shared[1:] if one.name not in taken)]

        def run(**given: Any) -> None:
            from headcount.cli.console import quiet

            known = [one.name for one in shared if one.name in given and (sharded or one.name not in ENGINE)]
            setup = Setup(**{name: given[name] for name in known})
            mine = {one.name: given[one.name] for one in own}
            setup.own = {**mine, "command_line": _typed(given["context"])}
            with quiet(), setup.machines():
                function(setup, **mine)
            _mention_report(setup)

        by_keyword = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
        run.__signature__ = inspect.Signature(by_keyword)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in by_keyword}
        run.__doc__ = function.__doc__
        app.command(name, no_args_is_help=True)(run)
        return function

    return register


def _typed(context: Any) -> list[str]:
    """The command line that gives these values, whoever calls: what differs from the defaults, arguments first."""
    arguments, options = [context.info_name], list[str]()
    for one in context.command.params:
        value = context.params.get(one.name)
        if value is None or value == one.get_default(context) or one.name == "as_json":
            continue
        several = value if isinstance(value, (list, tuple)) else [value]
        if one.param_type_name == "argument":
            arguments += map(str, several)
        elif value is True:
            options.append(one.opts[0])
        else:
            options += [word for each in several for word in (one.opts[0], str(each))]
    return arguments + options


def _mention_report(setup: Setup) -> None:
    """The last line of a command that has kept a run."""
    from pathlib import Path
    from shlex import quote

    from headcount.cli.console import messages

    if setup.out is not None and not setup.as_json and (Path(setup.out) / "run.json").is_file():
        line = f"A page about this run: headcount report {quote(setup.out)}"
        messages.print(line, style="dim", markup=False, soft_wrap=True)


def _column(name: str | None) -> str | int | None:
    return int(name) if name is not None and name.isdecimal() else name


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)
