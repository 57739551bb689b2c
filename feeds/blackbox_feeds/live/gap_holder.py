"""Compiled: put datagrams in order, and hold those after a gap until it is filled, or for a bounded time.

    datagram ->  before `expected`: a duplicate | at `expected`: released | after it: held, until the gap is filled

A gap is filled by any datagram, from another line or in answer to a request. It is given up if a datagram has been held
for too long, or if there is no room for another: the next datagram is then released, and the decoder, which follows the
sequence, reports the gap at its position. So the output is in order, and has each message once. Messages of a released
datagram that were released before are cut off.

A datagram far ahead, which no other one continues, is a mistake if a line continues the sequence before it: forged
datagrams have any numbers. So messages before it have filled a gap only once it is released.

A heartbeat, which has no messages, is held like other datagrams: it shows a gap at the end of the stream.

No I/O, no clock: the caller gives the time.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.native.compile.jit import njit
from blackbox.native.memory.arrays import fresh_array
from blackbox.native.memory.intrinsics import copy_bytes
from blackbox.native.memory.records import Field, SharedRecord, record_at
from blackbox_feeds.io.length_prefixed import skip_messages
from blackbox_feeds.io.pcap import Datagrams

HOLD_PER_MESSAGE_NS: Final = 20_000
"""Added to the time for each message missing when a datagram arrives: a long gap takes long to fill."""
FAR: Final = 65_536
"""A datagram further ahead than this number of messages is a mistake, unless the next one continues it and no line
continues the sequence before it."""
_FOREVER_NS: Final = 1 << 62
_LONGEST_GAP: Final = 1 << 32
"""Messages of a gap for which there is more time."""
_PART_BYTES: Final = 1 << 20


class Form(NamedTuple):
    """The layout of a protocol's datagrams. All units: bytes."""

    header_bytes: int
    sequence_at: int
    """Offset of the sequence of the first message, eight bytes."""
    count_at: int
    """Offset of the number of messages, two bytes."""
    payload_bytes_at: int
    """Offset of the length of the payload, two bytes; -1 if the header lacks it."""
    is_big_endian: bool


class _State(SharedRecord):
    """State of a `GapHolder`."""

    expected = Field()
    """Sequence of the next message."""
    held = Field()
    """Datagrams held."""
    duplicates = Field()
    """Messages received more than once, or after their gap was given up."""
    recovered = Field()
    """Messages that filled a gap."""
    implausible = Field()
    """Datagrams dropped: they were far ahead of a sequence that went on."""
    progress_ns = Field()
    """Time at which a line continued the sequence last."""
    suspect = Field()
    """First sequence of a datagram far ahead that is no mistake: it continues one, a heartbeat continues it, or the
    session began with it."""
    used = Field()
    """Bytes of the current output."""
    rows = Field()
    """Datagrams of the current output."""


_state_at = record_at(_State)


class _Held(NamedTuple):
    """The datagrams held, in the order of their first sequences; columns of length `most`."""

    first: NDArray[numpy.int64]
    end: NDArray[numpy.int64]
    """Sequence after the last message."""
    came_ns: NDArray[numpy.int64]
    until_ns: NDArray[numpy.int64]
    """Time from which a datagram that is no mistake is held for `hold_ns`: when the gaps before it should be filled."""
    is_late: NDArray[numpy.int64]
    """1 if a later datagram was held when this one came."""
    before: NDArray[numpy.int64]
    """Messages that fill the gap before this datagram, if that is no mistake."""
    length: NDArray[numpy.int64]
    slot: NDArray[numpy.int64]
    free: NDArray[numpy.int64]
    """The first most - held: free slots."""
    store: NDArray[numpy.uint8]
    slot_bytes: int


class _Output(NamedTuple):
    """Room for datagrams in order."""

    data: NDArray[numpy.uint8]
    starts: NDArray[numpy.int64]
    lengths: NDArray[numpy.int32]
    most_bytes: int
    """Longest datagram."""


class Arrived(NamedTuple):
    """Datagrams as they arrived, in slots; columns of length n."""

    data: NDArray[numpy.uint8]
    slot_bytes: int
    lengths: NDArray[numpy.int32]
    first: NDArray[numpy.int64]
    """Sequence of the first message; negative: skip the datagram."""
    end: NDArray[numpy.int64]
    """Sequence after the last message."""


class Limits(NamedTuple):
    """Limits on the time for which a datagram is held."""

    hold_ns: int
    per_message_ns: int = HOLD_PER_MESSAGE_NS
    far: int = FAR


@njit(nogil=True, cache=True)
def _write(data: NDArray[numpy.uint8], position: int, value: int, size: int, is_big_endian: bool) -> None:
    for place in range(size):
        shift = 8 * (size - 1 - place if is_big_endian else place)
        data[position + place] = (value >> shift) & 0xFF


@njit(inline="always")
def _copy(target: NDArray[numpy.uint8], at: int, source: NDArray[numpy.uint8], start: int, size: int) -> None:
    copy_bytes(target.ctypes.data + at, source.ctypes.data + start, size)


@njit(nogil=True, cache=True)
def _is_full(address: int, out: _Output) -> bool:
    state = _state_at(address)
    return state.used + out.most_bytes > len(out.data) or state.rows == len(out.starts)


@njit(nogil=True, cache=True)
def _release(
    address: int, form: Form, data: NDArray[numpy.uint8], start: int, length: int, first: int, end: int, out: _Output
) -> None:
    """Append a datagram to the output, without messages before `expected`."""
    state = _state_at(address)
    at, header = state.used, form.header_bytes
    _copy(out.data, at, data, start, header)
    blocks = start + header
    skip = state.expected - first
    if skip > 0:
        blocks = skip_messages(data, blocks, start + length, skip, form.is_big_endian)
        _write(out.data, at + form.sequence_at, state.expected, 8, form.is_big_endian)
        _write(out.data, at + form.count_at, end - state.expected, 2, form.is_big_endian)
        if form.payload_bytes_at >= 0:
            _write(out.data, at + form.payload_bytes_at, start + length - blocks, 2, form.is_big_endian)
        state.duplicates += skip
    size = header + start + length - blocks
    _copy(out.data, at + header, data, blocks, size - header)
    out.starts[state.rows] = at
    out.lengths[state.rows] = size
    state.rows += 1
    state.used += size
    state.expected = end


@njit(nogil=True, cache=True)
def _remove(address: int, held: _Held, place: int, count: int) -> None:
    """Remove some datagrams from place number `place` on."""
    if count == 0:
        return
    state = _state_at(address)
    unused = len(held.free) - state.held
    for number in range(count):
        held.free[unused + number] = held.slot[place + number]
    for to in range(place, state.held - count):
        held.first[to], held.end[to], held.came_ns[to] = (
            held.first[to + count],
            held.end[to + count],
            held.came_ns[to + count],
        )
        held.until_ns[to] = held.until_ns[to + count]
        held.is_late[to], held.before[to] = held.is_late[to + count], held.before[to + count]
        held.length[to], held.slot[to] = held.length[to + count], held.slot[to + count]
    state.held -= count


@njit(nogil=True, cache=True)
def _is_mistaken(address: int, held: _Held, place: int, limits: Limits) -> bool:
    """Return True if a datagram held seems to be a mistake."""
    state = _state_at(address)
    first = held.first[place]
    is_confirmed = first == state.suspect or (place + 1 < state.held and held.first[place + 1] == held.end[place])
    return first - state.expected > limits.far and (state.progress_ns > held.came_ns[place] or not is_confirmed)


@njit(nogil=True, cache=True)
def _count_recovered(address: int, held: _Held, place: int, limits: Limits, count: int) -> None:
    """Count messages that came after the datagram held at a place, if there is one, and before it in the sequence."""
    state = _state_at(address)
    if place < state.held and _is_mistaken(address, held, place, limits):
        held.before[place] += count
    elif place < state.held:
        state.recovered += count


@njit(nogil=True, cache=True)
def _release_held(address: int, form: Form, held: _Held, place: int, limits: Limits, out: _Output) -> None:
    state = _state_at(address)
    first, end, start = held.first[place], held.end[place], held.slot[place] * held.slot_bytes
    count = end - state.expected
    _release(address, form, held.store, start, held.length[place], first, end, out)
    if held.is_late[place] != 0:
        _count_recovered(address, held, place + 1, limits, count)


@njit(nogil=True, cache=True)
def _drain(address: int, form: Form, held: _Held, limits: Limits, out: _Output) -> bool:
    """Release held datagrams up to the next gap. Return False if the output is full."""
    state = _state_at(address)
    place = 0
    while place < state.held and held.first[place] <= state.expected:
        state.recovered += held.before[place]
        held.before[place] = 0
        if held.end[place] <= state.expected:
            state.duplicates += held.end[place] - held.first[place]
        elif _is_full(address, out):
            _remove(address, held, 0, place)
            return False
        else:
            _release_held(address, form, held, place, limits, out)
        place += 1
    _remove(address, held, 0, place)
    return True


@njit(nogil=True, cache=True)
def _give_up(address: int, form: Form, held: _Held, limits: Limits, out: _Output) -> None:
    """Give up the first gap: release the datagram after it, unless that is implausible."""
    state = _state_at(address)
    if _is_mistaken(address, held, 0, limits):
        state.implausible += 1
        state.suspect = held.end[0]
    else:
        state.expected = held.first[0]
        state.recovered += held.before[0]
        _release_held(address, form, held, 0, limits, out)
    _remove(address, held, 0, 1)


@njit(nogil=True, cache=True)
def _is_over(address: int, held: _Held, limits: Limits, now_ns: int) -> bool:
    """Return True if a datagram has been held for too long. Messages before a mistaken one are not waited for."""
    state = _state_at(address)
    if state.held == 0:
        return False
    times = held.came_ns if _is_mistaken(address, held, 0, limits) else held.until_ns
    return times[: state.held].min() + limits.hold_ns <= now_ns


@njit(nogil=True, cache=True)
def _hold(address: int, held: _Held, limits: Limits, arrived: Arrived, row: int, now_ns: int) -> None:
    """Hold a datagram; there is room. A datagram covered by the one before it is a duplicate."""
    state = _state_at(address)
    first, end = arrived.first[row], arrived.end[row]
    place = numpy.searchsorted(held.first[: state.held], first, side="right")
    if place > 0 and held.end[place - 1] >= end:
        if held.first[place - 1] < first == held.end[place - 1]:
            state.suspect = held.first[place - 1]
        state.duplicates += end - first
        return
    for to in range(state.held, place, -1):
        held.first[to], held.end[to], held.came_ns[to] = held.first[to - 1], held.end[to - 1], held.came_ns[to - 1]
        held.until_ns[to] = held.until_ns[to - 1]
        held.is_late[to], held.before[to] = held.is_late[to - 1], held.before[to - 1]
        held.length[to], held.slot[to] = held.length[to - 1], held.slot[to - 1]
    last, until_ns = state.expected, now_ns
    if place > 0:
        last, until_ns = held.end[place - 1], max(now_ns, held.until_ns[place - 1])
    missing = min(max(0, first - last), _LONGEST_GAP)
    longest_ns = _LONGEST_GAP * limits.per_message_ns
    held.until_ns[place] = min(until_ns + missing * limits.per_message_ns, now_ns + longest_ns)
    slot = held.free[len(held.free) - state.held - 1]
    length, start = arrived.lengths[row], row * arrived.slot_bytes
    _copy(held.store, slot * held.slot_bytes, arrived.data, start, length)
    held.first[place], held.end[place], held.came_ns[place] = first, end, now_ns
    held.is_late[place], held.before[place] = place < state.held, 0
    held.length[place], held.slot[place] = length, slot
    state.held += 1


@njit(nogil=True, cache=True)
def _arrange(
    address: int,
    form: Form,
    held: _Held,
    limits: Limits,
    arrived: Arrived,
    row: int,
    n: int,
    is_line: bool,
    now_ns: int,
    out: _Output,
) -> tuple[int, bool]:
    """Process arrived datagrams from number `row` to `n`. Return (where to go on, True if all is done)."""
    state = _state_at(address)
    state.used = state.rows = 0
    while _drain(address, form, held, limits, out) and _is_over(address, held, limits, now_ns):
        if _is_full(address, out):
            return row, False
        _give_up(address, form, held, limits, out)
    while _drain(address, form, held, limits, out):
        if row == n:
            return row, True
        first, end = arrived.first[row], arrived.end[row]
        if first < 0:
            row += 1
        elif end <= state.expected:
            state.duplicates += end - first
            row += 1
        elif _is_full(address, out):
            return row, False
        elif first <= state.expected or (state.held == len(held.free) and first < held.first[0]):
            state.expected = max(state.expected, first)  # greater if there is no room: the gap before it is given up
            _count_recovered(address, held, 0, limits, end - state.expected)
            start = row * arrived.slot_bytes
            _release(address, form, arrived.data, start, arrived.lengths[row], first, end, out)
            if is_line:
                state.progress_ns = now_ns
            row += 1
        elif state.held == len(held.free):
            _give_up(address, form, held, limits, out)
        else:
            _hold(address, held, limits, arrived, row, now_ns)
            row += 1
    return row, False


class GapHolder:
    """Puts the datagrams of one session in order. `start` begins a session."""

    def __init__(self, form: Form, slot_bytes: int, limits: Limits, most_held: int) -> None:
        """`slot_bytes`: longest datagram; `most_held`: datagrams held."""
        self._form, self._limits = form, limits
        self._state: _State = _State()
        store = fresh_array((most_held * slot_bytes,), numpy.uint8)
        first, end, came, until, is_late, before, length, slot = (numpy.zeros(most_held, numpy.int64) for _ in range(8))
        free = numpy.arange(most_held)
        self._held = _Held(first, end, came, until, is_late, before, length, slot, free, store, slot_bytes)

    def start(self, sequence: int, begin: int = 0) -> None:
        """Expect message `sequence` next; nothing may be held, see `flush`.

        `begin`: first sequence of the datagram that began the session. It is no mistake, however far ahead it is.
        """
        self._state.expected, self._state.progress_ns, self._state.suspect = sequence, 0, begin

    @property
    def expected(self) -> int:
        """Sequence of the next message."""
        return self._state.expected

    @property
    def gap(self) -> tuple[int, int, int] | None:
        """The first gap: its first sequence, the sequence after it, and the time since when it is known."""
        if not self._state.held:
            return None
        return self._state.expected, int(self._held.first[0]), int(self._held.came_ns[0])

    @property
    def duplicates(self) -> int:
        """Messages skipped: released before, or given up."""
        return self._state.duplicates

    @property
    def recovered(self) -> int:
        """Messages that filled gaps."""
        return self._state.recovered

    def take_implausible(self) -> int:
        """Return the datagrams dropped since the last call: they were far ahead of a sequence that went on."""
        dropped, self._state.implausible = self._state.implausible, 0
        return dropped

    def arrange(self, arrived: Arrived, n: int, *, is_line: bool, now_ns: int) -> list[Datagrams]:
        """Process `n` arrived datagrams; return those to decode now, in order.

        `is_line`: they come from a line, not in answer to a request. Without datagrams, check the times only.
        """
        out, row, is_done = [], 0, False
        needed = int(arrived.lengths[:n].clip(0).sum()) + self._held.slot_bytes
        while not is_done:
            if self._state.held:
                needed = max(needed, _PART_BYTES)
            room = n + min(self._state.held, _PART_BYTES // self._form.header_bytes) + 1
            part = _Output(
                numpy.empty(needed, numpy.uint8),
                numpy.empty(room, numpy.int64),
                numpy.empty(room, numpy.int32),
                self._held.slot_bytes,
            )
            row, is_done = _arrange(
                self._state.address,
                self._form,
                self._held,
                self._limits,
                arrived,
                row,
                n,
                is_line,
                now_ns,
                part,
            )
            if rows := self._state.rows:
                data = part.data[: self._state.used]
                data.flags.writeable = False
                out.append(Datagrams(data, 0, part.starts[:rows], part.lengths[:rows], numpy.zeros(rows, numpy.int64)))
        return out

    def flush(self, arrived: Arrived) -> list[Datagrams]:
        """Give up all gaps, and return the datagrams that were held."""
        return self.arrange(arrived, 0, is_line=False, now_ns=_FOREVER_NS)
