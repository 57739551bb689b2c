"""Notes of a hub in its journals: results of requests, next to their messages; and its state of clients.

A turn of the hub judges some requests and has one number. Each slice that gets messages of the turn has its note before
them, in the same write. A turn that stores nothing has its note in slice 0. Some turns judge nothing, and renew the
notes of old turns.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy
from numpy.typing import NDArray

from blackbox.archive.files.day import recorded_files
from blackbox.archive.files.format import FILE_HEAD_BYTES, MARK_HEAD_BYTES, RECORD_ALIGNMENT
from blackbox.archive.files.marks import next_mark, places_of_marks, read_mark
from blackbox.archive.files.segment import Segment, SegmentFile
from blackbox.documents import DecodeError, Decoder, Document
from blackbox.errors import DamagedError
from blackbox.services.hub.protocol import ENCODER, PlaceRow

JUDGED: Final = 0
"""The kind of a note that is a list of `Judged`: all requests of the turn, in order."""
SNAPSHOT: Final = 1
"""The kind of a note that is a `Snapshot`."""
RENEWED: Final = 2
"""The kind of a note that is `Renewed`."""
END: Final = numpy.dtype([("row", "<u4"), ("at", "<i8")])
"""Deadline of the topic of a request's row, ns since 1970; 0: the topic no longer has one."""
HEAD: Final = numpy.dtype([("number", "<i8"), ("first", "<i8"), ("slices", "<u2"), ("kind", "u1")])
"""Head of a note: number of the turn; number of the first turn of the hub's run; slices that have a note of the turn;
kind."""
_HEAD: Final = struct.Struct("<qqHB")
MOST_PART_BYTES: Final = 256 << 10
"""Bytes of a note at which the next one begins."""
_ITEM_BYTES: Final = 64
"""Approximate size of an item of `Renewed` without its ids, places and reasons."""


class Client(NamedTuple):
    """Name of a client, and the key that uses it."""

    key: str
    """Public key as text; empty without encryption."""
    name: str


class Judged(msgspec.Struct, frozen=True, array_like=True):
    """Result of a request, or the start of a client's session, which has no places."""

    client: Client | None
    """None: the hub itself has put it."""
    session: int
    first: int
    places: bytes
    """Place of each put, as `pack_places` returns them."""
    why: str
    ids: list[bytes]
    """Id of each put, b"" for none; empty: none has one."""
    ends: bytes
    """END[n]"""
    taken_ns: int
    """Time at which the hub took it, ns since 1970."""


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """Part of a snapshot of clients, deadlines and topics; each part is a turn, and follows the one before."""

    part: int
    parts: int
    floor: int
    """Notes from this number on have all answers, ids and partial requests."""
    clients: list[tuple[Client, int, int]]
    """Client, session and last put, the least recently active client first."""
    deadlines: list[tuple[bytes, int]]
    topics: list[bytes]


class Renewed(msgspec.Struct, frozen=True, array_like=True):
    """Answers, ids and partial requests that only old turns had in their notes: keys and values of a `Table`."""

    answers: list[tuple[tuple[Client, int], tuple[int, int, bytes, str]]]
    ids: list[tuple[tuple[str, bytes], tuple[int, int, PlaceRow]]]
    partial: list[tuple[tuple[Client, int, int], tuple[int, int, dict[int, PlaceRow]]]]


_RENEWED: Final = Decoder[Renewed]("msgpack", Renewed)
_JUDGED: Final = Decoder[list[Judged]]("msgpack", list[Judged])
_SNAPSHOT: Final = Decoder[Snapshot]("msgpack", Snapshot)


def encode_judged(number: int, first: int, slices: int, requests: Sequence[Judged]) -> bytes:
    """Return the note of a turn; `number`, `first` and `slices` are fields of `HEAD`."""
    return _head(number, first, slices, JUDGED) + ENCODER.encode(requests)


def _head(number: int, first: int, slices: int, kind: int) -> bytes:
    return _HEAD.pack(number, first, slices, kind)


def head_of(note: bytes) -> NDArray[numpy.void]:
    """Return the head of a note: HEAD."""
    return numpy.frombuffer(note, HEAD, 1)[0]  # type: ignore[no-any-return]


def encode_snapshot(
    number: int,
    first: int,
    floor: int,
    clients: Sequence[tuple[Client, int, int]],
    deadlines: Sequence[tuple[bytes, int]],
    topics: Sequence[bytes],
) -> list[bytes]:
    """Return the note of each turn of a snapshot, from turn `number` on; `first` as in `encode_judged`."""
    items = [*((0, each, sum(map(len, each[0]))) for each in clients), *((1, each, len(each[0])) for each in deadlines)]
    parts = _in_parts([*items, *((2, each, len(each)) for each in topics)])
    return [
        _head(number + part, first, 1, SNAPSHOT) + ENCODER.encode(Snapshot(part, len(parts), floor, *lists))
        for part, lists in enumerate(parts)
    ]


def snapshot_part(note: bytes) -> tuple[int, int] | None:
    """Return part number and number of parts of a snapshot's note; None for other notes. Raises DecodeError."""
    if head_of(note)["kind"] != SNAPSHOT:
        return None
    snapshot = _SNAPSHOT.decode(note[HEAD.itemsize :])
    return snapshot.part, snapshot.parts


def encode_renewed(number: int, first: int, renewed: Renewed) -> list[bytes]:
    """Return the note of each turn that renews something, from turn `number` on; `first` as in `encode_judged`."""
    items = [
        *((0, each, _ITEM_BYTES + len(each[1][2]) + len(each[1][3])) for each in renewed.answers),
        *((1, each, _ITEM_BYTES + len(each[0][1])) for each in renewed.ids),
        *((2, each, _ITEM_BYTES * (1 + len(each[1][2]))) for each in renewed.partial),
    ]
    return [
        _head(turn, first, 1, RENEWED) + ENCODER.encode(Renewed(*lists))
        for turn, lists in enumerate(_in_parts(items) if items else [], number)
    ]


def _in_parts(items: Iterable[tuple[int, Any, int]]) -> list[tuple[list[Any], list[Any], list[Any]]]:
    """Distribute items (number of its list, item, size in bytes) to parts of at most about MOST_PART_BYTES."""
    parts: list[tuple[list[Any], list[Any], list[Any]]] = [([], [], [])]
    size = 0
    for kind, item, item_bytes in items:
        size += 32 + item_bytes
        if size > MOST_PART_BYTES:
            parts.append(([], [], []))
            size = 0
        parts[-1][kind].append(item)
    return parts


class Notes:
    """The notes of a segment, in order: `places`, and the fields of `HEAD`: `numbers`, `firsts`, `slices`, `kinds`."""

    def __init__(self, segment: Segment) -> None:
        """Find them. Raises DamagedError if there are fewer than the index says."""
        self.segment = segment
        self.places: NDArray[numpy.int64] = places_of_marks(segment, are_notes=True)
        expected = int(segment.entries["notes"].sum())
        if len(self.places) != expected:
            raise DamagedError(f"{segment.path} had {len(self.places)} notes, expected {expected}: it is damaged")
        at = self.places[:, None] + MARK_HEAD_BYTES + numpy.arange(HEAD.itemsize)
        self._take_heads(segment.memory[numpy.minimum(at, len(segment.memory) - 1)].view(HEAD).ravel())

    def _take_heads(self, heads: NDArray[numpy.void]) -> None:
        self.numbers: NDArray[numpy.int64] = heads["number"]
        self.firsts: NDArray[numpy.int64] = heads["first"]
        self.slices: NDArray[numpy.uint16] = heads["slices"]
        self.kinds: NDArray[numpy.uint8] = heads["kind"]

    def text(self, place: int) -> bytes:
        """Return the body of a note. Raises DamagedError if it is damaged."""
        mark = read_mark(self.segment, place)
        if mark is None:
            raise DamagedError(f"{self.segment.path} is damaged: the note at {place} does not match its checksum")
        return mark.note

    def judged(self, place: int) -> list[Judged]:
        """Return the requests of a note. Raises DamagedError if it is damaged."""
        return self._decoded(place, _JUDGED)

    def renewed(self, place: int) -> Renewed:
        """Return the renewed items of a note. Raises DamagedError if it is damaged."""
        return self._decoded(place, _RENEWED)

    def snapshot(self, place: int) -> Snapshot:
        """Return a part of a snapshot. Raises DamagedError if it is damaged."""
        return self._decoded(place, _SNAPSHOT)

    def _decoded(self, place: int, decoder: Decoder[Document]) -> Document:
        try:
            return decoder.decode(self.text(place)[HEAD.itemsize :])
        except DecodeError as error:
            raise DamagedError(f"{self.segment.path} is damaged: the note at {place} was not understood") from error


def newest_turn(day: Path) -> int:
    """Return the last turn in the readable notes of a day, as others may be damaged; 0 if no note is readable."""
    newest = 0
    for path in recorded_files(day):
        segment = SegmentFile(path, 0, 0)  # an index has no notes
        size, at = len(segment.memory), FILE_HEAD_BYTES
        while (at := next_mark(segment.address, size, at, True)) >= 0:
            mark = read_mark(segment, at)
            newest = newest if mark is None else max(newest, int(head_of(mark.note)["number"]))
            at += RECORD_ALIGNMENT if mark is None else mark.size
    return newest
