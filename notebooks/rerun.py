"""Run the notebooks and keep what they show: `python notebooks/rerun.py`, or with the names of some.

Each runs from the top in an empty directory, without a network. What it writes to stderr (progress, other libraries'
warnings) is not kept, nor is anything that would differ next time for no reason.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent


def executed(file: Path) -> Any:
    """The notebook with its outputs; an error in a cell is raised here."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    notebook = nbformat.read(file, as_version=4)
    with tempfile.TemporaryDirectory() as empty:
        NotebookClient(notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": empty}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times
        if cell.cell_type == "code":
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
    notebook.metadata.language_info = {"name": "python"}  # not the version of this Python
    return notebook


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(HERE.glob("*.ipynb")):
        nbformat.write(executed(Path(name)), name)
