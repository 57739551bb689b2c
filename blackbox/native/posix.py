"""POSIX calls for compiled code: the clock, file descriptors, the end of the process. None takes the GIL."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from blackbox.native.intrinsics import inner

_int = types.int32
_address = types.int64


def external(name: str, result: Any, *arguments: Any) -> Any:
    """A C function of a library that this process has loaded, callable from compiled code."""
    return types.ExternalFunction(name, result(*arguments))


_read = external("read", types.int64, _int, _address, _address)
write_file = external("write", types.int64, _int, _address, _address)
"""`write(fd, address, size)`: bytes written; -1, and `zmq_errno` says why."""
sync_file = external("fdatasync", _int, _int)
cut_file = external("ftruncate", _int, _int, types.int64)
sleep_microseconds = external("usleep", _int, types.uint32)
exit_process = external("_exit", types.void, _int)
"""`_exit(status)`: end the process now, whatever any thread does or holds."""


@intrinsic
def now_ns(typingctx: Any) -> Any:
    """CLOCK_REALTIME in ns since the epoch, without the GIL."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word, small = ir.IntType(64), ir.IntType(32)
        clock = builder.module.globals.get("clock_gettime") or ir.Function(
            builder.module, ir.FunctionType(small, [small, word.as_pointer()]), "clock_gettime"
        )
        with builder.goto_entry_block():
            timespec = builder.alloca(word, 2)
        builder.call(clock, [small(0), timespec])
        seconds = builder.load(timespec)
        fraction = builder.load(builder.gep(timespec, [small(1)]))
        return builder.add(builder.mul(seconds, word(1_000_000_000)), fraction)

    return types.int64(), codegen


@inner
def drain_pipe(reader: int, scratch: int) -> None:
    """Read what lies in a wake-up pipe, up to the 64 bytes of `scratch`."""
    _read(reader, scratch, 64)


@inner
def poke(writer: int, scratch: int) -> None:
    """Make a wake-up pipe readable. A full pipe is readable already, so a refused write is no loss."""
    write_file(writer, scratch, 1)
