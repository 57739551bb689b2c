"""Threads, file descriptors and memory of a process, from Linux."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from blackbox.testing import wait_until
from tests.own_process import INSIDE

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has /proc")


def held(*, collect: bool = True) -> tuple[int, int]:
    """Return the number of threads, including those of libraries, and of open file descriptors.

    Only for tests in a separate process: elsewhere the threads of Spark and of other tests start and end.
    """
    assert INSIDE in os.environ, "threads and descriptors were counted next to other tests, expected own_process"
    if collect:
        gc.collect()
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def wait_given_back(before: tuple[int, int], *, collect: bool = True) -> None:
    """Wait until both counts are at most `before`, because a joined thread may exist a moment longer."""

    def is_given_back() -> bool:
        return all(now <= was for now, was in zip(held(collect=collect), before, strict=True))

    wait_until(is_given_back, what=f"{before} threads and descriptors, as before,")


def descriptors_of(path: Path) -> int:
    """Return how many descriptors of this process are of a file; other threads may open and close others."""
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found += each.readlink() == path
    return found


def resident_bytes(pid: int | str = "self") -> int:
    """Return the resident memory of a process; for this one, without the allocator's free memory."""
    if pid == "self":
        getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)(0)
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
