"""What a process holds, as Linux tells it."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from pathlib import Path

import pytest

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has /proc")


def held(*, collect: bool = True) -> tuple[int, int]:
    """Threads, those of libraries included, and open file descriptors of this process."""
    if collect:
        gc.collect()
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def resident_bytes(pid: int | str = "self") -> int:
    """Memory of a process that is in RAM; of this one, without what the allocator keeps for later."""
    if pid == "self":
        getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)(0)
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
