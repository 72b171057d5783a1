"""The cut that exports are tried with."""

import random

import pytest

from headcount import anatomy, remove


@pytest.fixture(scope="session")
def pruned():
    """A model without half of its heads and neurons, at random; of each kind, one site is emptied."""

    def without_half(model):
        found = anatomy(model, ["heads", "neurons"])
        gone = set(random.Random(0).sample(found.units, len(found.units) // 2))
        for kind in found.kinds:
            sites = [site for site in found.sites if site.kind == kind]
            if len(sites) > 1:
                gone |= set(sites[0].heads)
        return remove(model, sorted(gone))

    return without_half
