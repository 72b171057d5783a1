"""Let the C library keep the memory of freed tensors while models are timed, as the allocator of a server does.

glibc returns large blocks to the system when they are freed, and asks for them again: at batch 64 that is a tenth of a
forward pass, in the original and in the pruned model alike, though only what they compute is to be compared.

`mallopt` can change this in a running process, but no function tells what was set before. What can be known is the
environment that the process was started with (GLIBC_TUNABLES, MALLOC_MMAP_MAX_, MALLOC_TRIM_THRESHOLD_, …):

- A setting that already keeps memory is not touched.
- If the environment sets any of them, glibc holds to fixed values, and exactly these are restored.
- If it sets none, glibc raises its thresholds with the blocks that the program frees, up to 32 MiB. The first `mallopt`
  ends that for the rest of the process. So the thresholds are left where it leads in a program that frees large
  tensors: blocks of 32 MiB and more are returned, and 64 MiB of free memory are kept.

What the program itself has set by `mallopt` before cannot be seen, and is replaced by these values.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4  # malloc.h
NAMES = {"trim_threshold": TRIM_THRESHOLD, "mmap_threshold": MMAP_THRESHOLD, "mmap_max": MMAP_MAX, "top_pad": -2}
DEFAULTS = {TRIM_THRESHOLD: 128 * 2**10, MMAP_MAX: 65_536}
GROWN = {TRIM_THRESHOLD: 64 * 2**20, MMAP_THRESHOLD: 32 * 2**20, MMAP_MAX: 65_536}
LARGEST = 2**31 - 1  # what mallopt takes
NEVER = -1  # as a threshold: the largest there is


@contextmanager
def kept_memory() -> Iterator[None]:
    """Keep freed memory inside the block, and then restore what can be known of the settings before.

    Another C library than glibc is left as it is.
    """
    if platform.libc_ver()[0] != "glibc":
        yield
        return
    library = ctypes.CDLL(None)
    keeping, restored = plan(settings_of(_environment()))
    for parameter, value in keeping.items():
        library.mallopt(parameter, value)
    try:
        yield
    finally:
        for parameter, value in restored.items():
            library.mallopt(parameter, value)
        library.malloc_trim(0)


def plan(before: Mapping[int, int]) -> tuple[dict[int, int], dict[int, int]]:
    """What to set inside the block, and what to set after it, given what the environment has set.

    >>> keeping, restored = plan({MMAP_MAX: 0, TRIM_THRESHOLD: 2**20})  # mmap is not used anyway
    >>> keeping == {TRIM_THRESHOLD: NEVER}, restored == {TRIM_THRESHOLD: 2**20}
    (True, True)
    """
    keeping = {}
    if before.get(MMAP_MAX) != 0:
        keeping[MMAP_MAX] = 0
    if before.get(TRIM_THRESHOLD, 0) <= LARGEST:  # more than 2 GiB is never, for our purpose
        keeping[TRIM_THRESHOLD] = NEVER
    if not before:
        return keeping, dict(GROWN)
    return keeping, {parameter: before.get(parameter, DEFAULTS[parameter]) for parameter in keeping}


def settings_of(environment: Mapping[str, str]) -> dict[int, int]:
    """What glibc's malloc has been set to by the environment, by parameter of `mallopt`.

    >>> settings_of({"GLIBC_TUNABLES": "glibc.malloc.mmap_max=0x10:glibc.rtld.nns=2", "MALLOC_MMAP_MAX_": "3"})
    {-4: 16}
    """
    found: dict[int, int] = {}
    tunables = dict(one.partition("=")[::2] for one in environment.get("GLIBC_TUNABLES", "").split(":"))
    for name, parameter in NAMES.items():
        given = (tunables.get(f"glibc.malloc.{name}"), environment.get(f"MALLOC_{name.upper()}_"))
        for text in given:  # a tunable counts more
            with suppress(ValueError, TypeError):
                found.setdefault(parameter, int(text, 0))  # type: ignore[arg-type]
    return found


def _environment() -> dict[str, str]:
    """The environment that the process was started with; `os.environ` can have been changed since."""
    with suppress(OSError):
        entries = Path("/proc/self/environ").read_bytes().split(b"\0")
        return dict(os.fsdecode(entry).partition("=")[::2] for entry in entries if entry)
    return dict(os.environ)
