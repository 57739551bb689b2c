"""Which thread goes first when several want the same core.

Linux lets a thread that runs go on for a slice of time, even where it is a nice one, before another that has just been
woken gets the core. One with a longer slice than the other's is the exception: it gives way at once (since Linux 6.12;
before that only niceness counts). A slice that is much longer would also have it wait longer for its turn.
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
"""Niceness above that of the main thread. Such a thread gets a third of the time of others on a full core."""
_MOST_NICE: Final = 19
_TIMES: Final = 1.1
"""A slice is so many times longer than others', where its thread is to give way."""
_SET, _GET = {"x86_64": (314, 315), "aarch64": (274, 275)}.get(platform.machine(), (0, 0))
"""The numbers of sched_setattr and sched_getattr, which older C libraries lack."""


class _Attributes(ctypes.Structure):
    """As linux/sched/types.h has it."""

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
    """Have Linux give this thread less of a full core than the main thread: live data goes before the past."""
    if sys.platform == "linux":
        niceness = os.getpriority(os.PRIO_PROCESS, os.getpid()) + _NICE
        before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), max(before, min(niceness, _MOST_NICE)))


def give_way() -> None:
    """Have this thread, and those that it starts from now on, give their core at once to whoever wakes.

    They get as much time as before.
    """
    _set_slice(threading.get_native_id(), _TIMES)


@contextmanager
def giving_way(threads: Sequence[threading.Thread]) -> Iterator[None]:
    """Have threads do as `give_way` says until the block ends."""
    known = [thread.native_id for thread in threads if thread.native_id is not None]
    for each in known:
        _set_slice(each, _TIMES)
    try:
        yield
    finally:
        for each in known:
            _set_slice(each, 0)


def _set_slice(thread: int, times: float) -> None:
    """Make a thread's slice so many times longer; 0: as long as that of others. Where that cannot be, do nothing."""
    if sys.platform != "linux" or not _SET:
        return
    libc, wanted = ctypes.CDLL(None), _Attributes()
    size = ctypes.sizeof(wanted)
    is_known = libc.syscall(_GET, thread, ctypes.byref(wanted), size, 0) == 0
    if is_known and wanted.policy in (os.SCHED_OTHER, os.SCHED_BATCH) and wanted.slice_ns:
        wanted.slice_ns = round(times * wanted.slice_ns)
        libc.syscall(_SET, thread, ctypes.byref(wanted), 0)
