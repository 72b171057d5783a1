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
from headcount.structure import came_from

MODULES = "modules.json"
SETTINGS = ("config_sentence_transformers.json", "sentence_bert_config.json")
COPIED = (".json", ".safetensors", ".txt", ".model", ".bin")  # of the other modules, read by nobody here


def transformer_directory(directory: Path) -> Path:
    """Where the transformer of a directory is: in the directory itself, or where `modules.json` puts it."""
    if (directory / MODULES).is_file() and not (directory / "config.json").is_file():
        return directory / _transformer(directory)["path"]
    return directory


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
    saved = (read_object(transformer_directory(root) / "config.json", BadCheckpoint) or {}).get("architectures")
    return root if saved == [type(model).__name__] else None  # not a classifier that started from the transformer


def copy_modules(source: Path, target: Path) -> None:
    """Put the modules of one directory around the transformer that was saved in another, at its top."""
    modules = _modules(source)
    transformer = _transformer(source)
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


def _transformer(directory: Path) -> dict[str, Any]:
    for module in _modules(directory):
        if module["type"].rpartition(".")[2] == "Transformer":
            return module
    raise BadCheckpoint(f"{directory / MODULES} names no Transformer")


def _modules(directory: Path) -> list[dict[str, Any]]:
    """The modules of a directory, with paths that stay inside it."""
    file = directory / MODULES
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        raise BadCheckpoint(f"{file} is not valid JSON") from None
    for module in content if isinstance(content, list) else [content]:
        path = module.get("path") if isinstance(module, dict) else None
        if not isinstance(path, str) or not isinstance(module.get("type"), str):
            raise BadCheckpoint(f"{file} does not list modules, each with a type and a path")
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise BadCheckpoint(f"{file} puts a module at {path!r}, outside of its directory")
    return content if isinstance(content, list) else []
