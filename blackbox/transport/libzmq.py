"""The libzmq that pyzmq loaded, callable from compiled code.

Every function takes plain integers: a socket is `zmq.Socket.underlying`, a message is the address of 64 bytes, 8-byte
aligned, that hold a `zmq_msg_t`. A socket belongs to the thread that uses it.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sized

import llvmlite.binding
import numpy
import zmq
from numba import types
from zmq.backend.cython import _zmq

from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import inner, int32s_at, int64s_at
from blackbox.native.system.posix import drain_pipe, external

# Open the extension module, not libzmq: its symbols are those that pyzmq was linked with, whether libzmq is bundled,
# installed or static.
llvmlite.binding.load_library_permanently(_zmq.__file__)

MESSAGE_BYTES = 64
EVENTS_SCRATCH_WORDS = 8
"""int64 words of scratch for `socket_events` and `wait_readable`."""

POLL_ITEM_BYTES = 16
MOST_SHORT_BYTES = 255
"""Size up to which a frame's length takes one byte."""

_int = types.int32
_address = types.int64


msg_init = external("zmq_msg_init", _int, _address)
msg_init_size = external("zmq_msg_init_size", _int, _address, _address)
_msg_init_data = external("zmq_msg_init_data", _int, _address, _address, _address, _address, _address)
msg_data = external("zmq_msg_data", _address, _address)
msg_size = external("zmq_msg_size", _address, _address)
msg_get = external("zmq_msg_get", _int, _address, _int)
msg_gets = external("zmq_msg_gets", _address, _address, _address)
"""`msg_gets(message, name)`: address of a property's text; 0: none. Name and text are zero-terminated."""
msg_more = external("zmq_msg_more", _int, _address)
msg_copy = external("zmq_msg_copy", _int, _address, _address)
msg_move = external("zmq_msg_move", _int, _address, _address)
msg_close = external("zmq_msg_close", _int, _address)
_msg_send = external("zmq_msg_send", _int, _address, _address, _int)
_msg_recv = external("zmq_msg_recv", _int, _address, _address, _int)
zmq_errno = external("zmq_errno", _int)
_zmq_poll = external("zmq_poll", _int, _address, _int, types.int64)
_getsockopt = external("zmq_getsockopt", _int, _address, _int, _address, _address)
zmq_setsockopt = external("zmq_setsockopt", _int, _address, _int, _address, _address)
SNDMORE = int(zmq.SNDMORE)
DONTWAIT = int(zmq.DONTWAIT)
POLLIN = int(zmq.POLLIN)
EAGAIN = int(zmq.EAGAIN)
SRCFD = int(zmq.SRCFD)
"""Property of `msg_get`: descriptor of the connection that a message came on; -1: none."""
ETERM = int(zmq.ETERM)
EINTR = errno.EINTR
_EVENTS = int(zmq.EVENTS)


@inner
def msg_init_on(message: int, address: int, size: int) -> None:
    """Initialise a message on memory that outlives it and is not freed with it."""
    _msg_init_data(message, address, size, numpy.int64(0), numpy.int64(0))


@inner
def msg_init_shared(message: int, address: int, size: int, release: int, hint: int) -> int:
    """Initialise a message on foreign memory; with its last copy the C function at `release` gets address and hint."""
    return _msg_init_data(message, address, size, release, hint)


@inner
def msg_send(message: int, socket: int, flags: int) -> int:
    """Call `zmq_msg_send`, repeated after a signal: otherwise the next message would continue a partial one."""
    result = _msg_send(message, socket, flags)
    while result < 0 and zmq_errno() == EINTR:
        result = _msg_send(message, socket, flags)
    return result


@inner
def msg_recv(message: int, socket: int, flags: int) -> int:
    """Call `zmq_msg_recv`, repeated after a signal."""
    result = _msg_recv(message, socket, flags)
    while result < 0 and zmq_errno() == EINTR:
        result = _msg_recv(message, socket, flags)
    return result


@inner
def socket_events(socket: int, scratch: int) -> int:
    """Return ZMQ_EVENTS of a socket, after libzmq has processed its commands; -1: the context is ending."""
    int64s_at(scratch, 2)[1] = 4
    while _getsockopt(socket, _EVENTS, scratch, scratch + 8) != 0:
        if zmq_errno() != EINTR:
            return -1
    return int32s_at(scratch, 1)[0]


@inner
def wait_readable(socket_a: int, socket_b: int, wake_fd: int, timeout_ms: int, scratch: int) -> int:
    """Sleep until a socket (0: absent) or the wake-up pipe is readable; drain the pipe. -1: the context is ending.

    A negative `socket_b` means the descriptor -1 - `socket_b`; then call `is_descriptor_readable`.
    """
    words, halves = int64s_at(scratch, 8), int32s_at(scratch, 16)
    words[0] = 0
    halves[2] = wake_fd
    halves[3] = POLLIN
    count = 1
    for socket in (socket_a, socket_b):
        if socket != 0:
            words[count * 2] = max(socket, 0)
            halves[count * 4 + 2] = -1 - socket if socket < 0 else 0
            halves[count * 4 + 3] = POLLIN
            count += 1
    ready = _zmq_poll(scratch, count, timeout_ms)
    if ready < 0:
        return -1 if zmq_errno() == ETERM else 0
    if halves[3] >> 16:
        drain_pipe(wake_fd, scratch)
    return ready


@inner
def poll_items(items: int, count: int, timeout_ms: int) -> int:
    """Sleep until a `zmq_pollitem_t` at the address is ready; return how many are. -1: the context is ending."""
    ready: int = _zmq_poll(items, count, timeout_ms)
    if ready < 0:
        return -1 if zmq_errno() == ETERM else 0
    return ready


@inner
def is_item_readable(items: int, place: int) -> bool:
    """Return True if `poll_items` found this item readable."""
    return int32s_at(items + POLL_ITEM_BYTES * place, 4)[3] >> 16 != 0


@inner
def is_descriptor_readable(scratch: int) -> bool:
    """Return True if `wait_readable` found the descriptor given as `socket_b` readable."""
    return is_item_readable(scratch, numpy.int64(2))


@inner
def wire_bytes(size: int) -> int:
    """Return the bytes that a frame takes on a connection without encryption."""
    return size + (2 if size <= MOST_SHORT_BYTES else 9)


def wire_bytes_of(frames: Iterable[Sized]) -> int:
    """Return the bytes that the frames of a block take together."""
    return sum(wire_bytes.py_func(len(frame)) for frame in frames)


@njit(nogil=True, cache=True)
def init_messages(first: int, count: int) -> None:
    """Initialise `count` adjacent empty messages."""
    for number in range(count):
        msg_init(first + MESSAGE_BYTES * number)


@njit(nogil=True, cache=True)
def close_messages(first: int, count: int) -> None:
    """Close `count` adjacent messages. A body is freed with its last message."""
    for number in range(count):
        msg_close(first + MESSAGE_BYTES * number)


@njit(nogil=True, cache=True)
def descriptor_of(message: int) -> int:
    """Return the descriptor of the connection that a message came on; -1: none."""
    return msg_get(message, SRCFD)


@njit(nogil=True, cache=True)
def message_bytes(message: int) -> tuple[int, int]:
    """Return the address and size of a message's data."""
    return msg_data(message), msg_size(message)
