"""Every kind of model that can be explored."""

from __future__ import annotations

import pytest

from explored_models import KINDS, Explored, build


@pytest.fixture(params=KINDS)
def explored(request) -> Explored:
    return build(request.param)
