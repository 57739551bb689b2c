"""Read subscriptions on a slice's XPUB sockets, and put those in force that are allowed.

The sockets use ZMQ_XPUB_MANUAL: libzmq passes on every subscription of every connection, including duplicates, and
matches only what is set with `zmq_setsockopt`, which applies to the connection of the message read last.

One property of libzmq (up to 4.3.5) needs care. It keeps messages and their connections in two queues, and a message
that is not a subscription enters only the first. From then on, later messages would be attributed to the wrong
connection. So nothing is put in force after such a message until both queues are empty. The affected connections get
their subscriptions with their next message, and the sender of the invalid message is disconnected.
"""

from __future__ import annotations

import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from ctypes import string_at
from typing import Any, Final, NamedTuple

import numpy
import zmq
from numpy.typing import NDArray

from blackbox.block.form.ack_format import MOST_BYTES
from blackbox.block.form.format import CONFIRM_KEY, HEARTBEAT_KEY, NONCE_BYTES, PATH_KEY
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import bytes_at, copy_bytes, inner, int32s_at, int64s_at
from blackbox.publish.listeners.peers import Identity, Peer, is_put_in_force
from blackbox.publish.listeners.subscriptions import LOST, SUBSCRIBE, Subscriptions
from blackbox.transport.libzmq import (
    DONTWAIT,
    MESSAGE_BYTES,
    SRCFD,
    close_messages,
    init_messages,
    msg_copy,
    msg_data,
    msg_get,
    msg_gets,
    msg_init,
    msg_recv,
    msg_size,
    zmq_setsockopt,
)
from blackbox.transport.security.gate import Gate
from blackbox.transport.socket_cookie import COOKIE_SCRATCH_WORDS, socket_cookie
from blackbox.transport.tcp_info import address_of

KEPT_BYTES: Final = 1 + MOST_BYTES
"""Bytes of a subscription that Python sees; none of ours is longer."""
_HAVE_COOKIES: Final = sys.platform == "linux"
_HEAD: Final = struct.Struct("=iiiiq")
_LEAST_ENTRY_BYTES: Final = 32
"""Least room that one subscription takes in the read buffer."""

SETTLED: Final = 0
"""In force, or need not be."""
ASKS: Final = 1
"""Not in force: Python decides about it before the next one is read."""
LATE: Final = 2
"""As ASKS, but libzmq has lost track of the connection."""
STRAY: Final = 3
"""Not a subscription."""

_STRAYED_AT: Final = MESSAGE_BYTES
_GONE_AT: Final = _STRAYED_AT + 8
_FD_NAME_AT: Final = _GONE_AT + 8
_USER_NAME_AT: Final = _FD_NAME_AT + 8
_COOKIE_AT: Final = _USER_NAME_AT + 8
_MEMORY_WORDS: Final = _COOKIE_AT // 8 + COOKIE_SCRATCH_WORDS
_HEARTBEAT, _PATH, _CONFIRM = HEARTBEAT_KEY[1], PATH_KEY[1], CONFIRM_KEY[1]
_NONCE_SIZE: Final = 1 + len(CONFIRM_KEY) + NONCE_BYTES
_SUBSCRIBE, _UNSUBSCRIBE = int(zmq.SUBSCRIBE), int(zmq.UNSUBSCRIBE)
_TURN_S: Final = 0.001
"""Time per turn for a line's subscriptions when Python must check each; its blocks wait meanwhile."""
_MOST_LATE: Final = 10_000
"""Changes of a connection that may wait until libzmq knows the connection again."""
_FIRST_PEERS: Final = 1_024
_ROW_WORDS: Final = 3
_ROW_BYTES: Final = 8 * _ROW_WORDS


class _Entry(NamedTuple):
    """A message that was read."""

    fd: int
    """The descriptor it was received on, or -1."""
    size: int
    what: int
    connection: int
    """Address of libzmq's metadata of its connection; 0: none."""
    change: bytes
    """Its first bytes."""


def _entries(data: bytes) -> Iterator[_Entry]:
    place = 0
    while place < len(data):
        kept, fd, size, what, connection = _HEAD.unpack_from(data, place)
        start = place + _HEAD.size
        yield _Entry(fd, size, what, connection, data[start : start + kept])
        place = (start + kept + 7) & -8


@inner
def _matters(data: int, size: int) -> bool:
    """Return True if libzmq must match the filter: see `is_put_in_force`."""
    text = bytes_at(data, size)
    if size == 1 or text[1] != 0:
        return True
    if size == 3:
        return bool(text[2] == _HEARTBEAT or text[2] == _PATH)
    return bool(size == _NONCE_SIZE and text[2] == _CONFIRM)


@njit(nogil=True, cache=True)
def put_in_force(socket: int, message: int) -> None:
    """Apply the message read last, a subscription or unsubscription, to its connection."""
    data, size = msg_data(message), msg_size(message)
    option = _SUBSCRIBE if bytes_at(data, 1)[0] == 1 else _UNSUBSCRIBE
    zmq_setsockopt(socket, option, data + 1, size - 1)


@njit(nogil=True, cache=True)
def _keep(message: int, kept: int) -> None:
    """Copy a message: while the copy exists, libzmq does not reuse the address of its connection's metadata."""
    msg_init(kept)
    msg_copy(kept, message)


@njit(nogil=True, cache=True)
def _property_at(message: int, name: int) -> int:
    text: int = msg_gets(message, name)
    return text


@njit(nogil=True, cache=True)
def read_subscriptions(socket: int, memory: int, known: int, most: int, target: int, room: int) -> int:
    """Read changes of subscriptions into `room` bytes. Return the bytes used; the rest waits for the next turn.

    `known` has a row for each of the first `most` descriptors: connection, cookie, and whether all its subscriptions
    are allowed. Those are put in force here; after a change of any other connection this returns. Messages of a closed
    connection are skipped. An entry is four int32 (bytes that follow, descriptor, message size, outcome), an int64
    (connection), then up to KEPT_BYTES of the message. Reading many at once means that the sender needs the GIL only
    once, however contended it is.
    """
    message = memory
    strayed = int64s_at(memory + _STRAYED_AT, 1)
    used = 0
    while room - used >= 24 + KEPT_BYTES + 8:
        if msg_recv(message, socket, DONTWAIT) < 0:
            strayed[0] = 0
            break
        size, data = msg_size(message), msg_data(message)
        connection = msg_gets(message, memory + _FD_NAME_AT)
        fd = numpy.int64(msg_get(message, SRCFD)) if connection != 0 else numpy.int64(-1)
        what = SETTLED
        if size == 0 or bytes_at(data, 1)[0] > 1:
            what = STRAY
            strayed[0] = 1
        else:
            is_free = connection == 0
            if 0 <= fd < most:
                row = int64s_at(known + _ROW_BYTES * fd, _ROW_WORDS)
                if row[0] == connection:
                    if row[1] != socket_cookie(fd, memory + _COOKIE_AT):
                        int64s_at(memory + _GONE_AT, 1)[0] = 1
                        continue
                    is_free = row[2] != 0
            matters = _matters(data, size)
            if matters and strayed[0] != 0:
                what = LATE
            elif not is_free:
                what = ASKS
            elif matters:
                put_in_force(socket, message)
        kept = min(size, KEPT_BYTES)
        head = int32s_at(target + used, 4)
        head[0] = kept
        head[1] = fd
        head[2] = size
        head[3] = what
        int64s_at(target + used + 16, 1)[0] = connection
        copy_bytes(target + used + 24, data, kept)
        used = (used + 24 + kept + 7) & -8
        if what in (ASKS, LATE):
            break
    return used


class _Line:
    """State for reading one line."""

    def __init__(self, socket: zmq.Socket[bytes], is_inproc: bool) -> None:
        self.socket, self.is_inproc = socket, is_inproc
        self._memory = numpy.zeros(_MEMORY_WORDS, numpy.int64)
        text = self._memory.view(numpy.uint8)
        text[_FD_NAME_AT:][:5] = numpy.frombuffer(b"__fd\0", numpy.uint8)
        text[_USER_NAME_AT:][:8] = numpy.frombuffer(b"User-Id\0", numpy.uint8)
        self.memory = self._memory.ctypes.data
        init_messages(self.memory, 1)
        self.known: NDArray[numpy.int64] = numpy.zeros((_FIRST_PEERS, _ROW_WORDS), numpy.int64)
        self.kept: dict[Peer, NDArray[numpy.int64]] = {}
        """A message of each connection."""

    @property
    def strayed(self) -> bool:
        """True if libzmq cannot attribute the next message to a connection."""
        return bool(self._memory[_STRAYED_AT // 8])

    def has_gone(self) -> bool:
        """Return True if a message of a closed connection was skipped since the last call."""
        has_gone = bool(self._memory[_GONE_AT // 8])
        self._memory[_GONE_AT // 8] = 0
        return has_gone


class SubscriptionReader:
    """Reads the XPUB sockets of a slice for its `Subscriptions`, in the sockets' thread."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        sockets: Sequence[zmq.Socket[bytes]],
        endpoints: Sequence[str],
        gate: Gate | None,
        room: int,
        after: Callable[[int], int],
    ) -> None:
        """`room`: bytes read per pass, at about 50 per subscription.

        `after`: returns the current `Asked.after` of a line.
        """
        self._subscriptions, self._gate, self._after = subscriptions, gate, after
        self._received = numpy.zeros(room, numpy.uint8)
        self._lines = [
            _Line(socket, endpoint.startswith("inproc:")) for socket, endpoint in zip(sockets, endpoints, strict=True)
        ]

    @staticmethod
    def warm_up_arguments() -> tuple[Any, ...]:
        """Return arguments to compile `read_subscriptions` with."""
        return 0, 0, 0, 0, 0, 0

    def close(self) -> None:
        """Release the messages kept for connections. Nothing may be read afterwards."""
        for line in self._lines:
            close_messages(line.memory, 1)
            for kept in line.kept.values():
                close_messages(kept.ctypes.data, 1)
            line.kept.clear()

    def read(self) -> None:
        """Process some of the waiting subscriptions; `subscriptions.is_behind` is set if more wait."""
        subscriptions = self._subscriptions
        left = False
        with subscriptions.changed:
            for number, line in enumerate(self._lines):
                left |= self._read_line(number, line)
            if subscriptions.has_died:
                subscriptions.has_died = False
                self._bury()
            subscriptions.changed.notify_all()
        subscriptions.is_behind = left

    def _read_line(self, number: int, line: _Line) -> bool:
        """Read one line for its turn; return True if more may wait."""
        room, used, socket = len(self._received), 0, line.socket.underlying
        until = time.monotonic() + _TURN_S
        stopped = True
        while stopped and used <= room // 2 and time.monotonic() < until:
            known, target = line.known, self._received.ctypes.data
            read = read_subscriptions(socket, line.memory, known.ctypes.data, len(known), target, room - used)
            stopped = False
            for entry in _entries(self._received[:read].tobytes()):
                stopped = self._take(number, line, entry)
            used += read
        self._subscriptions.has_died |= line.has_gone()
        return stopped or used > room // 2

    def _take(self, number: int, line: _Line, entry: _Entry) -> bool:
        """Process one message; return True if reading stopped after it."""
        subscriptions, fd = self._subscriptions, entry.fd
        if entry.what == STRAY:
            if fd >= 0:
                cookie = int(socket_cookie(fd, line.memory + _COOKIE_AT))
                subscriptions.unwelcome[fd, cookie] = "it sent a message that is not a subscription"
        elif fd >= 0:
            self._take_of(self._peer_of(number, line, entry), line, entry)
        elif line.is_inproc:
            subscriptions.note(number, fd, entry.change, entry.size, self._after(number))
        else:  # only inproc has no descriptors: this is from a closed connection
            subscriptions.has_died = True
        return entry.what in (ASKS, LATE)

    def _peer_of(self, number: int, line: _Line, entry: _Entry) -> Peer:
        peer = self._subscriptions.peer(number, entry.fd)
        if peer is not None and peer.identity.connection == entry.connection:
            return peer
        if peer is not None:
            self._forget(line, peer)
        return self._meet(number, line, entry)

    def _take_of(self, peer: Peer, line: _Line, entry: _Entry) -> None:
        """Process a change of a connection; put it in force if that was left to Python and it is allowed."""
        subscriptions, change = self._subscriptions, entry.change
        if entry.what == LATE:
            peer.late_since = peer.late_since or time.monotonic()
            peer.late.append((change, entry.size))
            if len(peer.late) > _MOST_LATE:
                subscriptions.disconnect(peer, LOST)
        else:
            if peer.late and entry.what == ASKS and not line.strayed:
                self._catch_up(line, peer)
            if entry.what == SETTLED or subscriptions.admit(peer, change):
                if entry.what == ASKS and is_put_in_force(change[1:]):
                    put_in_force(line.socket.underlying, line.memory)
                subscriptions.note(peer.line, peer.fd, change, entry.size, self._after(peer.line))
        has_room = len(peer.filters) + len(self._received) // _LEAST_ENTRY_BYTES <= subscriptions.admission.most_each
        is_free = peer.identity.may is None and not peer.late and not peer.refused and has_room
        line.known[peer.fd] = peer.identity.connection, peer.identity.cookie, is_free

    def _catch_up(self, line: _Line, peer: Peer) -> None:
        """Put in force the changes that arrived while libzmq could not attribute them."""
        for change, size in peer.late:
            if self._subscriptions.admit(peer, change):
                if is_put_in_force(change[1:]):
                    option = zmq.SUBSCRIBE if change[:1] == SUBSCRIBE else zmq.UNSUBSCRIBE
                    line.socket.setsockopt(option, change[1:])
                self._subscriptions.note(peer.line, peer.fd, change, size, self._after(peer.line))
        peer.late.clear()
        peer.late_since = 0.0

    def _meet(self, number: int, line: _Line, entry: _Entry) -> Peer:
        key, name, may = "", "", None
        text = int(_property_at(line.memory, line.memory + _USER_NAME_AT))
        if text and self._gate is not None and (key := string_at(text).decode(errors="replace")):
            name, may = self._gate.rights_of(key)
        cookie = int(socket_cookie(entry.fd, line.memory + _COOKIE_AT))
        peer = Peer(Identity(number, entry.fd, entry.connection, cookie, address_of(entry.fd), key, name, may))
        line.kept[peer] = kept = numpy.zeros(MESSAGE_BYTES // 8, numpy.int64)
        _keep(line.memory, kept.ctypes.data)
        if entry.fd >= len(line.known):
            line.known = numpy.concatenate([line.known, numpy.zeros((entry.fd + 1, _ROW_WORDS), numpy.int64)])
        self._subscriptions.meet(peer)
        self._subscriptions.has_died |= cookie == 0  # closed before this was read
        return peer

    def _forget(self, line: _Line, peer: Peer) -> None:
        self._subscriptions.forget(peer)
        kept = line.kept.pop(peer)
        close_messages(kept.ctypes.data, 1)
        line.known[peer.fd] = 0

    def _bury(self) -> None:
        """Forget the subscriptions of closed connections."""
        for number, line in enumerate(self._lines):
            for peer in self._subscriptions.peers(number):
                cookie = int(socket_cookie(peer.fd, line.memory + _COOKIE_AT))
                if cookie != peer.identity.cookie or (cookie == 0 and _HAVE_COOKIES):
                    with suppress(KeyError):
                        self._forget(line, peer)
