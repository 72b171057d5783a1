"""Directories of data: nothing in them may send the datasets library to files elsewhere, or to the network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from headcount.errors import BadData, first_line

CARDS = ("README.md", ".huggingface.yaml")


def refuse_elsewhere(folder: Path) -> None:
    """Refuse a directory whose own files name data that is not in it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     _ = (Path(place) / "state.json").write_text('{"_data_files": [{"filename": "../a.arrow"}]}')
    ...     refuse_elsewhere(Path(place))
    Traceback (most recent call last):
    headcount.errors.BadData: state.json names '../a.arrow', which is not in its directory; name the data file itself
    """
    for name in ("state.json", "dataset_dict.json"):
        for file in (folder / name, *sorted(folder.glob(f"*/{name}"))):
            _refuse_names(_json(file), file.name)
    for name in CARDS:
        _refuse_names(_card(folder / name), name)


def _refuse_names(content: Any, file: str) -> None:
    for word in _words(content):
        parts = PurePosixPath(word).parts
        if "://" in word or "::" in word or word.startswith(("/", "~")) or ".." in parts:
            raise BadData(f"{file} names {word!r}, which is not in its directory; name the data file itself")


def _words(content: Any) -> Iterator[str]:
    """Every text in what a file holds, each part once: in YAML a part can hold itself."""
    seen, left = set[int](), [content]
    while left:
        part = left.pop()
        if isinstance(part, str):
            yield part
        elif isinstance(part, (dict, list)) and id(part) not in seen:
            seen.add(id(part))
            left += [*part, *part.values()] if isinstance(part, dict) else part


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes()) if file.is_file() else None
    except (OSError, ValueError, RecursionError) as error:
        raise BadData(f"{file} cannot be read: {error}") from None


def _card(file: Path) -> Any:
    """What a card says about which files are data, read as the datasets library reads it."""
    import yaml
    from huggingface_hub import DatasetCard

    if not file.is_file():
        return None
    try:
        if file.suffix == ".md":
            content = DatasetCard.load(file).data.to_dict()
        else:
            content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except Exception as error:  # cards are checked with errors of many kinds
        raise BadData(f"{file} cannot be read: {first_line(error)}") from None
    return content.get("configs") if isinstance(content, dict) else content
