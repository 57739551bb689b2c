"""POSIX calls for compiled code: the clock, file descriptors, the end of the process. None takes the GIL."""

from __future__ import annotations

import ctypes
import platform
import sys
import time
from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from blackbox.native.intrinsics import inner

_int = types.int32
_address = types.int64
_WALL_CLOCK: Final = time.CLOCK_REALTIME
_MONOTONIC_CLOCK: Final = getattr(time, "CLOCK_UPTIME_RAW", time.CLOCK_MONOTONIC)
"""The clock of Python's `time.monotonic_ns`: on macOS it is the first, elsewhere the second."""
_COARSE_CLOCK: Final = 6 if sys.platform == "linux" else _MONOTONIC_CLOCK
"""CLOCK_MONOTONIC_COARSE as linux/time.h has it."""


def external(name: str, result: Any, *arguments: Any) -> Any:
    """A C function of a library that this process has loaded, callable from compiled code."""
    return types.ExternalFunction(name, result(*arguments))


_read = external("read", types.int64, _int, _address, _address)
write_file = external("write", types.int64, _int, _address, _address)
"""`write(fd, address, size)`: bytes written; -1, and `zmq_errno` says why."""
write_pieces = external("writev", types.int64, _int, _address, _int)
"""`writev(fd, pieces, count)`: the same of several pieces, the address and the size of each an int64."""
sync_file = external("fdatasync", _int, _int)
cut_file = external("ftruncate", _int, _int, types.int64)
sleep_microseconds = external("usleep", _int, types.uint32)
exit_process = external("_exit", types.void, _int)
"""`_exit(status)`: end the process now, whatever any thread does or holds."""


def _read_clock(clock: int) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word, small = ir.IntType(64), ir.IntType(32)
        read = builder.module.globals.get("clock_gettime") or ir.Function(
            builder.module, ir.FunctionType(small, [small, word.as_pointer()]), "clock_gettime"
        )
        with builder.goto_entry_block():
            timespec = builder.alloca(word, 2)
        builder.call(read, [small(clock), timespec])
        seconds = builder.load(timespec)
        fraction = builder.load(builder.gep(timespec, [small(1)]))
        return builder.add(builder.mul(seconds, word(1_000_000_000)), fraction)

    return types.int64(), codegen


@intrinsic
def now_ns(typingctx: Any) -> Any:
    """CLOCK_REALTIME in ns since the epoch, without the GIL. It can be stepped: for time stamps, not for waiting."""
    return _read_clock(_WALL_CLOCK)


@intrinsic
def monotonic_ns(typingctx: Any) -> Any:
    """`time.monotonic_ns` without the GIL: for deadlines and silences, which no step of the clock changes."""
    return _read_clock(_MONOTONIC_CLOCK)


_KEEP_SIZE: Final = 1
"""As linux/falloc.h has it."""

if sys.platform == "linux":
    _allocate = external("fallocate", _int, _int, _int, types.int64, types.int64)

    @inner
    def reserve_file(fd: int, start: int, size: int) -> bool:
        """Reserve disk space for so many bytes of a file, which keeps its size. False: it cannot be had."""
        return bool(_allocate(fd, _KEEP_SIZE, start, size) == 0)

else:

    @inner
    def reserve_file(fd: int, start: int, size: int) -> bool:
        """Reserve nothing: there is no call for it."""
        return False


@intrinsic
def coarse_monotonic_ns(typingctx: Any) -> Any:
    """`monotonic_ns` as it was at the system's last tick, up to some milliseconds ago: for a fraction of the time."""
    return _read_clock(_COARSE_CLOCK)


@inner
def drain_pipe(reader: int, scratch: int) -> None:
    """Read what lies in a wake-up pipe, up to the 64 bytes of `scratch`."""
    _read(reader, scratch, 64)


_MEMBARRIER: Final = {"x86_64": 324, "aarch64": 283}.get(platform.machine(), -1)
_PRIVATE_EXPEDITED, _REGISTER_PRIVATE_EXPEDITED = 1 << 3, 1 << 4
_system_call = external("syscall", types.int64, types.int64, types.int64, types.int64, types.int64)


def allow_barriers() -> None:
    """Ask the system to let this process use `barrier_of_all_threads`."""
    ctypes.CDLL(None).syscall(_MEMBARRIER, _REGISTER_PRIVATE_EXPEDITED, 0, 0)


@inner
def barrier_of_all_threads() -> bool:
    """Have every thread of this process pass a memory barrier now: membarrier(2). False: the system has none."""
    done: bool = _system_call(_MEMBARRIER, _PRIVATE_EXPEDITED, 0, 0) == 0
    return done


@inner
def poke(writer: int, scratch: int) -> None:
    """Make a wake-up pipe readable. A full pipe is readable already, so a refused write is no loss."""
    write_file(writer, scratch, 1)
