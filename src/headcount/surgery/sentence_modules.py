"""Directories of sentence-transformers: `modules.json` names a transformer, its pooling, and whatever follows.

The transformer is a model like any other: it is loaded from where `modules.json` says, and a smaller one is saved with
the other modules around it, so that `SentenceTransformer(directory)` encodes. Nothing of these modules is run.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError

from headcount.errors import BadCheckpoint
from headcount.files import read_object
from headcount.model_directory import CONFIG, MODULES, read_modules, transformer_directory, transformer_module
from headcount.structure import came_from

SETTINGS = ("config_sentence_transformers.json", "sentence_bert_config.json")
COPIED = (".json", ".safetensors", ".txt", ".model", ".bin")  # of the other modules, read by nobody here


def sentence_directory(model: Any) -> Path | None:
    """The directory of sentence-transformers that a model was the transformer of, here or in the hub's cache."""
    source = came_from(model)
    if source and not Path(source).is_dir():
        try:
            cached = try_to_load_from_cache(source, MODULES)
        except HFValidationError:
            return None
        source = str(Path(cached).parent) if isinstance(cached, str) else ""
    if not source:
        return None
    here = Path(source)
    root = here if (here / MODULES).is_file() else here.parent
    if not (root / MODULES).is_file() or transformer_directory(root).resolve() not in (here.resolve(), root.resolve()):
        return None
    saved = (read_object(transformer_directory(root) / CONFIG, BadCheckpoint) or {}).get("architectures")
    return root if saved == [type(model).__name__] else None  # not a classifier that started from the transformer


def copy_modules(source: Path, target: Path) -> None:
    """Put the modules of one directory around the transformer that was saved in another, at its top."""
    modules = read_modules(source)
    transformer = transformer_module(source)
    for module in modules:
        folder = source / module["path"]
        if module == transformer:
            module["path"] = ""
        elif module["path"] and folder.is_dir():
            for file in sorted(path for path in folder.rglob("*") if path.suffix in COPIED and path.is_file()):
                place = target / file.relative_to(source)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, place)
    for name in SETTINGS:
        for place in (transformer_directory(source), source):
            if (place / name).is_file():
                shutil.copyfile(place / name, target / name)
                break
    (target / MODULES).write_text(json.dumps(modules, indent=2) + "\n", encoding="utf-8")


def is_of_modules(file: Path) -> bool:
    """Whether a file or directory was put beside a transformer by sentence-transformers."""
    return file.name in (MODULES, *SETTINGS) or (file.is_dir() and file.name.partition("_")[0].isdecimal())
