"""Which sites an ablation looks at, and how two sweeps share one progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from headcount.anatomy import Anatomy, AttentionSite
from headcount.engine import RunDirectory
from headcount.errors import HeadcountError, unknown

Progress = Callable[[float], None]
Run = str | Path | RunDirectory | None


def chosen_sites(found: Anatomy, kinds: Iterable[str] | None, layers: Iterable[int] | None) -> list[AttentionSite]:
    """The sites of these kinds and layers; a kind or layer that the model lacks is refused."""
    for kind in kinds or ():
        if kind not in found.kinds:
            raise HeadcountError(unknown("attention kind", kind, found.kinds))
    wanted = [site for site in found.sites if kinds is None or site.kind in set(kinds)]
    for layer in layers or ():
        if all(site.layer != layer for site in wanted):
            raise HeadcountError(f"there is no layer {layer}; layers are {sorted({site.layer for site in wanted})}")
    chosen = [site for site in wanted if layers is None or site.layer in set(layers)]
    if not any(site.kept for site in chosen):
        raise HeadcountError("no heads are chosen; name kinds and layers that have some")
    return chosen


def halves(progress: Progress | None) -> tuple[Progress | None, Progress | None]:
    """The progress of a first and of a second sweep."""
    if progress is None:
        return None, None
    return lambda share: progress(share / 2), lambda share: progress(0.5 + share / 2)
