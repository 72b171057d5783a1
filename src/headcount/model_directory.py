"""The directory that a model's name means: here, or fetched from the hub; and what is wrong with one that holds none.

Nothing heavy is imported, so that a mistyped name is refused at once.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from headcount.errors import BadCheckpoint, counted, first_line

CONFIG, ADAPTER = "config.json", "adapter_config.json"  # what a saved model has, and what an adapter of peft has
MODULES = "modules.json"  # what a directory of sentence-transformers has
FILES = ("*.json", "*.safetensors", "*.model", "*.txt")
DESCRIPTION = (CONFIG, f"*/{CONFIG}", ADAPTER, MODULES)  # what tells which model a directory holds


def fetch(name: str | Path, patterns: tuple[str, ...] = FILES) -> Path:
    """The directory of a model; a hub id is downloaded first. Of sentence-transformers, that of the transformer."""
    if not is_hub_id(name):
        return transformer_directory(Path(name))
    from huggingface_hub import snapshot_download

    try:
        directory = Path(snapshot_download(str(name), allow_patterns=list(patterns)))
    except Exception as error:  # the hub's client raises errors of many kinds, with or without a network
        raise BadCheckpoint(
            f"{name} is not a directory here, and fetching it from the hub failed: {_why(error)}"
        ) from error
    return transformer_directory(directory)


def _why(error: Exception) -> str:
    """Why a model could not be fetched, in words; the hub's own begin with the names of exceptions."""
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    reasons = {
        GatedRepoError: "access to it has to be requested on its page",
        RepositoryNotFoundError: "no model has that name, or it is private",
        LocalEntryNotFoundError: "the hub cannot be reached, and the model is not in the cache",
    }
    return next((words for kind, words in reasons.items() if isinstance(error, kind)), first_line(error))


def is_hub_id(name: str | Path) -> bool:
    """Whether a model's name means one on the hub, and not a directory here; a `Path` never does.

    >>> is_hub_id("org/model"), is_hub_id("./model"), is_hub_id(Path("org/model"))
    (True, False, False)
    """
    if isinstance(name, Path) or Path(name).exists():
        return False
    return re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", name) is not None


def transformer_directory(directory: Path) -> Path:
    """Where the transformer of a directory is: in the directory itself, or where `modules.json` puts it."""
    if (directory / MODULES).is_file() and not (directory / CONFIG).is_file():
        return directory / transformer_module(directory)["path"]
    return directory


def refuse_unlike_model(directory: Path) -> None:
    """Refuse a path that holds no saved model, and name what was probably meant: the last checkpoint inside it."""
    if not directory.is_dir():
        raise BadCheckpoint(f"{directory} is not a directory", advice="give the directory of a saved model")
    if (directory / ADAPTER).exists():
        raise BadCheckpoint(
            f"{directory / ADAPTER}: this is an adapter (PEFT)",
            advice="load it with peft, call merge_and_unload(), and save the model that it returns",
        )
    if not (directory / CONFIG).exists():
        inside = sorted((file.parent for file in directory.glob(f"*/{CONFIG}")), key=by_number)
        holds = f", but {counted(len(inside), 'checkpoint')} inside have one" if len(inside) > 1 else ""
        hint = f"did you mean {inside[-1]}?" if inside else ""
        raise BadCheckpoint(f"{directory / CONFIG} is missing{holds}", advice=hint)


def by_number(path: Path) -> list[Any]:
    """A key to sort paths by: checkpoint-80 comes before checkpoint-100."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]


def transformer_module(directory: Path) -> dict[str, Any]:
    """The entry of `modules.json` that is the transformer."""
    for module in read_modules(directory):
        if module["type"].rpartition(".")[2] == "Transformer":
            return module
    raise BadCheckpoint(f"{directory / MODULES} names no Transformer")


def read_modules(directory: Path) -> list[dict[str, Any]]:
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
