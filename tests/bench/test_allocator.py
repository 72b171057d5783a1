"""What is restored of glibc's malloc: seen in processes of their own, by what malloc does with large blocks."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys

import pytest

from headcount.bench.timing import MMAP_MAX, MMAP_THRESHOLD, NEVER, TRIM_THRESHOLD, plan, settings_of

LOOK = """
import ctypes, json
from headcount.bench import kept_memory

class Info(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype, libc.malloc.restype = Info, ctypes.c_void_p
libc.malloc.argtypes, libc.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]

def mapped(count, size):
    "How many of these blocks come from mmap."
    before = libc.mallinfo2().hblks
    blocks = [libc.malloc(size) for _ in range(count)]
    found = libc.mallinfo2().hblks - before
    for block in reversed(blocks):
        libc.free(block)
    return found

def returned():
    "Whether 20 MiB of small blocks at the top of the heap go back to the system when they are freed."
    blocks = [libc.malloc(64 * 1024) for _ in range(320)]
    before = libc.mallinfo2().arena
    for block in reversed(blocks):
        libc.free(block)
    return before - libc.mallinfo2().arena > 10 * 2**20

def look():
    return {"large": mapped(12, 64 * 2**20), "small": mapped(600, 2**20), "returned": returned()}

first = {"large": mapped(12, 64 * 2**20), "small": mapped(600, 2**20)}
with kept_memory():
    inside = look()
print(json.dumps({"before": first, "inside": inside, "after": look()}))
"""

needs_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or tuple(map(int, platform.libc_ver()[1].split("."))) < (2, 33),
    reason="mallinfo2 came with glibc 2.33",
)


def seen(**environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    answer = subprocess.run(
        [sys.executable, "-c", LOOK], env={**clean, **environment}, capture_output=True, text=True, check=True
    )
    return json.loads(answer.stdout)


@needs_glibc
def test_without_settings_large_blocks_are_mapped_again_and_free_memory_is_kept_as_glibc_would():
    found = seen()
    assert found["before"]["large"] == 12
    assert found["inside"] == {"large": 0, "small": 0, "returned": False}
    assert found["after"] == {"large": 12, "small": 0, "returned": False}


@needs_glibc
@pytest.mark.parametrize("way", ["tunables", "variables"])
def test_what_the_environment_has_set_is_restored(way):
    if way == "tunables":
        given = {"GLIBC_TUNABLES": "glibc.malloc.mmap_max=500:glibc.malloc.trim_threshold=0x40000"}
    else:
        given = {"MALLOC_MMAP_MAX_": "500", "MALLOC_TRIM_THRESHOLD_": "262144"}
    found = seen(**given)
    assert 300 < found["before"]["small"] <= 500  # the libraries hold some
    assert found["inside"] == {"large": 0, "small": 0, "returned": False}
    assert found["after"]["small"] == found["before"]["small"]
    assert found["after"]["returned"]


@needs_glibc
def test_settings_that_keep_memory_already_stay():
    found = seen(MALLOC_MMAP_MAX_="0", MALLOC_TRIM_THRESHOLD_="4294967296")
    assert found["before"]["large"] == found["after"]["large"] == 0
    assert not found["after"]["returned"]


def test_the_plan():
    assert plan({}) == (
        {MMAP_MAX: 0, TRIM_THRESHOLD: NEVER},
        {TRIM_THRESHOLD: 64 * 2**20, MMAP_THRESHOLD: 32 * 2**20, MMAP_MAX: 65_536},
    )
    fixed = {MMAP_MAX: 0, TRIM_THRESHOLD: NEVER}, {MMAP_MAX: 65_536, TRIM_THRESHOLD: 128 * 1024}
    assert plan({MMAP_THRESHOLD: 2**20}) == fixed  # it stays as it is, and glibc holds to its defaults beside it
    assert plan({MMAP_MAX: 0, TRIM_THRESHOLD: 2**32}) == ({}, {})


@pytest.mark.parametrize(
    ("environment", "settings"),
    [
        ({}, {}),
        ({"MALLOC_MMAP_MAX_": "12"}, {MMAP_MAX: 12}),
        ({"MALLOC_TRIM_THRESHOLD_": "0x1000", "GLIBC_TUNABLES": "glibc.malloc.trim_threshold=5"}, {TRIM_THRESHOLD: 5}),
        ({"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=9:glibc.malloc.check=1"}, {MMAP_THRESHOLD: 9}),
        ({"GLIBC_TUNABLES": "nonsense", "MALLOC_MMAP_MAX_": "many"}, {}),
    ],
)
def test_the_environment_is_read_as_glibc_reads_it(environment, settings):
    assert settings_of(environment) == settings
