"""The byte ring between publishing threads and the sender thread: both sides of its protocol.

Records are 8-byte aligned and begin with 16 bytes::

    0              4              8                       16
    +--------------+--------------+-----------------------+----------
    | payload size | topic id     | ts_event              | payload
    +--------------+--------------+-----------------------+----------

A payload size below 0 means that the message has no value. Seven topic ids are reserved for other kinds of record. All
of them but NOTE hold a count instead of the size and a key's number instead of `ts_event`:

- PAD: nothing; the next record is at the ring's start.
- BLOCK: an encoded block, its header and then the `zmq_msg_t` of its body.
- AGAIN: a BLOCK that was sent before. It keeps its sequences.
- UNWANTED: number of messages that no subscriber wants. They are counted but not sent.
- ABSENT: number of sequences for which the source has no messages.
- SHOW: number of sequences to skip before a heartbeat is sent. `ts_event` is the latest time before them.
- NOTE: a note for the outbox about the next records; the size is its length. `ts_event` is 1 if no block follows it.

There is one writer at a time, the thread that holds `Ring.turn`, and one reader. To learn how old a block is, the
reader sets a flag; the writer of the next message sees it and stores the time. With the same look the writer sees if
the reader is asleep.
"""

from __future__ import annotations

import os
import select
import struct
import threading
import time
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy

from blackbox.block.form.format import HEADER_BYTES, block_header_at
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import fence, inner, int32s_at, int64s_at, uint32_at
from blackbox.native.memory.records import Field, SharedRecord, load_shared, record_at, store_shared, swap_shared
from blackbox.native.system.posix import now_ns, poke
from blackbox.transport.libzmq import MESSAGE_BYTES, msg_close
from blackbox.transport.wakeup import Pipe

RECORD_BYTES: Final = 16
BLOCK_RECORD_BYTES: Final = RECORD_BYTES + HEADER_BYTES + MESSAGE_BYTES
PAD: Final = 0xFFFFFFFF
BLOCK: Final = 0xFFFFFFFE
UNWANTED: Final = 0xFFFFFFFD
ABSENT: Final = 0xFFFFFFFC
AGAIN: Final = 0xFFFFFFFB
SHOW: Final = 0xFFFFFFFA
NOTE: Final = 0xFFFFFFF9
"""The smallest reserved id; topic ids are below."""


class Closing(IntEnum):
    """Request to the reader."""

    OPEN = 0
    DRAINING = 1
    """It sends all records, then ends."""
    ENDING = 2
    """It ends now."""


class Sleep(IntEnum):
    """State of the reader. Only the thread that changed ASLEEP to AWAKE or STOOD_IN reads records and sends."""

    AWAKE = 0
    ASLEEP = 1
    """The reader sleeps: a writer wakes it through a pipe, or sends for it."""
    STOOD_IN = 2
    """The reader sleeps, and a writer reads and sends for it."""


SURE: Final = -1
"""Used as a tail: every writer has seen the reader's request."""
_NOTE_HEAD: Final = struct.Struct("<IIq")
_WAIT_SLICE_MS: Final = 100
_TURN_S: Final = 0.00001
"""Interval for checking if a thread in the middle of `publish` has finished."""


class RingState(SharedRecord):
    """State shared by writers and reader. Fields written by different threads are on separate cache lines."""

    tail = Field(own_line=True)
    """Offset of the next write."""
    head = Field(own_line=True)
    """Offset of the next read."""
    asked = Field(own_line=True)
    """1 while the reader wants an answer: a writer then sets `answer_ns`, clears this, and checks `sleeping`.

    2 while a writer is about to answer.
    """
    waiting = Field(own_line=True)
    """1 while a writer waits for room: the reader then pokes the room pipe."""
    bodies_in = Field(own_line=True)
    """Total bytes of block bodies put in."""
    bodies_out = Field(own_line=True)
    """Total bytes of block bodies taken out."""
    closing = Field(own_line=True)
    """A `Closing`."""
    sleeping = Field(own_line=True)
    """A `Sleep`."""
    answer_ns = Field(own_line=True)
    """When the first message since `asked` was set was handed over, ns since the epoch."""
    answer_tail = Field()
    """The tail after that message, or before it if its writer waits for room."""


ring_state_at = record_at(RingState)
TAIL: Final = RingState.tail.start
ASKED: Final = RingState.asked.start
"""Indices of these two in `Ring.shared`, for `publish`: attribute access is too slow there."""


class RingAt(NamedTuple):
    """Addresses, file descriptors and bounds of a ring, for compiled code."""

    memory: int
    capacity: int
    state: int
    wake_fd: int
    room_fd: int
    bodies_limit: int
    """Limit for bytes of bodies in the ring; a single larger body is allowed."""


MAX_NOTE_BYTES: Final = 1_000_000
"""An outbox journal has a 1 MiB buffer per note."""


class Ring:
    """Memory of one ring, and the writers' side in Python.

    A writer deletes the attribute `turn` and sets it again when done. Deletion is atomic, cannot be interrupted by a
    signal handler, and is cheaper than a lock. `publish` holds `turn` for less than a microsecond. A thread that may
    hold it longer, or finds it deleted, also takes `lock`, on which threads can block.

    `limit` is the end of the free space known after `tail`, so that the hot path needs one comparison for both a full
    ring and the end of its memory. `tail` is a copy of the shared one, valid while `limit` is not negative.
    `check_reader` raises if the reader has ended; `tell` answers its request. The pipes live as long as the ring, so
    that a late wake-up cannot hit a reused file descriptor.
    """

    turn: None

    __slots__ = (
        "at",
        "check_reader",
        "limit",
        "lock",
        "memory",
        "room_pipe",
        "shared",
        "state",
        "tail",
        "tell",
        "turn",
        "view",
        "wake_pipe",
    )

    def __init__(
        self, capacity: int, bodies_limit: int, check_reader: Callable[[], None], tell: Callable[[int], None]
    ) -> None:
        self.check_reader = check_reader
        self.tell = tell
        self.memory = numpy.zeros(capacity, numpy.uint8)
        self.view = self.memory.data
        self.state = RingState()
        self.shared = self.state.words
        self.state.asked = 1  # the first message may come before the reader starts
        self.lock = threading.Lock()
        self.turn = None
        self.tail = 0
        self.limit = capacity - RECORD_BYTES
        self.wake_pipe = Pipe()
        self.room_pipe = Pipe()
        self.at = RingAt(
            self.memory.ctypes.data,
            capacity,
            self.state.address,
            self.wake_pipe.writer,
            self.room_pipe.writer,
            bodies_limit,
        )

    def take_turn(self) -> None:
        """Become the writer, with `lock` held. Set `turn = None` to release."""
        while True:
            try:
                del self.turn  # no call may come between this and the caller's `try`: Ctrl-C could interrupt there
                break
            except AttributeError:
                time.sleep(_TURN_S)

    def put_note(self, note: bytes, is_alone: bool) -> None:
        """Write a note for this thread's next records. It becomes visible with them, or at once if `is_alone`."""
        if len(note) > MAX_NOTE_BYTES:
            raise ValueError(f"note had {len(note)} bytes, expected at most {MAX_NOTE_BYTES}")
        size = (RECORD_BYTES + len(note) + 7) & -8
        with self.lock:
            self.take_turn()
            try:
                tail = self._wait_for_room(size)
                _NOTE_HEAD.pack_into(self.view, tail, len(note), NOTE, is_alone)
                self.view[tail + RECORD_BYTES : tail + RECORD_BYTES + len(note)] = note
                self.shared[TAIL] = self.tail = tail + size
            finally:
                self.turn = None
        if is_alone and self.shared[ASKED]:
            self.tell(0)

    def put_waiting(self, pack: Callable[..., None], size: int, *record: Any) -> None:
        """Write a record of `size` bytes when there is room. The message's age counts from this call."""
        called = time.time_ns()
        with self.lock:
            self.take_turn()
            try:
                self._put_waiting(called, pack, size, *record)
            finally:
                self.turn = None

    def _put_waiting(self, called: int, pack: Callable[..., None], size: int, *record: Any) -> None:
        tail = self._wait_for_room(size)
        if has_told := self.shared[ASKED]:
            self.tell(called)  # before the commit: the reader may take the record right after it
        pack(self.view, tail, *record)
        self.shared[TAIL] = self.tail = tail + size
        if has_told or self.shared[ASKED]:  # the reader may have fallen asleep since the last wake-up
            self.tell(called)

    def _wait_for_room(self, size: int) -> int:
        """Wait until a record of `size` bytes fits; return its offset."""
        self.check_reader()
        while not self._find_room(size):
            self.announce_wait()
            if self._find_room(size):
                break
            self.wait()
        return self.shared[TAIL]

    def _find_room(self, size: int) -> bool:
        """Return True if a record of `size` bytes fits at the tail, which may wrap to the ring's start."""
        head, tail, end = self.state.head, self.shared[TAIL], self.at.capacity - RECORD_BYTES
        if tail >= head and tail + size > end and head > size + RECORD_BYTES:
            struct.pack_into("<IIq", self.view, tail, 0, PAD, 0)
            tail = self.shared[TAIL] = 0
        self.tail = tail
        # The tail must not catch up with the head: equal means empty.
        self.limit = head - RECORD_BYTES if tail < head else end
        return tail + size <= self.limit

    def is_empty(self) -> bool:
        """Return True if the reader has taken everything."""
        return self.state.head == self.state.tail

    def announce_wait(self) -> None:
        """Ask the reader for a poke when it frees space. Check for room again before `wait`."""
        self.state.waiting = 1

    def wait(self) -> None:
        """Sleep until the reader has freed space since `announce_wait`, for at most 100 ms."""
        self.wake()
        poller = select.poll()
        poller.register(self.room_pipe.reader, select.POLLIN)
        if poller.poll(_WAIT_SLICE_MS):
            os.read(self.room_pipe.reader, 4096)
        self.check_reader()

    def wake(self) -> None:
        """Wake the reader."""
        self.wake_pipe.poke()

    def forget_limit(self) -> None:
        """Make the next write in Python look for room: compiled code has moved the tail, or the reader has ended."""
        self.limit = -1

    def close(self, how: Closing) -> None:
        """Ask the reader to end."""
        self.state.closing = max(how, self.state.closing)
        self.wake()

    def end(self) -> int:
        """Note that the reader has ended: later writers find this. Return the number of messages discarded."""
        with self.lock:
            self.take_turn()
            self.forget_limit()
            self.turn = None
            return int(discard(self.at))


# Writers in compiled code.


@inner
def answer(ring: RingAt, handed_over_ns: int) -> bool:
    """Report to the reader when its next message was handed over (0: now). Return True if it sleeps and must be woken.

    Call after the message was put in, if the reader has asked.
    """
    state = ring_state_at(ring.state)
    # Take the time before the swap: a thread that is preempted between the two answers late, but with the right time.
    came = handed_over_ns if handed_over_ns != 0 else now_ns()
    if swap_shared(state, "asked", 1, 2):  # else another writer has answered, for an earlier message
        store_shared(state, "answer_tail", load_shared(state, "tail"))
        store_shared(state, "answer_ns", came)
        swap_shared(state, "asked", 2, 0)  # 1: the reader has asked again, and may have missed the message
    fence()
    sleeps: bool = load_shared(state, "sleeping") == Sleep.ASLEEP
    return sleeps


@inner
def write_head(record: int, count: int, kind: int, key: int) -> None:
    """Write the head of a record that is not a message."""
    halves = int32s_at(record, 2)
    halves[0] = count
    halves[1] = numpy.int32(numpy.uint32(kind))
    int64s_at(record + 8, 1)[0] = key


@inner
def _claim(ring: RingAt, size: int, body_bytes: int) -> Any:
    state = ring_state_at(ring.state)
    pending = state.bodies_in - load_shared(state, "bodies_out")
    if pending > 0 and pending + body_bytes > ring.bodies_limit:
        return 0
    head = load_shared(state, "head")
    tail = state.tail
    if tail < head:
        return ring.memory + tail if tail + size <= head - RECORD_BYTES else 0
    if tail + size <= ring.capacity - RECORD_BYTES:
        return ring.memory + tail
    if head <= size + RECORD_BYTES:
        return 0
    write_head(ring.memory + tail, numpy.int64(0), numpy.int64(PAD), numpy.int64(0))
    return ring.memory


@inner
def claim(ring: RingAt, size: int, body_bytes: int) -> Any:
    """Return the address for a record of `size` bytes; 0: there is no room, and the reader was asked for a poke."""
    record = _claim(ring, size, body_bytes)
    if record == 0:
        # The reader pokes a waiting writer. The second look finds room freed before the reader could see `waiting`.
        store_shared(ring_state_at(ring.state), "waiting", 1)
        fence()
        record = _claim(ring, size, body_bytes)
    return record


@inner
def commit(ring: RingAt, end: int, ts_in: int) -> None:
    """Publish to the reader everything up to address `end`, from messages handed over at `ts_in`."""
    state = ring_state_at(ring.state)
    store_shared(state, "tail", end - ring.memory)
    fence()
    if load_shared(state, "asked") != 0 and answer(ring, ts_in):
        poke(ring.wake_fd, ring.state)


@inner
def put_count(ring: RingAt, kind: int, key: int, count: int, ts_in: int) -> bool:
    """Write an UNWANTED, ABSENT or SHOW record. Return False if there is no room."""
    record = claim(ring, numpy.int64(RECORD_BYTES), numpy.int64(0))
    if record == 0:
        return False
    write_head(record, count, kind, key)
    commit(ring, record + RECORD_BYTES, ts_in)
    return True


@inner
def commit_block(ring: RingAt, record: int, kind: int, key: int, body_bytes: int, ts_in: int) -> None:
    """Commit a block whose header and body message were written after the head of a claimed record.

    `kind`: BLOCK or AGAIN.
    """
    write_head(record, numpy.int64(HEADER_BYTES + MESSAGE_BYTES), kind, key)
    ring_state_at(ring.state).bodies_in += body_bytes
    commit(ring, record + BLOCK_RECORD_BYTES, ts_in)


# The reader, compiled.


@inner
def kind_of(record: int) -> Any:
    """Return the kind of a record, or the topic id of a message."""
    return uint32_at(record + 4)


@inner
def count_of(record: int) -> Any:
    """Return the count of a record; for a message its payload size, negative without a value."""
    return numpy.int64(int32s_at(record, 1)[0])


@inner
def key_of(record: int) -> Any:
    """Return the key number of a record; for a message its `ts_event`."""
    return int64s_at(record + 8, 1)[0]


@inner
def record_bytes(record: int) -> Any:
    """Return the size of a record that is not PAD."""
    kind = kind_of(record)
    if kind in (BLOCK, AGAIN):
        return numpy.int64(BLOCK_RECORD_BYTES)
    if kind > NOTE:
        return numpy.int64(RECORD_BYTES)
    return (RECORD_BYTES + max(count_of(record), numpy.int64(0)) + 7) & -8


@inner
def _is_for_first(ring: RingAt, asked_from: int) -> bool:
    """Return True if the answer is for the record at `asked_from`, not for a later one."""
    first = asked_from if kind_of(ring.memory + asked_from) != PAD else 0
    tail = load_shared(ring_state_at(ring.state), "answer_tail")
    end = first + record_bytes(ring.memory + first)
    if (
        tail not in (first, end) and kind_of(ring.memory + first) == NOTE
    ):  # it became visible together with the records that it describes
        first = end if kind_of(ring.memory + end) != PAD else 0
        end = first + record_bytes(ring.memory + first)
    return bool(tail in (first, end))


@inner
def ask(ring: RingAt, asked_ns: int, asked_from: int) -> int:
    """Ask writers when the next message comes. Return when the oldest one in the ring came, or a lower bound for it.

    Call before the tail is read. `asked_ns` is when this was last called, ns since the epoch: messages in the ring came
    later, so it serves if no writer answered. `asked_from` is the tail read at that call. `publish` has no fence
    between its record and its look at `asked`, so the writer of the record there may have missed the request, and a
    later writer may have answered. SURE: that is impossible.
    """
    state = ring_state_at(ring.state)
    came = asked_ns
    if load_shared(state, "asked") == 0 and (asked_from == SURE or _is_for_first(ring, asked_from)):
        came = load_shared(state, "answer_ns")
    store_shared(state, "asked", 1)
    fence()
    return came


@inner
def release(ring: RingAt, head: int) -> None:
    """Free the space before `head`, and wake a waiting writer.

    A writer is woken only when half the ring and half of the bodies are free, so that it can write many blocks at once.
    """
    state = ring_state_at(ring.state)
    store_shared(state, "head", head)
    fence()
    if load_shared(state, "waiting") == 0:
        return
    filled = load_shared(state, "tail") - head
    if filled < 0:
        filled += ring.capacity
    pending = load_shared(state, "bodies_in") - state.bodies_out
    if 2 * filled <= ring.capacity and 2 * pending <= ring.bodies_limit:
        store_shared(state, "waiting", 0)
        poke(ring.room_fd, ring.state)


@njit(nogil=True, cache=True)
def discard(ring: RingAt) -> int:
    """Free the blocks that were never sent; return the number of messages that the ring still held."""
    state = ring_state_at(ring.state)
    head = state.head
    messages = 0
    while head != state.tail:
        record = ring.memory + head
        kind = kind_of(record)
        if kind == PAD:
            head = 0
            continue
        if kind in (BLOCK, AGAIN):
            header = record + RECORD_BYTES
            messages += block_header_at(header).count
            msg_close(header + HEADER_BYTES)
        elif kind < NOTE:
            messages += 1
        head += record_bytes(record)
    state.head = state.tail
    return messages
