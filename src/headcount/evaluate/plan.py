"""Which way each mask is evaluated: replayed, on a really pruned copy, or plainly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headcount.anatomy import Anatomy
from headcount.errors import HeadcountError, UnsupportedModel
from headcount.evaluate.outcomes import Mask
from headcount.heads import Head
from headcount.surgery.remove import refuse_wrapped
from headcount.tasks import Task


@dataclass(frozen=True)
class Plan:
    """Distinct masks by the way they are evaluated; `replayed` by the site where they differ from the whole model."""

    replayed: dict[str, list[Mask]]
    pruned: list[Mask]
    plain: list[Mask]


def make_plan(found: Anatomy, task: Task, masks: Iterable[Mask], fast: bool, removable: bool = True) -> Plan:
    """One site: replay. Several sites: a pruned copy, which gets faster the more is gone. Neither possible: plainly."""
    plan = Plan({}, [], [])
    shared = {site.name for site in found.sites if site.also_layers}
    removable = removable and _removable(found)
    drafts = not task.generates or getattr(task, "beams", 1) == 1
    for mask in dict.fromkeys(masks):
        sites = {head.site for head in mask}
        if not mask:
            continue
        if fast and drafts and len(sites) == 1 and not sites & shared:
            plan.replayed.setdefault(sites.pop(), []).append(mask)
        elif fast and removable and len(sites) > 1:
            plan.pruned.append(mask)
        else:
            plan.plain.append(mask)
    return plan


def read_masks(found: Anatomy, masks: Sequence[Iterable[Head | str] | str] | None) -> tuple[Mask, ...]:
    """The masks asked for, each a set of heads that the model has; none given means the whole model."""
    if masks is not None and (isinstance(masks, str) or not len(masks)):
        raise HeadcountError("masks is a list of sets of heads, at least one; [[]] is the whole model")
    return tuple(frozenset(found.check(mask)) for mask in ([()] if masks is None else masks))


def _removable(found: Anatomy) -> bool:
    try:
        refuse_wrapped(found)
    except UnsupportedModel:
        return False
    return not any(site.family.structural for site in found.sites)
