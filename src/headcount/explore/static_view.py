"""`view`: heads at work on one text or a few, in one page that needs neither server nor network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from headcount.errors import HeadcountError
from headcount.explore.findings import Findings
from headcount.explore.inspector import Inspector, Text
from headcount.reporting import explorer_page, write_page
from headcount.structure import AttentionSite

SHARES = range(10, 100, 10)  # percent of the heads, the least important, that can be turned off on the page
TALL = 860  # pixels of the page in a notebook


@dataclass(frozen=True, eq=False)
class View:
    """A page with everything in it: `html`, `save(file)`; a notebook shows it by itself."""

    content: Mapping[str, Any]

    @cached_property
    def html(self) -> str:
        """The page as text."""
        return explorer_page(self.content)

    def save(self, file: str | Path) -> Path:
        """Write the page; an older view there is replaced, any other file is refused."""
        return write_page(self.html, file)

    def _repr_html_(self) -> str:
        """The page in a frame of its own, which can reach nothing around it."""
        page = escape(self.html)
        return f'<iframe srcdoc="{page}" sandbox="allow-scripts" width="100%" height="{TALL}" frameborder="0"></iframe>'

    def __repr__(self) -> str:
        return f"<view of {len(self.content['texts'])} texts with {self.content['model']}: {len(self.html):,} bytes>"


def view(
    model: Any,
    tokenizer: Any,
    text: str | Sequence[Any],
    *,
    pair: str | None = None,
    runs: Iterable[Any] = (),
    pruned: Any = None,
    max_length: int = 64,
    name: str | None = None,
    progress: Callable[[float], None] | None = None,
) -> View:
    """Read a text with a model, whole and with each unit off, and put all of it into one page.

    >>> from headcount.tasks.classification import toy_classifier
    >>> model, task = toy_classifier()
    >>> page = view(model, task.tokenizer, "a fine film")
    >>> read = page.content["texts"][0]
    >>> len(read["attention"]), "encoder_ffn.1" in read["answers"], page.html[:15]
    (8, True, '<!doctype html>')

    text: a text, or several: texts, or {"text", "pair", "label"} each. pair: the second text, for models of pairs.
    runs: run directories and results of this model: importance, roles, effects and what was removed.
    pruned: a smaller model to compare with. max_length: longer texts are cut to this many tokens.
    name: what to call the model. progress: called with the share done, from 0 to 1.
    """
    rows = [{"text": text, "pair": pair}] if isinstance(text, str) else [_row(one) for one in text]
    if not rows:
        raise HeadcountError("no text was given to view", advice="pass {text}")
    inspector = Inspector(model, tokenizer, max_length=max_length, name=name, pruned=pruned)
    findings = Findings(model, runs)
    texts = []
    for place, row in enumerate(rows):

        def report(share: float, place: int = place) -> None:
            if progress is not None:
                progress((place + share) / len(rows))

        read = _read(inspector, findings, (row["text"], row.get("pair")), report)
        texts.append({**read, "label": row.get("label")})
    return View({"live": False, **inspector.facts(), "findings": findings.to_json(), "texts": texts})


def _row(given: Any) -> Mapping[str, Any]:
    return given if isinstance(given, Mapping) else {"text": given}


def _read(inspector: Inspector, findings: Findings, text: Text, report: Callable[[float], None]) -> dict[str, Any]:
    """Everything that the page can be asked about one text."""
    read = inspector.read(text)
    read["effects"] = inspector.effects(text)["effects"]
    read["attention"] = {str(head): inspector.attention(text, str(head)) for head in inspector.heads}
    read["pruned"] = None if inspector.smaller is None else inspector.pruned(text)
    read["answers"] = {}
    sets = _sets(inspector, findings, read["effects"])
    for done, units in enumerate(sets, start=1):
        read["answers"][",".join(sorted(units))] = inspector.answer(text, units)
        report(done / len(sets))
    return read


def _sets(inspector: Inspector, findings: Findings, effects: Mapping[str, float]) -> list[list[str]]:
    """What can be turned off on the page: each unit, each row, the sets of the runs, the least important shares."""
    sites = inspector.found.sites
    heads = [str(head) for head in inspector.heads]
    sets = [[head] for head in heads]
    sets += [[str(head) for head in site.heads] for site in sites if isinstance(site, AttentionSite) and site.kept]
    sets += [[site.name] for site in sites if not isinstance(site, AttentionSite) and site.kept]
    sets += [one["units"] for one in findings.sets()]
    orders = [one["order"] for one in findings.orders()]
    orders.append(sorted(heads, key=lambda head: abs(effects.get(head, 0.0))))
    sets += [order[: rounded(len(order) * share / 100)] for order in orders for share in SHARES]
    return [list(units) for units in dict.fromkeys(map(tuple, sets)) if units]


def rounded(value: float) -> int:
    """Half up, as the page's script rounds.

    >>> rounded(2.5), rounded(3.5)
    (3, 4)
    """
    return int(value + 0.5)
