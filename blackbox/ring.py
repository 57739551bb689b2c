"""The byte ring between the threads that publish and the line thread that sends.

Records are 8-byte aligned and begin with 16 bytes::

    0              4              8                       16
    +--------------+--------------+-----------------------+----------
    | payload size | topic id     | ts_event              | payload
    +--------------+--------------+-----------------------+----------

Three topic ids are no topics: BLOCK (an encoded block: its header, then the `zmq_msg_t` of its body; `ts_event` holds
the key id), SKIP (that many messages of a key that nobody wants; `ts_event` holds the key id) and PAD (go on at 0).

One thread writes at a time (they hold `Ring.lock`), one reads. The words they share are a cache line apart.
"""

from __future__ import annotations

import os
import select
import struct
import threading
from collections.abc import Callable
from typing import Final

import numpy

from blackbox.errors import PublisherError
from blackbox.pipe import Pipe

RECORD_BYTES: Final = 16
PAD: Final = 0xFFFFFFFF
BLOCK: Final = 0xFFFFFFFE
SKIP: Final = 0xFFFFFFFD

TAIL: Final = 0
"""Where the writer will write next."""
HEAD: Final = 8
"""Where the reader will read next."""
SLEEPING: Final = 16
"""1 while the reader sleeps: the writer then pokes the wake pipe."""
WAITING: Final = 24
"""1 while the writer waits for room: the reader then pokes the room pipe."""
BODIES_IN: Final = 32
"""Bytes of block bodies ever put in."""
BODIES_OUT: Final = 40
"""Bytes of block bodies ever taken out."""
CLOSING: Final = 48
"""1: the reader sends what is there, then ends. 2: it ends now."""
SHARED_WORDS: Final = 56

_WAIT_SLICE_MS: Final = 100


MAX_PAYLOAD_BYTES: Final = 64 << 10
"""Larger messages travel as a block of their own, not through the ring's memory."""


class LargePayloadError(Exception):
    """A payload is larger than MAX_PAYLOAD_BYTES."""


class Packers(dict[int, tuple[Callable[..., None], int]]):
    """For a payload size: the function that packs such a record, and the record's size. Raises LargePayloadError."""

    def __missing__(self, payload_bytes: int) -> tuple[Callable[..., None], int]:
        if payload_bytes > MAX_PAYLOAD_BYTES:
            raise LargePayloadError
        size = (RECORD_BYTES + payload_bytes + 7) & -8
        packer = self[payload_bytes] = struct.Struct(f"<IIq{payload_bytes}s").pack_into, size
        return packer


class Ring:
    """The writers' side of one ring, and the memory of both sides.

    `tail` is the next free byte and `limit` the end of the room known to be free behind it: one comparison on the hot
    path covers both a full ring and its end. All attributes are used with `lock` held. `check_reader` raises when the
    reader has ended. The pipes live as long as the ring: a late wake-up can never hit a file descriptor of others.
    """

    __slots__ = (
        "capacity",
        "check_reader",
        "limit",
        "lock",
        "memory",
        "room_pipe",
        "shared",
        "tail",
        "view",
        "wake_pipe",
        "words",
    )

    def __init__(self, capacity: int, check_reader: Callable[[], None]) -> None:
        self.capacity = capacity
        self.check_reader = check_reader
        self.memory = numpy.zeros(capacity, numpy.uint8)
        self.view = self.memory.data
        self.words = numpy.zeros(SHARED_WORDS, numpy.int64)
        self.shared = self.words.data
        self.lock = threading.Lock()
        self.tail = 0
        self.limit = capacity - RECORD_BYTES
        try:
            self.wake_pipe = Pipe()
            self.room_pipe = Pipe()
        except OSError as error:
            raise PublisherError(f"no pipe could be opened for a slice's line thread: {error.strerror}") from error

    def make_room(self, size: int) -> None:
        """Wait until a record of `size` bytes fits at `tail`, which may move to the ring's start."""
        self.check_reader()
        while not self._find_room(size):
            self.announce_wait()
            if self._find_room(size):
                break
            self.wait()

    def _find_room(self, size: int) -> bool:
        head = self.shared[HEAD]
        if self.tail >= head and self.tail + size > self.capacity - RECORD_BYTES and head > size + RECORD_BYTES:
            struct.pack_into("<IIq", self.view, self.tail, 0, PAD, 0)
            self.tail = self.shared[TAIL] = 0
        # The tail never catches up with the head from behind: equal means empty.
        self.limit = head - RECORD_BYTES if self.tail < head else self.capacity - RECORD_BYTES
        return self.tail + size <= self.limit

    def announce_wait(self) -> None:
        """Ask the reader for a poke when it takes something out. Look once more for room before `wait`."""
        self.shared[WAITING] = 1

    def wait(self) -> None:
        """Sleep until the reader has taken something out since `announce_wait`, or 100 ms have passed."""
        self.wake()
        poller = select.poll()
        poller.register(self.room_pipe.reader, select.POLLIN)
        if poller.poll(_WAIT_SLICE_MS):
            os.read(self.room_pipe.reader, 4096)
        self.check_reader()

    def wake(self) -> None:
        """Wake the reader."""
        self.wake_pipe.poke()

    def seal(self) -> None:
        """From now on every write comes through `make_room`, where `check_reader` raises."""
        self.limit = -1
