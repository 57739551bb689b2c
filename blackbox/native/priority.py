"""Which thread goes first when several want the same core.

Linux lets a thread that runs go on for a slice of time, even where it is a nice one, before another that has just been
woken gets the core. One with a long slice is the exception: whoever wakes with a shorter one goes before it at once
(since Linux 6.12; before that only niceness counts).
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

_NICE: Final = 15
_LONG_SLICE_NS: Final = 4_000_000
"""More than the 0.7 to 3 ms that others have. Much more would also have it wait longer for its turn."""
_SYSTEM_CALL: Final = {"x86_64": 314, "aarch64": 274}.get(platform.machine())
"""The number of sched_setattr, which older C libraries lack."""


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
    """Have Linux mostly run this thread when others leave cores free: live data goes before the past.

    So it is for threads that this one starts from now on.
    """
    if sys.platform == "linux":
        me = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, me, _NICE)
        _set_slice(me, _LONG_SLICE_NS)


@contextmanager
def patience(threads: Sequence[threading.Thread]) -> Iterator[None]:
    """Have threads give their core at once to whoever wakes, until the block ends; they get as much time as before."""
    known = [thread.native_id for thread in threads if thread.native_id is not None]
    for each in known:
        _set_slice(each, _LONG_SLICE_NS)
    try:
        yield
    finally:
        for each in known:
            _set_slice(each, 0)


def _set_slice(thread: int, slice_ns: int) -> None:
    """Have Linux run a thread for so long at a time; 0: as it does unless told. A thread that has ended is no error."""
    if sys.platform != "linux" or _SYSTEM_CALL is None:
        return
    with suppress(ProcessLookupError):
        nice = os.getpriority(os.PRIO_PROCESS, thread)
        wanted = _Attributes(ctypes.sizeof(_Attributes), os.SCHED_OTHER, nice=nice, slice_ns=slice_ns)
        ctypes.CDLL(None).syscall(_SYSTEM_CALL, thread, ctypes.byref(wanted), 0)
