"""What a process holds, as Linux tells it."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from pathlib import Path

import pytest

from blackbox.testing import wait_until
from tests.own_process import INSIDE

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has /proc")


def held(*, collect: bool = True) -> tuple[int, int]:
    """Threads, those of libraries included, and open file descriptors of this process.

    For tests in a process of their own: elsewhere Spark's threads, and those of other tests, come and go.
    """
    assert INSIDE in os.environ, "threads and descriptors were counted beside other tests, expected own_process"
    if collect:
        gc.collect()
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def wait_given_back(before: tuple[int, int]) -> None:
    """Wait until no more is held than `before`: a thread that was joined may still be there for a moment."""

    def is_given_back() -> bool:
        return all(now <= was for now, was in zip(held(), before, strict=True))

    wait_until(is_given_back, what=f"{before} threads and descriptors, as before,")


def resident_bytes(pid: int | str = "self") -> int:
    """Memory of a process that is in RAM; of this one, without what the allocator keeps for later."""
    if pid == "self":
        getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)(0)
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
