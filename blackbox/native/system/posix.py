"""POSIX calls, most for compiled code and without the GIL: clocks, file descriptors, process exit."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import time
from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from blackbox.native.memory.intrinsics import inner

_int = types.int32
_address = types.int64
_WALL_CLOCK: Final = time.CLOCK_REALTIME
_MONOTONIC_CLOCK: Final = getattr(time, "CLOCK_UPTIME_RAW", time.CLOCK_MONOTONIC)
"""Clock of Python's `time.monotonic_ns`: the first on macOS, the second elsewhere."""
_COARSE_CLOCK: Final = 6 if sys.platform == "linux" else _MONOTONIC_CLOCK
"""CLOCK_MONOTONIC_COARSE in linux/time.h."""


def external(name: str, result: Any, *arguments: Any) -> Any:
    """Return a C function of a loaded library, callable from compiled code."""
    return types.ExternalFunction(name, result(*arguments))


_read = external("read", types.int64, _int, _address, _address)
write_file = external("write", types.int64, _int, _address, _address)
"""`write(fd, address, size)`: bytes written; -1 on error, see `zmq_errno`."""
write_pieces = external("writev", types.int64, _int, _address, _int)
"""`writev(fd, pieces, count)`: the same for several pieces, each an int64 address and an int64 size."""
sync_file = external("fdatasync" if sys.platform == "linux" else "fsync", _int, _int)
cut_file = external("ftruncate", _int, _int, types.int64)
sleep_microseconds = external("usleep", _int, types.uint32)
exit_process = external("_exit", types.void, _int)
"""`_exit(status)`: end the process now, whatever any thread is doing."""


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
    """CLOCK_REALTIME in ns since the epoch. The clock can be stepped: use it for time stamps, not for waiting."""
    return _read_clock(_WALL_CLOCK)


@intrinsic
def monotonic_ns(typingctx: Any) -> Any:
    """`time.monotonic_ns`: for deadlines and silence checks, unaffected by steps of the clock."""
    return _read_clock(_MONOTONIC_CLOCK)


_KEEP_SIZE: Final = 1
"""FALLOC_FL_KEEP_SIZE in linux/falloc.h."""

if sys.platform == "linux":
    _allocate = external("fallocate", _int, _int, _int, types.int64, types.int64)

    @inner
    def reserve_file(fd: int, start: int, size: int) -> bool:
        """Reserve disk space for `size` bytes of a file without changing its size; return False on failure."""
        return bool(_allocate(fd, _KEEP_SIZE, start, size) == 0)

else:

    @inner
    def reserve_file(fd: int, start: int, size: int) -> bool:
        """Reserve nothing: this system has no call for it. Return False."""
        return False


def sync_data(fd: int) -> None:
    """Wait until the data of a file is on the disk. Raises OSError."""
    if sys.platform == "linux":
        os.fdatasync(fd)
    else:
        os.fsync(fd)


@intrinsic
def coarse_monotonic_ns(typingctx: Any) -> Any:
    """`monotonic_ns` at the system's last tick, up to a few milliseconds old: much cheaper."""
    return _read_clock(_COARSE_CLOCK)


@inner
def drain_pipe(reader: int, scratch: int) -> None:
    """Read the bytes in a wake-up pipe, up to the 64 bytes of `scratch`."""
    _read(reader, scratch, 64)


_MEMBARRIER: Final = {"x86_64": 324, "aarch64": 283}.get(platform.machine(), -1)
_PRIVATE_EXPEDITED, _REGISTER_PRIVATE_EXPEDITED = 1 << 3, 1 << 4


def allow_barriers() -> None:
    """Register this process for `barrier_of_all_threads`."""
    if sys.platform == "linux":
        ctypes.CDLL(None).syscall(_MEMBARRIER, _REGISTER_PRIVATE_EXPEDITED, 0, 0)


if sys.platform == "linux":
    _system_call = external("syscall", types.int64, types.int64, types.int64, types.int64, types.int64)

    @inner
    def barrier_of_all_threads() -> bool:
        """Make every thread of this process pass a memory barrier now: membarrier(2). Return False if unsupported."""
        done: bool = _system_call(_MEMBARRIER, _PRIVATE_EXPEDITED, 0, 0) == 0
        return done

else:

    @inner
    def barrier_of_all_threads() -> bool:
        """Do nothing: this system has no call for it. Return False."""
        return False


@inner
def poke(writer: int, scratch: int) -> None:
    """Make a wake-up pipe readable. A write to a full pipe may fail: the pipe is readable already."""
    write_file(writer, scratch, 1)


_SYNC_FILE_RANGE_WRITE: Final = 2
"""SYNC_FILE_RANGE_WRITE in linux/fs.h."""
_sync_file_range: Final = getattr(ctypes.CDLL(None), "sync_file_range", None)
if _sync_file_range is not None:
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


def begin_writing(fd: int, start: int, size: int) -> None:
    """Start writing `size` bytes of a file to the disk, on Linux. Makes nothing durable; errors are ignored."""
    if _sync_file_range is not None:
        _sync_file_range(fd, start, size, _SYNC_FILE_RANGE_WRITE)
