"""Distinguish connections that use the same descriptor one after the other."""

from __future__ import annotations

import socket
from typing import Final

from numba import types

from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import int32s_at, int64s_at
from blackbox.native.system.posix import external

_SOL_SOCKET: Final = int(socket.SOL_SOCKET)
_SO_COOKIE: Final = 57
COOKIE_SCRATCH_WORDS: Final = 2
"""int64 words of scratch for `socket_cookie`."""

_int = types.int32
_getsockopt = external("getsockopt", _int, _int, _int, _int, types.int64, types.int64)


@njit(nogil=True, cache=True)
def socket_cookie(fd: int, scratch: int) -> int:
    """Return a number unique to this socket since the system started; 0: no socket, or no number."""
    words = int64s_at(scratch, COOKIE_SCRATCH_WORDS)
    words[0] = 0
    int32s_at(scratch + 8, 1)[0] = 8
    _getsockopt(fd, _SOL_SOCKET, _SO_COOKIE, scratch, scratch + 8)
    cookie: int = words[0]
    return cookie
