"""The model card, README.md: what a saved model came from, what was removed and measured, and how to load it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData, metadata_load

from headcount.runs import versions
from headcount.structure import auto_classes, came_from, whole_anatomy
from headcount.surgery.other_libraries import sentence_directory

CARD = "README.md"
MARK = "<!-- written by headcount; delete this line to keep your own words when the model is saved again -->"
INHERITED = ("license", "license_name", "license_link", "language", "datasets")
PIPELINES = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMaskedLM": "fill-mask",
    "ForCausalLM": "text-generation",
    "LMHeadModel": "text-generation",
    "MTModel": "translation",
    "ForImageClassification": "image-classification",
}
PLACE = "# this directory, or its hub id"
PAPERS = """headcount builds on two papers: *Are Sixteen Heads Really Better than One?* (Michel, Levy and Neubig, 2019,
[arXiv:1905.10650](https://arxiv.org/abs/1905.10650)) and *Analyzing Multi-Head Self-Attention: Specialized Heads Do the
Heavy Lifting, the Rest Can Be Pruned* (Voita et al., 2019, [arXiv:1905.09418](https://arxiv.org/abs/1905.09418))."""


@dataclass(frozen=True)
class Evidence:
    """What was measured of a smaller model, for its card; `Pruned.evidence()` makes it.

    findings: sentences, the verdict with its interval among them. metric, score: after the cut, on `examples` held-out
    examples of `data`, a file's name or a hub id. task: as the hub calls it. command: the words of the command line.
    """

    findings: Sequence[str] = ()
    metric: str = ""
    score: float | None = None
    examples: int = 0
    data: str = ""
    command: Sequence[str] = ()


def model_card(model: Any, name: str, *, path: str, stock: bool, evidence: Evidence | None = None) -> str:
    """The text of README.md for a pruned model, with metadata as the hub expects them.

    path: of its directory, as it is loaded. stock: whether plain `from_pretrained` loads it.
    """
    evidence = evidence or Evidence()
    base, inherited = _origin(model)
    sections = [
        f"# {name}",
        f"{_summary(model, base)} What is gone is cut out of the weights, not masked.",
        *([_section("How it compares", "\n".join(f"- {finding}" for finding in evidence.findings))]),
        _section("How to load it", _loading(model, json.dumps(path, ensure_ascii=False), stock)),
        _section("What is left", _table(model)),
        _section("How it was made", _making(evidence.command)),
        _section("Papers", PAPERS),
    ]
    metadata = _metadata(model, name, base, inherited, evidence)
    return f"---\n{metadata}\n---\n\n{MARK}\n\n" + "\n\n".join(filter(None, sections)) + "\n"


def is_own_card(file: Path) -> bool:
    """Whether headcount wrote this card, and may write it again."""
    return bool(_own_text(file))


def _own_text(file: Path) -> str:
    """The text of a card that headcount wrote; empty for any other."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    return text if MARK in text else ""


def _origin(model: Any) -> tuple[str, dict[str, Any]]:
    """The base model as others know it (a hub id, or the last part of a path), and what its card says for both."""
    source = came_from(model)
    there = {}
    if source and (Path(source) / CARD).is_file():
        try:
            there = metadata_load(Path(source) / CARD) or {}
        except Exception:  # somebody's metadata may be anything; a card without it is still a card
            there = {}
    inherited = {key: there[key] for key in INHERITED if there.get(key)}
    if source and not Path(source).exists() and re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", source):
        return source, {**inherited, "base_model": source}
    if there.get("base_model"):
        inherited["base_model"] = there["base_model"]
    told = re.search(r"^`([^`]+)` without ", _own_text(Path(source) / CARD), re.MULTILINE)
    if told:  # it was pruned before: the base is what that card names
        return told[1], inherited
    return Path(source).resolve().name if source else "", inherited


def _metadata(model: Any, name: str, base: str, inherited: dict[str, Any], evidence: Evidence) -> str:
    pipeline = pipeline_tag(model)
    library = "transformers"
    if sentence_directory(model) is not None:
        pipeline, library = "sentence-similarity", "sentence-transformers"
    results = None
    if evidence.score is not None:
        result = EvalResult(
            task_type=pipeline or "other",
            dataset_type=evidence.data if re.fullmatch(r"[\w-]+/[\w.-]+", evidence.data) else "custom",
            dataset_name=evidence.data or "held-out data",
            metric_type=evidence.metric,
            metric_value=round(float(evidence.score), 6),
            metric_args={"examples": evidence.examples},
        )
        results = [result]
    data = ModelCardData(
        library_name=library, tags=["headcount", "pruned"], pipeline_tag=pipeline, model_name=name,
        eval_results=results, **inherited,
    )  # fmt: skip
    return data.to_yaml()


def pipeline_tag(model: Any) -> str | None:
    """What the hub calls the model's task.

    >>> from types import SimpleNamespace
    >>> pipeline_tag(SimpleNamespace(config=SimpleNamespace(architectures=["BertForMaskedLM"])))
    'fill-mask'
    """
    names = [cls.__name__ for cls in type(model).__mro__]
    names += getattr(model.config, "architectures", None) or []
    return next((tag for end, tag in PIPELINES.items() if any(name.endswith(end) for name in names)), None)


def _summary(model: Any, base: str) -> str:
    sites = whole_anatomy(model).sites
    lost = [part for unit in ("head", "neuron") if (part := _count(unit, sites))]
    called = "`" + re.sub(r"[`\s]+", " ", base) + "`" if base else "A model"
    size = sum(parameter.numel() for parameter in model.parameters())
    return f"{called} without {' and '.join(lost)}: {size:,} parameters are left."


def _count(unit: str, sites: Iterable[Any]) -> str:
    here = [site for site in sites if site.unit == unit]
    of = sum(site.original for site in here)
    gone = of - sum(len(site.kept) for site in here)
    return f"{gone:,} of its {of:,} {'attention heads' if unit == 'head' else 'neurons'}" if gone else ""


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n{text}" if text else ""


def _loading(model: Any, place: str, stock: bool) -> str:
    """Code that loads the model. place: its directory, in quotes."""
    trusting = "" if stock else ", trust_remote_code=True"
    if sentence_directory(model) is not None:
        make = f"model = SentenceTransformer({place}{trusting})  {PLACE}"
        code = f"from sentence_transformers import SentenceTransformer\n\n{make}"
        needed = (
            "" if stock else "It needs headcount (pip install headcount), which the code that you trust imports:\n\n"
        )
        return f"{needed}```python\n{code}\n```"
    autos = {name: auto for auto, name in reversed(auto_classes(model.config).items())}
    auto = next((autos[cls.__name__] for cls in type(model).__mro__ if cls.__name__ in autos), "AutoModel")
    plain = f"from transformers import {auto}\n\nmodel = {auto}.from_pretrained({place}{trusting})"
    if stock:
        return f"It is a stock checkpoint:\n\n```python\n{plain}  {PLACE}\n```"
    ours = f"import headcount  # pip install headcount\n\nmodel = headcount.load({place})  {PLACE}"
    return (
        f"```python\n{ours}\n```\n\nor, where headcount is installed, like any other model (also in pipelines, the "
        "Trainer, PEFT and sentence-transformers). The code that you trust is one file that imports headcount:\n\n"
        f"```python\n{plain}\n```"
    )


def _table(model: Any) -> str:
    sites = whole_anatomy(model).sites
    rows = [f"| {site.name} | {len(site.kept):,} of {site.original:,} {site.unit}s |" for site in sites]
    return "\n".join(["| layer | left |", "|-|-|", *rows])


def _making(command: Sequence[str]) -> str:
    made = ", ".join(f"{package} {number}" for package, number in versions().items())
    if not command:
        return f"With {made}."
    words = [Path(word).name if Path(word).is_absolute() else word for word in command]  # no paths of one's machine
    return f"```\nheadcount {shlex.join(words)}\n```\n\nWith {made}."
