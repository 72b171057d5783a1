import sys

import pytest


@pytest.fixture(scope="package", autouse=True)
def benchmarks(pytestconfig):
    """`benchmarks` is not installed: it is found from the root of the repository."""
    sys.path.insert(0, str(pytestconfig.rootpath))
    yield
    sys.path.remove(str(pytestconfig.rootpath))
