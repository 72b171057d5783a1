"""Labels as the model numbers them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from headcount.errors import BadData
from headcount.tasks.data import Rows


def class_ids(
    rows: Rows, column: str, label2id: Mapping[str, int] | None = None, num_labels: int | None = None
) -> tuple[list[int], dict[str, int], list[str]]:
    """The class number of each row, how names were numbered if that was a guess, and remarks.

    >>> class_ids(Rows({"label": ["no", "yes", "no"]}), "label", {"NO": 1, "YES": 0})
    ([1, 0, 1], {}, [])
    >>> class_ids(Rows({"label": ["no", "yes", "no"]}), "label")
    ([0, 1, 0], {'no': 0, 'yes': 1}, ['labels numbered in sorted order: no = 0, yes = 1'])

    label2id: the model's; names like LABEL_0 say nothing and are passed over. Names are then numbered in
        sorted order, but only if there are as many as the model has classes: one that is missing from the
        data would shift the others.
    num_labels: how many classes the model has, to refuse numbers beyond it.
    """
    values, remarks = [_clean(rows, i, column) for i in range(len(rows))], []
    if label2id and num_labels is None:
        num_labels = max(label2id.values()) + 1
    known = _lower(label2id)
    generic = _generic(known)
    values, said = _by_class_names(rows, column, values, {} if generic else known)
    remarks += said
    guessed: dict[str, int] = {}
    if not all(value.lower() in known for value in set(values)):
        if all(map(_is_whole, set(values))):
            known = {value: int(value) for value in set(values)}
        elif generic and label2id and num_labels == len(set(values)):
            names, classes = ", ".join(sorted(set(values))[:4]), ", ".join(list(label2id)[:4])
            raise BadData(
                f"{rows.place(0, column)}: labels are names ({names}), but the model calls its classes {classes}, "
                "so which is which is unknown; number the labels, or set label2id in the model's config.json"
            )
        elif generic and num_labels in (None, len(set(values))):
            guessed = {name: number for number, name in enumerate(sorted(set(values)))}
            known = {name.lower(): number for name, number in guessed.items()}
            remarks.append(f"labels numbered in sorted order: {_list(guessed)}")
    ids = []
    for i, value in enumerate(values):
        number = known.get(value.lower())
        if number is None or number < 0 or (num_labels is not None and number >= num_labels):
            choice = _list(label2id, num_labels)
            raise BadData(f"{rows.place(i, column)}: label {value!r} is none of the model's: {choice}")
        ids.append(number)
    return ids, guessed, remarks


def agrees(guessed: Mapping[str, int], label2id: Mapping[str, int]) -> bool:
    """Whether names numbered by guess can be the model's classes: the same numbers, or names that say nothing.

    >>> agrees({"bad": 0, "good": 1}, {"LABEL_0": 0, "LABEL_1": 1})
    True
    >>> agrees({"bad": 0, "good": 1}, {"GOOD": 0, "BAD": 1})
    False
    """
    known = _lower(label2id)
    same = all(known.get(name.lower()) == number for name, number in guessed.items())
    return same or (_generic(known) and len(guessed) == len(known))


def _lower(label2id: Mapping[str, int] | None) -> dict[str, int]:
    return {str(name).strip().lower(): int(number) for name, number in (label2id or {}).items()}


def _generic(known: Mapping[str, int]) -> bool:
    """Whether the names are those that transformers gives, which say nothing."""
    return all(name == f"label_{number}" for name, number in known.items())


def _clean(rows: Rows, row: int, column: str) -> str:
    value = rows.table[column][row]
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        raise BadData(f"{rows.place(row, column)}: there is no label")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(int(value) if isinstance(value, bool) else value).strip()


def _by_class_names(
    rows: Rows, column: str, values: list[str], known: Mapping[str, int]
) -> tuple[list[str], list[str]]:
    """Numbers of named classes as those names, since the model may number them otherwise."""
    names = rows.classes.get(column)
    if not names or not known:
        return values, []
    if any(name.lower() not in known for name in names):
        return values, [f"the data's classes ({', '.join(names)}) are not the model's; their numbers are used"]
    return [names[int(value)] if value != "-1" else value for value in values], []


def _is_whole(value: str) -> bool:
    return re.fullmatch(r"-?[0-9]{1,15}", value) is not None


def _list(label2id: Mapping[str, int] | None, num_labels: int | None = None) -> str:
    if label2id and not _generic(_lower(label2id)):
        return ", ".join(f"{name} = {number}" for name, number in label2id.items())
    return f"0 to {num_labels - 1}" if num_labels else "whole numbers from 0"
