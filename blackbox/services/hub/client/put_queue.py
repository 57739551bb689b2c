"""Puts that wait to be sent to a hub, packed into requests, and the bounds of those that are not answered."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Final, NamedTuple

import msgspec
import numpy

from blackbox.block.position import Place
from blackbox.errors import HubError
from blackbox.services.hub.client.condition_columns import error_of
from blackbox.services.hub.protocol import (
    ANYWHERE,
    CONDITION,
    FIRST,
    MOST_BYTES,
    MOST_PUTS,
    Stored,
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


class Single(NamedTuple):
    """One put."""

    topic: bytes
    payload: bytes | None
    time_ns: int
    id: bytes
    if_at: Place | None
    ttl_ns: int
    future: Future[Place]


class PutQueue:
    """Puts in their order, and the room for more. The lock of its owner protects it."""

    def __init__(self, most: int) -> None:
        """`most`: maximum number of unanswered puts."""
        self._most = most
        self._singles: list[Single] = []
        """Puts after those in `_columns`."""
        self._columns: deque[Columns] = deque()
        self.unanswered = self._bytes = 0
        """Puts that are not answered, and bytes of their payloads."""

    def has_room(self, count: int, size: int) -> bool:
        """Return True if `count` puts with `size` bytes of payloads may be added."""
        is_full = self.unanswered + count > self._most or self._bytes + size > _MOST_WAITING_BYTES
        return not self.unanswered or not is_full

    def add(self, single: Single) -> None:
        """Add a put."""
        self._singles.append(single)
        self.unanswered += 1
        self._bytes += len(single.payload or b"")

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
        singles, self._singles = self._singles, []
        begin = size = 0
        for index, single in enumerate(singles):
            size += len(single.payload or b"")
            if index - begin == MOST_PUTS or (size > MOST_BYTES and index > begin):
                self._columns.append(_columns_of(singles[begin:index]))
                begin, size = index, len(single.payload or b"")
        if begin < len(singles):
            self._columns.append(_columns_of(singles[begin:]))


def _columns_of(singles: list[Single]) -> Columns:
    if len(singles) == 1:
        return _columns_of_one(singles)
    numbers: dict[bytes, int] = {}
    index = [numbers.setdefault(each.topic, len(numbers)) for each in singles]
    payloads = [each.payload or b"" for each in singles]
    offsets = numpy.zeros(len(singles) + 1, numpy.int64)
    numpy.cumsum([*map(len, payloads)], out=offsets[1:])
    times = [each.time_ns for each in singles]
    ids = [each.id for each in singles]
    is_null = any(each.payload is None for each in singles)
    ttl = [each.ttl_ns for each in singles]
    if_at = [ANYWHERE if each.if_at is None else each.if_at[1:] for each in singles]

    return Columns(
        list(numbers),
        numpy.array(index, numpy.int32).tobytes(),
        offsets.tobytes(),
        b"".join(payloads),
        numpy.array(times, numpy.int64).tobytes() if any(times) else b"",
        bytes(each.payload is not None for each in singles) if is_null else b"",
        ids if any(ids) else [],
        len(singles),
        partial(_tell, singles),
        numpy.array(if_at, CONDITION).tobytes() if any(each is not ANYWHERE for each in if_at) else b"",
        numpy.array(ttl, numpy.int64).tobytes() if any(ttl) else b"",
    )


def _columns_of_one(singles: list[Single]) -> Columns:
    ((topic, payload, time_ns, put_id, if_at, ttl_ns, _),) = singles
    data = payload or b""
    return Columns(
        [topic],
        FIRST,
        offsets_of_one(len(data)),
        data,
        _NUMBER.pack(time_ns) if time_ns else b"",
        b"\0" if payload is None else b"",
        [put_id] if put_id else [],
        1,
        partial(_tell, singles),
        b"" if if_at is None else _NUMBER.pack(if_at.epoch) + _NUMBER.pack(if_at.sequence),
        _NUMBER.pack(ttl_ns) if ttl_ns else b"",
    )


def _tell(singles: list[Single], result: Stored | HubError) -> None:
    if isinstance(result, HubError):
        for each in singles:
            each.future.set_exception(result)
        return
    why = result.why.split("\n")
    for each, place in zip(singles, unpack_places(result.places).tolist(), strict=True):
        slice_id, _, is_refused, epoch, sequence = place
        if is_refused:
            each.future.set_exception(error_of(each.topic, each.if_at, place, why))
        else:
            each.future.set_result(Place(slice_id, epoch, sequence))
