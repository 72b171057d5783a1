"""Two files whose lines belong together: a sentence, and its translation."""

from __future__ import annotations

from dataclasses import replace

from headcount.errors import BadData
from headcount.tasks.columns import Column
from headcount.tasks.data import Rows


def aligned(first: Rows, second: Rows, source: Column = None, target: Column = None) -> Rows:
    """One table from two files whose lines belong together.

    >>> en, fr = Rows({"text": ["a dog"]}, "val.en"), Rows({"text": ["un chien"]}, "val.fr")
    >>> aligned(en, fr).table
    {'source': ['a dog'], 'target': ['un chien']}
    """
    if len(first) != len(second):
        raise BadData(
            f"{first.source} has {len(first)} lines and {second.source} has {len(second)}: "
            "they do not belong together line by line"
        )
    sides = []
    for rows, what, column in ((first, "source", source), (second, "target", target)):
        if column is None and len(rows.names) > 1:
            raise BadData(f"{rows.source} has columns {', '.join(rows.names)}: pass {what}=… to choose one")
        sides.append(rows.column(0 if column is None else column))
    table = dict(zip(("source", "target"), sides, strict=True))
    remarks = [*first.remarks, *second.remarks]
    return replace(first, table=table, source=f"{first.source}+{second.source}", remarks=remarks)
