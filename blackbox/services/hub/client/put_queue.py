"""Puts that wait to be sent to a hub, packed into requests, and the bounds of those that are not answered."""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from itertools import groupby
from typing import Any, Final

import msgspec
import numpy
from numpy.typing import NDArray

from blackbox.block.position import Place
from blackbox.errors import HubError
from blackbox.services.hub.client.condition_columns import error_of
from blackbox.services.hub.protocol import (
    ANYWHERE,
    CONDITION,
    CONFLICT,
    FIRST,
    MOST_BYTES,
    MOST_PUTS,
    Stored,
    ids_of,
    offsets_of_one,
    unpack_places,
)

_MOST_WAITING_BYTES: Final = 64 * MOST_BYTES
_NUMBER: Final = struct.Struct("<q")


class Columns(msgspec.Struct, frozen=True):
    """Puts that share a request, and a callback for the answer."""

    topics: list[bytes]
    index: bytes
    offsets: bytes
    payloads: bytes
    times: bytes
    valid: bytes
    ids: list[bytes]
    count: int
    tell: Callable[[Stored | HubError], None]
    if_at: bytes = b""
    ttl: bytes = b""
    is_one: bool = False


class Put(Future[Place]):
    """One put, and the future of its place.

    A `Future` makes a condition and two lists, which takes longer than all else that a put needs. Here they are made
    for the first thread that waits for this put or adds a callback.
    """

    more: tuple[bytes, ...] = ()
    """Further topics of the message; the place is that under `topic`."""
    id: bytes = b""
    if_at: Place | None = None
    ttl_ns: int = 0
    _state = "RUNNING"  # it cannot be cancelled
    _result, _exception = None, None
    _making = threading.RLock()
    """Held while a condition is made, or while a put without one is finished."""

    def __init__(self, topic: bytes, payload: bytes | None, time_ns: int) -> None:
        self.topic, self.payload, self.time_ns = topic, payload, time_ns

    def __getattr__(self, name: str) -> Any:
        if name == "_condition":
            with Put._making:
                return self.__dict__.setdefault(name, threading.Condition())
        if name in ("_waiters", "_done_callbacks"):  # used with the condition held
            return self.__dict__.setdefault(name, [])
        raise AttributeError(name)

    def done(self) -> bool:
        """Return True if the put has a result."""
        return self._state == "FINISHED"

    def result(self, timeout: float | None = None) -> Place:
        """Wait for the place and return it, or raise the error of the put."""
        return super().result(timeout) if self._result is None else self._result

    def set_result(self, place: Place) -> None:
        """Finish the put."""
        with Put._making:
            if "_condition" not in self.__dict__:
                self._result, self._state = place, "FINISHED"
                return
        super().set_result(place)


class PutQueue:
    """Puts in their order, and the room for more. The lock of its owner protects it."""

    def __init__(self, most: int) -> None:
        """`most`: maximum number of unanswered puts."""
        self._most = most
        self._singles: list[Put] = []
        """Puts after those in `_columns`."""
        self._columns: deque[Columns] = deque()
        self.unanswered = self._bytes = 0
        """Puts that are not answered, and bytes of their payloads."""

    def has_room(self, count: int, size: int) -> bool:
        """Return True if `count` puts with `size` bytes of payloads may be added."""
        is_full = self.unanswered + count > self._most or self._bytes + size > _MOST_WAITING_BYTES
        return not self.unanswered or not is_full

    def add(self, put: Put) -> bool:
        """Add a put. Return False if there is no room for it."""
        count, size = 1 + len(put.more), 0 if put.payload is None else len(put.payload)
        if not self.has_room(count, size):
            return False
        self._singles.append(put)
        self.unanswered += count
        self._bytes += size
        return True

    def add_columns(self, columns: Columns) -> None:
        """Add the puts of a request."""
        self._gather()
        self._columns.append(columns)
        self.unanswered += columns.count
        self._bytes += len(columns.payloads)

    def take(self) -> Columns | None:
        """Remove and return the puts of the next request; None if no put waits."""
        if not self._columns:
            self._gather()
        return self._columns.popleft() if self._columns else None

    def answered(self, columns: Columns) -> None:
        """Make room for others."""
        self.unanswered -= columns.count
        self._bytes -= len(columns.payloads)

    def close(self) -> list[Columns]:
        """Remove and return all puts that were not taken; no put counts as unanswered any more."""
        self._gather()
        left, self._columns = list(self._columns), deque()
        self.unanswered = 0
        return left

    def _gather(self) -> None:
        """Pack single puts into columns that fit a request."""
        puts, self._singles = self._singles, []
        for is_one, group in groupby(puts, lambda each: bool(each.more)):
            run = list(group)
            if is_one or len(run) == 1:
                self._columns.extend(_columns_of_one(each) for each in run)
            else:
                payloads = [each.payload or b"" for each in run]
                offsets = numpy.zeros(len(run) + 1, numpy.int64)
                numpy.cumsum([*map(len, payloads)], out=offsets[1:])
                for part in parts_of(offsets):
                    self._columns.append(_columns_of(run[part], payloads[part], offsets[part.start : part.stop + 1]))


def parts_of(offsets: NDArray[numpy.int64]) -> list[slice]:
    """Cut puts, with payloads between these offsets, into parts that fit a request."""
    found, begin, count = [], 0, len(offsets) - 1
    while begin < count:
        fits = int(numpy.searchsorted(offsets, offsets[begin] + MOST_BYTES, "right")) - 1
        stop = max(begin + 1, min(fits, begin + MOST_PUTS, count))
        found.append(slice(begin, stop))
        begin = stop
    return found


def _columns_of(puts: list[Put], payloads: list[bytes], offsets: NDArray[numpy.int64]) -> Columns:
    topics = [each.topic for each in puts]
    numbers = {topic: number for number, topic in enumerate(dict.fromkeys(topics))}
    times = [each.time_ns for each in puts]
    ids = [each.id for each in puts]
    is_null = any(each.payload is None for each in puts)
    ttl = [each.ttl_ns for each in puts]
    if_at = [ANYWHERE if each.if_at is None else each.if_at[1:] for each in puts]

    return Columns(
        list(numbers),
        numpy.fromiter(map(numbers.__getitem__, topics), numpy.int32, len(puts)).tobytes(),
        (offsets - offsets[0]).tobytes(),
        b"".join(payloads),
        numpy.array(times, numpy.int64).tobytes() if any(times) else b"",
        bytes(each.payload is not None for each in puts) if is_null else b"",
        ids if any(ids) else [],
        len(puts),
        partial(_tell, puts),
        numpy.array(if_at, CONDITION).tobytes() if any(each is not ANYWHERE for each in if_at) else b"",
        numpy.array(ttl, numpy.int64).tobytes() if any(ttl) else b"",
    )


def _columns_of_one(put: Put) -> Columns:
    data, if_at, count = put.payload or b"", put.if_at, 1 + len(put.more)
    return Columns(
        [put.topic, *put.more],
        FIRST if count == 1 else numpy.arange(count, dtype=numpy.int32).tobytes(),
        offsets_of_one(len(data)),
        data,
        count * _NUMBER.pack(put.time_ns) if put.time_ns else b"",
        bytes(count) if put.payload is None else b"",
        ids_of(put.id, count) if put.id else [],
        count,
        partial(_tell_one, put),
        b"" if if_at is None else count * (_NUMBER.pack(if_at.epoch) + _NUMBER.pack(if_at.sequence)),
        count * _NUMBER.pack(put.ttl_ns) if put.ttl_ns else b"",
        count > 1,
    )


def _tell(puts: list[Put], result: Stored | HubError) -> None:
    if isinstance(result, HubError):
        for each in puts:
            each.set_exception(result)
        return
    why = result.why.split("\n")
    for each, place in zip(puts, unpack_places(result.places).tolist(), strict=True):
        slice_id, _, is_refused, epoch, sequence = place
        if is_refused:
            each.set_exception(error_of(each.topic, each.if_at, place, why))
        else:
            each.set_result(Place(slice_id, epoch, sequence))


def _tell_one(put: Put, result: Stored | HubError) -> None:
    """Report the result of a put. If it is refused, its conflicting topic is named, else the first refused one."""
    if isinstance(result, HubError):
        put.set_exception(result)
        return
    places = unpack_places(result.places).tolist()
    refused = [row for row, place in enumerate(places) if place[2]]
    for row in [row for row in refused if places[row][2] == CONFLICT][:1] or refused[:1]:
        topic = (put.topic, *put.more)[row]
        put.set_exception(error_of(topic, put.if_at, places[row], result.why.split("\n")))
        return
    slice_id, _, _, epoch, sequence = places[0]
    put.set_result(Place(slice_id, epoch, sequence))
