"""Scheduling priority of threads that compete for a core.

Linux lets a running thread, even a nice one, finish its time slice before a thread that wakes gets the core. Since
Linux 6.12 a thread with a longer slice is preempted at once by threads with a shorter one; before, only niceness
counts. A slice that is much longer would also delay the thread's own turn.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

_NICE: Final = 5
"""Niceness above the main thread's. Such a thread gets a third of the time of others on a busy core."""
_MOST_NICE: Final = 19
_TIMES: Final = 1.1
"""Slice length of a thread that gives way, relative to others."""
_SET, _GET = {"x86_64": (314, 315), "aarch64": (274, 275)}.get(platform.machine(), (0, 0))
"""System call numbers of sched_setattr and sched_getattr, which older C libraries lack."""


class _Attributes(ctypes.Structure):
    """`struct sched_attr` in linux/sched/types.h."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("slice_ns", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def let_others_go_first() -> None:
    """Give this thread a lower priority than the main thread, so that live data goes before old data. Linux only."""
    if sys.platform == "linux":
        niceness = os.getpriority(os.PRIO_PROCESS, os.getpid()) + _NICE
        before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), max(before, min(niceness, _MOST_NICE)))


def give_way() -> None:
    """Let any thread that wakes preempt this thread and the threads that it starts, at an unchanged share of time."""
    _set_slice(threading.get_native_id(), _TIMES)


@contextmanager
def giving_way(threads: Sequence[threading.Thread]) -> Iterator[None]:
    """Apply `give_way` to threads until the block ends."""
    known = [thread.native_id for thread in threads if thread.native_id is not None]
    for each in known:
        _set_slice(each, _TIMES)
    try:
        yield
    finally:
        for each in known:
            _set_slice(each, 0)


def _set_slice(thread: int, times: float) -> None:
    """Multiply a thread's time slice; 0: reset it to the default. Does nothing if unsupported."""
    if sys.platform != "linux" or not _SET:
        return
    libc, wanted = ctypes.CDLL(None), _Attributes()
    size = ctypes.sizeof(wanted)
    is_known = libc.syscall(_GET, thread, ctypes.byref(wanted), size, 0) == 0
    if is_known and wanted.policy in (os.SCHED_OTHER, os.SCHED_BATCH) and wanted.slice_ns:
        wanted.slice_ns = round(times * wanted.slice_ns)
        libc.syscall(_SET, thread, ctypes.byref(wanted), 0)
