"""A directory that takes the place of an earlier one in one step, when it is whole, and not at all otherwise."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from headcount.errors import HeadcountError

WEIGHT_FILES = re.compile(r".*\.safetensors|(pytorch|tf|flax)_model.*|model\.safetensors\.index\.json|adapter_.*")
HERE, EXCHANGE = -100, 2  # Linux: AT_FDCWD, RENAME_EXCHANGE


def refuse_strangers(directory: Path) -> None:
    """A model is saved to a directory that is new, empty, or holds a model; to no other, and not to the current one."""
    target = directory.resolve()
    if target.exists() and not target.is_dir():
        raise HeadcountError(f"{directory} is a file; choose another directory to save to")
    if target == Path.cwd():
        raise HeadcountError(f"{directory} is the current directory, which cannot be replaced; name one below it")
    if target.is_dir() and any(target.iterdir()) and not (target / "config.json").is_file():
        raise HeadcountError(f"{directory} is not empty and holds no model; choose another directory to save to")


@contextmanager
def replacing(directory: Path, own_files: tuple[str, ...]) -> Iterator[Path]:
    """A new directory beside the given one that takes its place when the block ends well, and vanishes otherwise.

    Files of the earlier one that are no part of a checkpoint (weights, `own_files`) are carried over.
    """
    refuse_strangers(directory)
    target = directory.resolve()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
    except OSError as error:
        raise HeadcountError(f"cannot write beside {directory}: {error.strerror}") from error
    try:
        partial.chmod(0o777 & ~_umask())
        yield partial
        if target.exists():
            _carry_over(target, partial, own_files)
        _sync(partial)
        _swap(partial, target)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise HeadcountError(f"cannot save to {directory}: {reason}; what was there is untouched") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _carry_over(old: Path, new: Path, own_files: tuple[str, ...]) -> None:
    for path in old.iterdir():
        if WEIGHT_FILES.fullmatch(path.name) or path.name in own_files or (new / path.name).exists():
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.copytree(path, new / path.name, symlinks=True, copy_function=_link)
        else:
            _link(path, new / path.name)


def _link(source: Path | str, destination: Path | str) -> None:
    try:
        os.link(source, destination, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, destination, follow_symlinks=False)


def _swap(new: Path, target: Path) -> None:
    """Put the new directory in place of the old one; whatever happens, one of them is there, whole."""
    if not target.exists():
        os.rename(new, target)
    elif not _exchange(new, target):
        old = new.with_suffix(".replaced")
        try:
            os.rename(target, old)
            os.rename(new, target)
        except BaseException:
            if not target.exists():
                with suppress(OSError):
                    os.rename(old, target)
            raise
        shutil.rmtree(old, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Let two directories change places in one step, where the system can."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if os.name == "posix" else None
    return rename is not None and rename(HERE, os.fsencode(one), HERE, os.fsencode(other), EXCHANGE) == 0


def _sync(directory: Path) -> None:
    for file in (path for path in directory.rglob("*") if path.is_file() and not path.is_symlink()):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
