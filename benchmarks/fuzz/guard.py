"""What an input may do: read and write in its own directory, and nothing else; whatever else it does is written down.

Python tells an audit hook what it opens, runs and connects to. Libraries that are not written in Python open files
without telling anybody: on Linux the kernel says what happens in a directory.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from pathlib import Path
from typing import Any

ACCESS, MODIFY, ATTRIB, OPEN, MOVED, CREATE, DELETE = 0x1, 0x2, 0x4, 0x20, 0xC0, 0x100, 0x600
CHANGED = MODIFY | ATTRIB | MOVED | CREATE | DELETE
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
NEVER = (
    *("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.bind", "socket.sendto"),
    *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "builtins.input"),
    *("pickle.find_class", "ctypes.dlopen", "webbrowser.open", "urllib.Request"),
)
CHANGING = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod", "os.link", "os.symlink")


class Guard:
    """Watches a process from now on; `seen` tells what was done that may not be done.

    given: where the readers' files lie; outside: what may not be touched; linked: what may be read, by a link.
    """

    def __init__(self, given: Path, outside: Path, linked: Path) -> None:
        self.given, self.untouchable = os.path.realpath(given), (os.path.realpath(outside), os.path.realpath(linked))
        self.notes: list[str] = []
        self.on = False
        self.kernel = _watch({outside: CHANGED | OPEN | ACCESS, linked: CHANGED})
        sys.addaudithook(self._hook)

    def seen(self) -> list[str]:
        """What was done since the last call."""
        notes, self.notes = self.notes, []
        return notes + [f"touched {name} outside" for name in _events(self.kernel)]

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event in NEVER:
            self.notes.append(f"{event} {arguments!r}"[:300])
        elif event == "open":
            self._opened(*arguments)
        elif event in CHANGING and not self._inside(_place(arguments)):
            self.notes.append(f"{event} {arguments[0]!r}"[:300])
        elif event == "exec" and self._among_ours(getattr(arguments[0], "co_filename", "")):
            self.notes.append(f"ran {arguments[0].co_filename}")

    def _opened(self, path: Any, mode: Any, flags: int) -> None:
        if isinstance(path, int) or not flags & WRITING or path == os.devnull:
            return
        if not self._inside(path):
            self.notes.append(f"opened {path!r} to write")

    def _inside(self, path: Any) -> bool:
        return _real(path).startswith(self.given + os.sep) or _real(path) == self.given

    def _among_ours(self, path: str) -> bool:
        return _real(path).startswith((self.given + os.sep, *(place + os.sep for place in self.untouchable)))


def _place(arguments: tuple[Any, ...]) -> Any:
    """The path that is changed; a relative one may start at an open directory, whose descriptor comes last.

    A file may be named by its descriptor too.
    """
    path, start = arguments[0], arguments[-1]
    if isinstance(path, int):
        return os.readlink(f"/proc/self/fd/{path}")
    if isinstance(start, int) and start > 2 and os.path.islink(f"/proc/self/fd/{start}"):
        return os.path.join(os.readlink(f"/proc/self/fd/{start}"), os.fsdecode(path))
    return path


def _real(path: Any) -> str:
    try:
        return os.path.realpath(os.fsdecode(path))
    except (OSError, ValueError, TypeError):  # a path with a zero byte in it is opened by nobody
        return ""


def _watch(places: dict[Path, int]) -> int | None:
    """A descriptor that tells what happens in directories, where there is such a thing."""
    system = ctypes.CDLL(None)
    if not hasattr(system, "inotify_init1"):
        return None
    descriptor = system.inotify_init1(os.O_NONBLOCK)
    for place, events in places.items():
        if system.inotify_add_watch(descriptor, os.fsencode(place), events) < 0:
            raise OSError(f"cannot watch {place}")
    return descriptor


def _events(descriptor: int | None) -> list[str]:
    """The names of the files that something happened to."""
    try:
        content = os.read(descriptor, 65536) if descriptor is not None else b""
    except BlockingIOError:
        return []
    names, place = [], 0
    while place < len(content):
        _, events, _, length = struct.unpack_from("iIII", content, place)
        name = content[place + 16 : place + 16 + length].rstrip(b"\x00").decode(errors="replace")
        names.append(f"{name} ({events:#x})")
        place += 16 + length
    return names
