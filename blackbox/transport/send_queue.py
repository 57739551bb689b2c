"""Bytes that wait in the kernel for one connection, over tcp or ipc, and a way to end it."""

from __future__ import annotations

import os
import socket
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import numpy

from blackbox.transport.socket_cookie import COOKIE_SCRATCH_WORDS, socket_cookie
from blackbox.transport.tcp_info import queued_bytes

_SIOCOUTQNSD: Final = 0x894B
"""Linux: bytes of a TCP connection that were not yet sent."""


def unsent_bytes(fd: int, cookie: int) -> int:
    """Return the bytes that the peer has no room for; with ipc, those it has not read. 0: it has ended."""
    with _own(fd, cookie) as ours:
        if ours is not None:
            with suppress(OSError):
                return queued_bytes(ours, termios.TIOCOUTQ if ours.family == socket.AF_UNIX else _SIOCOUTQNSD)
    return 0


def end_connection(fd: int, cookie: int) -> bool:
    """Disconnect the peer; libzmq then drops its queue. Return False if the connection had already ended."""
    with _own(fd, cookie) as ours:
        if ours is not None:
            with suppress(OSError):
                ours.shutdown(socket.SHUT_RDWR)
                return True
    return False


@contextmanager
def _own(fd: int, cookie: int) -> Iterator[socket.socket | None]:
    """Yield a duplicate, which no other connection can reuse; None: the descriptor has another cookie, or none."""
    try:
        copy = os.dup(fd)
    except OSError:
        yield None
        return
    scratch = numpy.zeros(COOKIE_SCRATCH_WORDS, numpy.int64)
    if not cookie or int(socket_cookie(copy, scratch.ctypes.data)) != cookie:
        os.close(copy)
        yield None
        return
    with socket.socket(fileno=copy) as ours:
        yield ours
