"""Keep the newest message of every topic, in compiled code, from a slice's records or from batches."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.block.batch.batch import Batch
from blackbox.block.batch.batch_rows import read_only
from blackbox.block.form.block import Block, HeaderFields
from blackbox.block.form.encode import NO_VALUE
from blackbox.block.form.format import FLAG_FIXED, BodyLayout, Header, has_value, layout_of, read_header, sequence_of
from blackbox.block.form.rows import PayloadColumns
from blackbox.block.position import Place
from blackbox.errors import JournalError
from blackbox.feed.routing.key_rule import key_of
from blackbox.native.compile.jit import njit, warm_up
from blackbox.native.compile.kept_arguments import Kept, kept_at
from blackbox.native.memory.intrinsics import copy_bytes, inner, int32s_at, int64s_at
from blackbox.native.memory.records import Field, SharedRecord, record_at
from blackbox.native.tables.name_table import FULL, Numbering, NumberingAt, number_of

MOST_BYTES: Final = 1 << 30
"""Maximum size of the stored payloads."""
_FIRST_BYTES: Final = 1 << 16
_MEAN_TOPIC_BYTES: Final = 32
_BLOCK_BYTES: Final = 1 << 18
"""Size at which a block of an image is closed."""
_COLUMN_BYTES: Final = 32
"""Bytes of a message in the columns of a block."""
_ALL_ROWS: Final = numpy.frombuffer(b"", numpy.int32)
_DONE: Final = -1
NO_TOPIC: Final = -2


class _Newest(SharedRecord):
    """The newest message of a topic."""

    slice_id = Field()
    epoch = Field()
    sequence = Field()
    ts_event = Field()
    ts_out = Field()
    schema = Field()
    start = Field()
    """Offset of its payload."""
    room = Field()
    """Bytes allocated for the payload."""
    size = Field()
    """Size of its payload; NO_VALUE for a message without a value."""


class _Room(SharedRecord):
    """Memory for payloads."""

    used = Field()
    """Bytes allocated to payloads, including room to grow."""
    with_value = Field()
    """Topics whose newest message has a value."""
    lacking = Field()
    """Reason why a message did not fit: NO_TOPIC, or the bytes that it needs."""


newest_at = record_at(_Newest)
room_at = record_at(_Room)
ROW_BYTES: Final = _Newest.dtype.itemsize
_ROW_WORDS: Final = ROW_BYTES // 8
_SLICE, _EPOCH, _SEQUENCE = _Newest.slice_id.start, _Newest.epoch.start, _Newest.sequence.start
_TIME, _START, _SIZE = _Newest.ts_event.start, _Newest.start.start, _Newest.size.start


class _Kept(NamedTuple):
    """Addresses of the tables, for compiled code."""

    topics: NumberingAt
    room: int
    rows: int
    payloads: int
    payload_bytes: int


tables_at = kept_at(_Kept)


class Entry(NamedTuple):
    """The newest message of a topic with a value."""

    topic: bytes
    payload: bytes
    ts_event: int
    slice_id: int
    epoch: int
    sequence: int

    @property
    def place(self) -> Place:
        """Its position in the feed."""
        return Place(self.slice_id, self.epoch, self.sequence)


class NewestRows:
    """The newest message of each topic, in memory that compiled code writes. Used by one thread at a time.

    `with_value`: number of topics with a value.
    """

    def __init__(self, what: str, key_rule: int, most_topics: int, *, has_payloads: bool = True) -> None:
        """Start empty. `what` names it in errors. With `has_payloads` False, payloads are not stored."""
        self._what, self._key_rule, self._most = what, key_rule, most_topics
        self._most_bytes = MOST_BYTES if has_payloads else 0
        self._topics = Numbering(most_topics, _MEAN_TOPIC_BYTES)
        self._room = _Room()
        self._rows = numpy.zeros(most_topics, _Newest.dtype)
        self._words = self._rows.view(numpy.int64).data
        self._number_of: dict[bytes, int] = {}
        """Topic numbers cached so far."""
        self._set_payloads(numpy.zeros(_FIRST_BYTES, numpy.uint8))
        warm_up(_take_batch, 0, 0, 0, 0, _ALL_ROWS)

    def _set_payloads(self, payloads: NDArray[numpy.uint8]) -> None:
        self._payloads = payloads
        size = len(payloads) if self._most_bytes else -1
        rows, room = self._rows.ctypes.data, self._room.address
        self._kept = Kept(_Kept(self._topics.at, room, rows, payloads.ctypes.data, size))

    def __len__(self) -> int:
        return len(self._topics)

    @property
    def with_value(self) -> int:
        """Number of topics with a value."""
        return self._room.with_value

    def names(self) -> list[bytes]:
        """Return all topics, with or without a value."""
        return self._topics.names()

    def clear(self) -> None:
        """Remove all messages."""
        self._rows[: len(self._topics)] = 0
        self._topics.clear()
        self._number_of.clear()
        self._room.used = self._room.with_value = 0

    def take_batch(self, batch: Batch) -> None:
        """Add messages that follow all earlier ones. Raises JournalError as `make_room`."""
        header, body, origins = batch._received_block.addresses
        rows = _ALL_ROWS if batch.rows is None else read_only(batch.rows)
        while not _take_batch(self._kept.address, header, body, origins, rows):
            self.make_room()

    def make_room(self) -> None:
        """Make room for the message that did not fit. Raises JournalError at the maximum size."""
        lacking = self._room.lacking
        if lacking == NO_TOPIC:
            raise JournalError(
                f"{self._what} had more than {self._most} topics, or long ones: "
                f"expected at most that many (max_topics), of {_MEAN_TOPIC_BYTES} bytes on average"
            )
        rows = self._rows[: len(self._topics)]
        kept = int(((numpy.maximum(rows["size"], 0) + 7) & -8).sum()) + lacking
        if kept > self._most_bytes:
            raise JournalError(
                f"{self._what} had newest messages of {kept} bytes or more, expected at most {self._most_bytes}"
            )
        payloads = numpy.zeros(min(2 * kept, self._most_bytes), numpy.uint8)
        self._room.used = move_payloads(rows.ctypes.data, len(rows), self._payloads.ctypes.data, payloads.ctypes.data)
        self._set_payloads(payloads)

    def has(self, place: Place) -> bool:
        """Return True if the message at a place is the newest of its topic."""
        rows = self._rows[: len(self._topics)]
        is_it = (rows["slice_id"] == place.slice_id) & (rows["epoch"] == place.epoch)
        return bool((is_it & (rows["sequence"] == place.sequence)).any())

    def entry(self, topic: bytes) -> Entry | None:
        """Return the newest message of a topic; None if it is missing or has no value."""
        number = self._number_of.get(topic)
        if number is None:
            if len(self._number_of) < len(self._topics):
                first = len(self._number_of)
                self._number_of.update(zip(self._topics.names(first), range(first, len(self._topics)), strict=True))
                number = self._number_of.get(topic)
            if number is None:
                return None
        words, first_word = self._words, _ROW_WORDS * number
        size = words[first_word + _SIZE]
        if size == NO_VALUE:
            return None
        start = words[first_word + _START]
        payload = self._payloads[start : start + size].tobytes()
        return Entry(
            topic,
            payload,
            words[first_word + _TIME],
            words[first_word + _SLICE],
            words[first_word + _EPOCH],
            words[first_word + _SEQUENCE],
        )

    def copy(self) -> NewestCopy:
        """Return a copy of the current state. This is fast, so that updates can continue."""
        count = len(self._topics)
        rows, starts = self._rows[:count].copy(), self._topics.starts[: count + 1].copy()
        text = self._topics.text[: starts[-1]].copy()
        payloads = numpy.zeros(int(((numpy.maximum(rows["size"], 0) + 7) & -8).sum()), numpy.uint8)
        move_payloads(rows.ctypes.data, len(rows), self._payloads.ctypes.data, payloads.ctypes.data)
        return NewestCopy(rows, starts, text, payloads)

    def have_byte(self, offset: int, values: bytes) -> NDArray[numpy.bool_]:
        """Return bool[topics]: True if the byte at an offset of the newest payload is one of `values`."""
        rows = self._rows[: len(self._topics)]
        is_long = rows["size"] > offset
        found = numpy.zeros(len(rows), numpy.bool_)
        found[is_long] = numpy.isin(self._payloads[rows["start"][is_long] + offset], list(values))
        return found

    def messages(self, prefixes: Collection[bytes], keys: tuple[bytes, ...] = (b"",)) -> Iterator[Entry]:
        """Yield the newest messages that `blocks` returns for the same arguments."""
        names = self._topics.names()
        numbers = self._chosen(names, None, prefixes, keys)
        rows = self._rows[numbers]
        columns = (rows[name].tolist() for name in ("start", "size", "ts_event", "slice_id", "epoch", "sequence"))
        for number, start, size, *rest in zip(numbers.tolist(), *columns, strict=True):
            payload = self._payloads[start : start + size].tobytes()
            yield Entry(names[number], payload, *rest)

    def _chosen(
        self, names: list[bytes], of: NDArray[numpy.bool_] | None, prefixes: Collection[bytes], keys: tuple[bytes, ...]
    ) -> NDArray[numpy.int64]:
        """Return the numbers of the selected topics with a value."""
        has_value = self._rows["size"][: len(names)] != NO_VALUE
        numbers = numpy.flatnonzero(has_value if of is None else has_value & of)
        wanted = tuple(prefixes)
        if b"" not in wanted:
            numbers = numbers[[names[number].startswith(wanted) for number in numbers.tolist()]]
        if b"" not in keys:
            has_key = [key_of(self._key_rule, names[number]).startswith(keys) for number in numbers.tolist()]
            numbers = numbers[has_key]
        return numbers

    def blocks(
        self, prefixes: Collection[bytes], keys: tuple[bytes, ...] = (b"",), of: NDArray[numpy.bool_] | None = None
    ) -> NewestBlocks:
        """Return the newest messages of topics that begin with a prefix, and whose key begins with one of `keys`.

        `of`, bool[topics], selects topics. Topics whose newest message has no value are left out.
        """
        names = self._topics.names()
        numbers = self._chosen(names, of, prefixes, keys)
        group, rows = self._groups(names, numbers), self._rows[numbers]
        order = numpy.lexsort((rows["sequence"], rows["schema"], group, rows["epoch"], rows["slice_id"]))
        numbers, group, rows = numbers[order], group[order], rows[order]
        topics = [names[number] for number in numbers.tolist()]
        payloads = numpy.zeros(int(((rows["size"] + 7) & -8).sum()), numpy.uint8)
        move_payloads(rows.ctypes.data, len(rows), self._payloads.ctypes.data, payloads.ctypes.data)
        lengths = numpy.fromiter(map(len, topics), numpy.int64, len(topics))
        part = numpy.cumsum(rows["size"] + lengths + _COLUMN_BYTES) // _BLOCK_BYTES
        apart = group[1:] != group[:-1]
        for differs in (rows["slice_id"], rows["epoch"], rows["schema"], part):
            apart |= differs[1:] != differs[:-1]
        cuts = [0, *(numpy.flatnonzero(apart) + 1).tolist(), len(rows)] if len(rows) else [0]
        return NewestBlocks(self._key_rule, rows, topics, payloads, cuts)

    def _groups(self, names: list[bytes], numbers: NDArray[numpy.int64]) -> NDArray[numpy.int64]:
        """Return int64[numbers]: equal numbers for topics with the same key."""
        group_of, rule = dict[bytes, int](), self._key_rule
        if rule == 0:
            return numpy.zeros(len(numbers), numpy.int64)
        groups = [group_of.setdefault(key_of(rule, names[number]), len(group_of)) for number in numbers.tolist()]
        return numpy.array(groups, numpy.int64)


class NewestCopy(NamedTuple):
    """State of `NewestRows` at one moment."""

    rows: NDArray[Any]
    starts: NDArray[numpy.int64]
    text: NDArray[numpy.uint8]
    payloads: NDArray[numpy.uint8]

    def topics(self) -> list[bytes]:
        """Return the topics with a value."""
        text, places = self.text.tobytes(), numpy.flatnonzero(self.rows["size"] != NO_VALUE)
        spans = zip(self.starts[places].tolist(), self.starts[places + 1].tolist(), strict=True)
        return [text[start:stop] for start, stop in spans]

    def as_dict(self) -> dict[bytes, bytes]:
        """Return the payload of each topic with a value."""
        data, rows = self.payloads.tobytes(), self.rows[self.rows["size"] != NO_VALUE]
        spans = zip(rows["start"].tolist(), (rows["start"] + rows["size"]).tolist(), strict=True)
        return dict(zip(self.topics(), [data[start:stop] for start, stop in spans], strict=True))


class NewestBlocks:
    """Newest messages as of its creation, in blocks that are made on demand.

    A block has one slice, key, epoch and schema. Blocks are ordered by epoch; messages keep their order and sequences.
    Attributes: `count` of blocks; `size`, bytes of payloads, topics and columns; `is_unsure`, True if the image may be
    incomplete.
    """

    is_unsure: bool = False

    def __init__(
        self, key_rule: int, rows: NDArray[Any], topics: list[bytes], payloads: NDArray[numpy.uint8], cuts: list[int]
    ) -> None:
        """Use `Newest.blocks` instead. A block has the rows between two of `cuts`."""
        self.count, self.size = len(cuts) - 1, payloads.nbytes + rows.nbytes + sum(map(len, topics))
        self._key_rule = key_rule
        self._rows, self._topics, self._payloads, self._cuts = rows, topics, payloads, cuts

    def __iter__(self) -> Iterator[Block]:
        for start, stop in pairwise(self._cuts):
            yield self._block(self._rows[start:stop], self._topics[start:stop])

    def _block(self, rows: NDArray[Any], topics: list[bytes]) -> Block:
        return Block.encode(
            topics,
            numpy.arange(len(rows), dtype=numpy.int32),
            PayloadColumns(
                self._payloads,
                ts_event=rows["ts_event"],
                offsets=rows["start"],
                lengths=rows["size"],
                sequences=rows["sequence"],
            ),
            HeaderFields(
                key_rule=self._key_rule,
                slice_id=int(rows["slice_id"][0]),
                schema_id=int(rows["schema"][0]),
                epoch=int(rows["epoch"][0]),
                ts_out=int(rows["ts_out"].max()),
            ),
            key=key_of(self._key_rule, topics[0]),
        )


@inner
def number_of_topic(kept: _Kept, layout: BodyLayout, body: int, topic: int) -> Any:
    """Return the number of a block's topic; FULL if there is no room for it."""
    ends = int32s_at(body + layout.topic_offsets + 4 * topic, 2)
    start = numpy.int64(ends[0])
    return number_of(kept.topics, body + layout.topics + start, numpy.int64(ends[1]) - start)


@inner
def keep_row(kept: _Kept, newest: Any, header: Header, layout: BodyLayout, body: int, row: int) -> bool:
    """Store a row of a block. Return False if there was no room."""
    room = room_at(kept.room)
    size: Any = numpy.int64(header.stride)
    address: Any = row * size
    if header.flags & FLAG_FIXED == 0:
        extents = int32s_at(body + layout.payload_offsets + 4 * row, 2)
        address, size = numpy.int64(extents[0]), numpy.int64(extents[1]) - numpy.int64(extents[0])
    if kept.payload_bytes >= 0:
        if size > newest.room:
            more: Any = (size + 7) & -8
            if room.used + more > kept.payload_bytes:
                room.lacking = more
                return False
            newest.start, newest.room = room.used, more
            room.used += more
        copy_bytes(kept.payloads + newest.start, body + layout.payloads + address, size)
    room.with_value -= newest.epoch != 0 and newest.size != NO_VALUE
    newest.slice_id, newest.epoch, newest.schema = header.slice_id, header.epoch, header.schema_id
    newest.sequence = numpy.int64(sequence_of(header, layout, body, row))
    newest.ts_event, newest.ts_out = int64s_at(body + 8 * row, 1)[0], header.ts_out
    if not has_value(header, layout, body, row):
        size = numpy.int64(NO_VALUE)
    newest.size = size
    room.with_value += size != NO_VALUE
    return True


@njit(nogil=True, cache=True)
def _take_batch(address: int, header_at: int, body: int, origins: int, rows: NDArray[numpy.int32]) -> bool:
    """Store the last of `rows` (none: of all rows of the block) for each topic. Return False if one does not fit.

    All are then stored again.
    """
    kept = tables_at(address)
    header = read_header(header_at)
    layout = layout_of(header)
    index = int32s_at(body + layout.topic_index, header.count)
    is_all = len(rows) == 0
    last = numpy.full(header.topics, -1, numpy.int32)
    for place in range(header.count if is_all else len(rows)):
        row = place if is_all else numpy.int64(rows[place])
        last[index[row]] = row
    for topic in range(header.topics):
        row = numpy.int64(last[topic])
        if row >= 0:
            number = number_of_topic(kept, layout, body, topic)
            if number == FULL:
                room_at(kept.room).lacking = NO_TOPIC
                return False
            newest = newest_at(kept.rows + ROW_BYTES * number)
            if not keep_row(kept, newest, header, layout, body, row):
                return False
            if origins != 0:  # several blocks: slice and epoch of each message
                column = 8 * header.count
                newest.slice_id = int64s_at(origins + 3 * column + 8 * row, 1)[0]
                newest.epoch = int64s_at(origins + 4 * column + 8 * row, 1)[0]
    return True


@njit(nogil=True, cache=True)
def move_payloads(rows: int, count: int, source: int, target: int) -> int:
    """Copy the used payloads without gaps to an address. Return their size."""
    used: Any = numpy.int64(0)
    for number in range(count):
        newest = newest_at(rows + ROW_BYTES * number)
        size: Any = max(0, newest.size)
        copy_bytes(target + used, source + newest.start, size)
        newest.start, newest.room = used, (size + 7) & -8
        used += newest.room
    return int(used)
