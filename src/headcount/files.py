"""Files and directories that are written whole or not at all, and JSON that every reader takes."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headcount.errors import HeadcountError, RunConflict, first_line

HERE, EXCHANGE = -100, 2  # Linux: AT_FDCWD, RENAME_EXCHANGE


def to_json(content: dict[str, Any]) -> str:
    """One object, indented; numbers that JSON does not have become null, numpy's numbers become numbers.

    >>> to_json({"score": float("nan"), 3: (1.5, True)})
    '{\\n  "score": null,\\n  "3": [\\n    1.5,\\n    true\\n  ]\\n}'
    """
    return json.dumps(_plain(content), ensure_ascii=False, indent=2, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None  # nan is not less than anything
    if isinstance(value, (str, int, type(None))):
        return value
    return _plain(value.item()) if hasattr(value, "item") else str(value)


def read_object(
    file: Path, error: type[HeadcountError] = RunConflict, most: int | None = None
) -> dict[str, Any] | None:
    """The JSON object in a file, or None if the file does not exist.

    error: raised, with the file's name, for anything else. most: bytes that the file may have.
    """
    try:
        if most is not None and file.stat().st_size > most:
            raise error(f"{file} is larger than {most:,} bytes, too large for what it should hold")
        content = json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as reason:
        raise error(f"{file} is not valid JSON: {first_line(reason)}") from None
    except OSError as reason:
        raise error(f"{file} cannot be read: {reason.strerror}") from None
    if not isinstance(content, dict):
        raise error(f"{file} is not a JSON object")
    return content


def path_of(value: Any, argument: str) -> Path:
    """A path that somebody gave as an argument; anything else is refused by the argument's name."""
    if not isinstance(value, str | os.PathLike):
        raise HeadcountError(f"{argument} is {value!r:.60}, not a path", advice=f"give {{{argument}}} a path")
    return Path(value)


def looks_like_a_file(name: str) -> bool:
    """Whether a name means a file: a mistyped one is then reported at once, without asking the hub for it."""
    path = Path(name)
    in_a_folder = path.parent != Path() and path.parent.is_dir()
    return in_a_folder or name.startswith((".", "/", "~")) or name.count("/") > 1 or path.suffix[1:].isalpha()


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it is whole or not there, whenever the process or the machine stops."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise RunConflict(f"cannot write {path}: {error.strerror}; everything finished before is kept") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def make_parent(file: Path) -> None:
    """Make the directory of a file that is about to be written, and see that it can be written there."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=file.parent).close()
    except OSError as error:
        raise HeadcountError(f"cannot write {file}: {error.strerror}", advice="choose another place") from error


@contextmanager
def replaced_directory(directory: Path, outdated: Callable[[str], bool]) -> Iterator[Path]:
    """A new directory beside the given one that takes its place when the block ends well, and vanishes otherwise.

    outdated: by its name, whether a file of the earlier directory is left behind; all others are carried over.
    """
    refuse_irreplaceable(directory)
    target = directory.resolve()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
    except OSError as error:
        raise HeadcountError(f"cannot write beside {directory}: {error.strerror}", "choose another place") from error
    try:
        partial.chmod(0o777 & ~_umask())
        yield partial
        if target.exists():
            _carry_over(target, partial, outdated)
        _sync(partial)
        _swap(partial, target)
    except OSError as error:
        raise HeadcountError(f"cannot save to {directory}: {error.strerror}; what was there is untouched") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def refuse_irreplaceable(directory: Path) -> None:
    """Refuse a path that no new directory can take the place of."""
    target = directory.resolve()
    if target.exists() and not target.is_dir():
        raise HeadcountError(f"{directory} is a file", advice="choose another directory to save to")
    if target == Path.cwd():
        raise HeadcountError(
            f"{directory} is the current directory, which cannot be replaced", advice="name one below it"
        )


def _carry_over(old: Path, new: Path, outdated: Callable[[str], bool]) -> None:
    for path in old.iterdir():
        if outdated(path.name) or (new / path.name).exists():
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
                with contextlib.suppress(OSError):
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
