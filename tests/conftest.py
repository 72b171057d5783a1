"""What every test gets: no network, one thread, reproducible hypothesis runs, and the shared data if there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Before torch and transformers are imported: both read these only then.
os.environ.update(
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    TRANSFORMERS_VERBOSITY="error",
    TOKENIZERS_PARALLELISM="false",
)
# Some virtual machines announce AMX and then refuse it: bfloat16 would end the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models: more threads only wait for each other

REPOSITORY = Path(__file__).resolve().parent.parent

# A forward pass takes unpredictably long on a busy machine: no deadlines.
settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("local"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture
def repository() -> Path:
    """The root of the repository."""
    return REPOSITORY


@pytest.fixture
def shared() -> Path:
    """The directory of real models and data: `HEADCOUNT_SHARED`, by default `shared` beside the repository."""
    path = Path(os.environ.get("HEADCOUNT_SHARED") or REPOSITORY.parent / "shared")
    if not path.is_dir():
        pytest.skip(f"no shared models and data in {path}; point HEADCOUNT_SHARED to them")
    return path
