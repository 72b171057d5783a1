"""Environments of their own for packages that headcount does not depend on, made when a slow test asks for one."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src"


def environment(directory: Path, *packages: str) -> Path:
    """The Python of a new environment with these packages, and all that the running one has; skips without them."""
    venv.create(directory, with_pip=True)
    python = directory / "bin" / "python"
    inside = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    (Path(inside) / "outer.pth").write_text(f"{SOURCE}\n{sysconfig.get_path('purelib')}\n")
    install = [python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "torch==2.13.0", *packages]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{', '.join(packages)} cannot be installed here: {done.stderr.strip()[-200:]}")
    return python


def run(python: Path, code: str, home: Path) -> str:
    """What a script prints in an environment; a script that fails fails the test."""
    settings = {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(SOURCE)}
    settings["OMP_NUM_THREADS"] = "1"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, env=settings, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def importable(*names: str) -> bool:
    """Whether the running Python has these already."""
    code = f"import {', '.join(names)}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
