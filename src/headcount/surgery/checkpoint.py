"""What lies in a model directory, read with suspicion: JSON and safetensors headers only, nothing executed."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headcount.errors import BadCheckpoint

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_JSON = 256 * 2**20  # no honest configuration, index or header is larger


@dataclass(frozen=True)
class Checkpoint:
    """A directory whose files have been found whole: its configuration, and every tensor's shape and file."""

    directory: Path
    config: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    files: dict[str, str]  # tensor name -> file name


def read_checkpoint(directory: str | Path) -> Checkpoint:
    """Check a model directory before anything of it is loaded; raises `BadCheckpoint` that names the file."""
    directory = Path(directory)
    if not directory.is_dir():
        raise BadCheckpoint(f"{directory} is not a directory; give the directory of a saved model")
    config = read_json(directory / "config.json")
    shapes: dict[str, tuple[int, ...]] = {}
    files: dict[str, str] = {}
    for name, expected in _weight_files(directory).items():
        found = read_header(directory / name)
        missing = [tensor for tensor in expected if tensor not in found]
        if missing:
            raise BadCheckpoint(f"{directory / name} lacks the tensor {missing[0]!r} that {INDEX} promises")
        shapes.update(found)
        files.update(dict.fromkeys(found, name))
    return Checkpoint(directory, config, shapes, files)


def _weight_files(directory: Path) -> dict[str, list[str]]:
    """The files that hold the weights, each with the tensors that the index expects there."""
    if (directory / INDEX).exists():
        mapping = read_json(directory / INDEX).get("weight_map")
        if not isinstance(mapping, dict) or not mapping:
            raise BadCheckpoint(f"{directory / INDEX} has no weight_map")
        files: dict[str, list[str]] = {}
        for tensor, name in mapping.items():
            if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
                raise BadCheckpoint(
                    f"{directory / INDEX} points to {name!r}, which is not a safetensors file beside it"
                )
            files.setdefault(name, []).append(tensor)
        return files
    if (directory / WEIGHTS).exists():
        return {WEIGHTS: []}
    pickles = sorted(
        path.name for path in directory.iterdir() if path.suffix in (".bin", ".pt", ".pth", ".pkl", ".ckpt")
    )
    if pickles:
        raise BadCheckpoint(
            f"{directory / pickles[0]} is a pickle, which can run code when it is read; convert it to {WEIGHTS} first"
        )
    raise BadCheckpoint(f"{directory} has no {WEIGHTS}")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or `BadCheckpoint`."""
    try:
        if path.stat().st_size > MAX_JSON:
            raise BadCheckpoint(f"{path} is too large to be a JSON file of a model")
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise BadCheckpoint(f"{path} is missing") from None
    except (ValueError, RecursionError) as error:
        raise BadCheckpoint(f"{path} is not valid JSON: {str(error).splitlines()[0]}") from None
    except OSError as error:
        raise BadCheckpoint(f"{path} cannot be read: {error.strerror}") from None
    if not isinstance(content, dict):
        raise BadCheckpoint(f"{path} is not a JSON object")
    return content


def read_header(path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor in a safetensors file, after checking that the file is whole."""
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            start = stream.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
            if not 2 <= length <= min(size - 8, MAX_JSON):
                raise BadCheckpoint(f"{path} is not a safetensors file, or it is cut short")
            header = json.loads(stream.read(length))
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
        ends = [int(entry["data_offsets"][1]) for entry in tensors.values()]
        shapes = {name: tuple(int(extent) for extent in entry["shape"]) for name, entry in tensors.items()}
    except FileNotFoundError:
        raise BadCheckpoint(f"{path} is missing") from None
    except OSError as error:
        raise BadCheckpoint(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        raise BadCheckpoint(f"{path} has a damaged safetensors header") from None
    if 8 + length + max(ends, default=0) != size:
        raise BadCheckpoint(
            f"{path} should have {8 + length + max(ends, default=0)} bytes but has {size}; it is cut short or damaged"
        )
    return shapes
