"""Keep the newest message of every topic of a slice, as its records are read in order; and how far they reach."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.archive.key_positions import Keys, KeysAt, forget_keys, note_key
from blackbox.block.block import Block
from blackbox.block.encode import NO_VALUE
from blackbox.block.format import FLAG_FIXED, BodyLayout, Header, has_value, layout_of, read_header, sequence_of
from blackbox.errors import JournalError
from blackbox.native.intrinsics import copy_bytes, inner, int32s_at, int64s_at
from blackbox.native.jit import njit
from blackbox.native.name_table import FULL, Numbering, NumberingAt, number_of
from blackbox.native.records import Field, SharedRecord, record_at

if TYPE_CHECKING:
    from blackbox.archive.reader import RecordRun

MOST_BYTES: Final = 1 << 30
"""Payloads that are kept of one slice, at most."""
_FIRST_BYTES: Final = 1 << 16
_MEAN_TOPIC_BYTES: Final = 32
_BLOCK_BYTES: Final = 1 << 18
"""A block of an image gets no more messages once their payloads have that many bytes."""
_DONE: Final = -1
_NO_TOPIC: Final = -2


class _Newest(SharedRecord):
    """The newest message of a topic."""

    epoch = Field()
    sequence = Field()
    ts_event = Field()
    ts_out = Field()
    schema = Field()
    start = Field()
    """Where its payload is kept."""
    room = Field()
    """So many bytes are there for it."""
    size = Field()
    """Of its payload; NO_VALUE: it has none."""


class _Reached(SharedRecord):
    """How far the records that were read reach."""

    epoch = Field()
    """The last run of the publisher."""
    ts_out = Field()
    """The largest of that run."""
    used = Field()
    """Bytes of payloads, and room for more."""


_newest_at = record_at(_Newest)
_reached_at = record_at(_Reached)
_ROW_BYTES: Final = _Newest.dtype.itemsize


class _Kept(NamedTuple):
    """Where it is all kept, for compiled code."""

    topics: NumberingAt
    keys: KeysAt
    reached: int
    rows: int
    payloads: int
    payload_bytes: int


class NewestMessage(NamedTuple):
    """A topic's newest message."""

    topic: bytes
    payload: bytes
    epoch: int
    sequence: int
    ts_event: int


class Newest:
    """The newest message of each topic of one slice: the one with the largest number of the last run that has it.

    Attributes: `epoch`, the last run that was read, 0 for none; `ts_out`, the largest of it.
    """

    def __init__(self, slice_id: int, key_bytes: int, most_topics: int) -> None:
        """Nothing is read yet."""
        self.slice_id, self._key_bytes, self._most = slice_id, key_bytes, most_topics
        self._topics = Numbering(most_topics, _MEAN_TOPIC_BYTES)
        self._keys = Keys(most_topics)
        self._reached = _Reached()
        self._rows = numpy.zeros(most_topics, _Newest.dtype)
        self._payloads = numpy.zeros(_FIRST_BYTES, numpy.uint8)

    @property
    def epoch(self) -> int:
        """The last run of the publisher that was read; 0: none."""
        return self._reached.epoch

    @property
    def ts_out(self) -> int:
        """The largest `ts_out` of that run."""
        return self._reached.ts_out

    def following(self) -> dict[bytes, int]:
        """Return the next number of each key of that run."""
        return self._keys.following()

    def take(self, run: RecordRun) -> None:
        """Take checked records. What was taken before may come again.

        Raises JournalError when there are more topics, or bytes of their newest messages, than may be kept.
        """
        first_rows = run.heads["first_row"].astype(numpy.int64)
        done = 0
        while True:
            kept = _Kept(
                self._topics.at,
                self._keys.at,
                self._reached.address,
                self._rows.ctypes.data,
                self._payloads.ctypes.data,
                len(self._payloads),
            )
            done, lacking = _take(kept, run.headers, run.bodies, first_rows, done, self._key_bytes)
            if lacking == _DONE:
                return
            if lacking == _NO_TOPIC:
                raise JournalError(
                    f"slice {self.slice_id} had more than {self._most} topics, or long ones: "
                    f"expected at most that many (max_topics), of {_MEAN_TOPIC_BYTES} bytes on average"
                )
            self._make_room(lacking)

    def _make_room(self, lacking: int) -> None:
        """Make room for more payloads; those that are kept move together."""
        rows = self._rows[: len(self._topics)]
        kept = int(((numpy.maximum(rows["size"], 0) + 7) & -8).sum()) + lacking
        if kept > MOST_BYTES:
            raise JournalError(
                f"slice {self.slice_id} had newest messages of {kept} bytes or more, expected at most {MOST_BYTES}"
            )
        payloads = numpy.zeros(min(2 * kept, MOST_BYTES), numpy.uint8)
        self._reached.used = _move(rows.ctypes.data, len(rows), self._payloads.ctypes.data, payloads.ctypes.data)
        self._payloads = payloads

    def have_byte(self, place: int, values: bytes) -> NDArray[numpy.bool_]:
        """Return bool[topics]: whether the newest payload has one of `values` at a place."""
        rows = self._rows[: len(self._topics)]
        is_long = rows["size"] > place
        found = numpy.zeros(len(rows), numpy.bool_)
        found[is_long] = numpy.isin(self._payloads[rows["start"][is_long] + place], list(values))
        return found

    def messages(
        self, of: NDArray[numpy.bool_], prefixes: Collection[bytes], keys: tuple[bytes, ...] = (b"",)
    ) -> Iterator[NewestMessage]:
        """Yield the newest message, if it has a value, of each topic that `blocks` takes with the same arguments."""
        chosen = self._chosen(of, prefixes, keys)
        rows = self._rows[[number for number, _ in chosen]]
        columns = (rows[name].tolist() for name in ("start", "size", "epoch", "sequence", "ts_event"))
        for (_, topic), start, size, epoch, sequence, ts_event in zip(chosen, *columns, strict=True):
            if size != NO_VALUE:
                payload = self._payloads[start : start + size].tobytes()
                yield NewestMessage(topic, payload, epoch, sequence, ts_event)

    def _chosen(
        self, of: NDArray[numpy.bool_] | None, prefixes: Collection[bytes], keys: tuple[bytes, ...]
    ) -> list[tuple[int, bytes]]:
        """Return number and name of topics."""
        wanted, names = tuple(prefixes), self._topics.names()
        numbers = range(len(names)) if of is None else numpy.flatnonzero(of).tolist()
        return [
            (number, names[number])
            for number in numbers
            if names[number].startswith(wanted) and names[number][: self._key_bytes].startswith(keys)
        ]

    def blocks(
        self,
        prefixes: Collection[bytes],
        keys: tuple[bytes, ...] = (b"",),
        of: NDArray[numpy.bool_] | None = None,
    ) -> NewestBlocks:
        """Return the newest messages of topics that begin with some prefix, and whose key does with one of `keys`.

        `of`: only those topics, bool[topics]. Topics whose newest message has no value are left out.
        """
        names, group_of, chosen = self._topics.names(), dict[bytes, int](), self._chosen(of, prefixes, keys)
        groups = [group_of.setdefault(name[: self._key_bytes], len(group_of)) for _, name in chosen]
        numbers = numpy.array([number for number, _ in chosen], numpy.int64)
        group = numpy.array(groups, numpy.int64)
        has_one = self._rows["size"][numbers] != NO_VALUE
        numbers, group = numbers[has_one], group[has_one]
        rows = self._rows[numbers]
        order = numpy.lexsort((rows["sequence"], rows["schema"], group, rows["epoch"]))
        numbers, group, rows = numbers[order], group[order], rows[order]
        topics = [names[number] for number in numbers.tolist()]
        payloads = numpy.zeros(int(((rows["size"] + 7) & -8).sum()), numpy.uint8)
        _move(rows.ctypes.data, len(rows), self._payloads.ctypes.data, payloads.ctypes.data)
        part = numpy.cumsum(rows["size"]) // _BLOCK_BYTES
        apart = group[1:] != group[:-1]
        for differs in (rows["epoch"], rows["schema"], part):
            apart |= differs[1:] != differs[:-1]
        cuts = [0, *(numpy.flatnonzero(apart) + 1).tolist(), len(rows)] if len(rows) else [0]
        return NewestBlocks(self.slice_id, self._key_bytes, rows, topics, payloads, cuts)


class NewestBlocks:
    """Newest messages as they were when this was made, in blocks, each of which is made when it is asked for.

    A block is of one key, one run and one schema; run by run, with its messages in their order and with their numbers.
    Attributes: `count`, how many blocks there are; `size`, bytes of payloads, topics and what goes with each;
    `is_unsure`, whether what they are of may lack something.
    """

    is_unsure: bool = False

    def __init__(
        self,
        slice_id: int,
        key_bytes: int,
        rows: NDArray[Any],
        topics: list[bytes],
        payloads: NDArray[numpy.uint8],
        cuts: list[int],
    ) -> None:
        """Others use `Newest.blocks`. A block has the rows between two of `cuts`."""
        self.count, self.size = len(cuts) - 1, payloads.nbytes + rows.nbytes + sum(map(len, topics))
        self._slice_id, self._key_bytes = slice_id, key_bytes
        self._rows, self._topics, self._payloads, self._cuts = rows, topics, payloads, cuts

    def __iter__(self) -> Iterator[Block]:
        for start, stop in pairwise(self._cuts):
            yield self._block(self._rows[start:stop], self._topics[start:stop])

    def _block(self, rows: NDArray[Any], topics: list[bytes]) -> Block:
        return Block.encode(
            topics,
            numpy.arange(len(rows), dtype=numpy.int32),
            self._payloads,
            ts_event=rows["ts_event"],
            offsets=rows["start"],
            lengths=rows["size"],
            sequences=rows["sequence"],
            key=topics[0][: self._key_bytes],
            key_bytes=self._key_bytes,
            slice_id=self._slice_id,
            schema_id=int(rows["schema"][0]),
            epoch=int(rows["epoch"][0]),
            ts_out=int(rows["ts_out"].max()),
        )


@inner
def _keep(kept: _Kept, header: Header, layout: BodyLayout, body: int, row: int, topic: int, topic_bytes: int) -> int:
    """Keep a row of a block, unless a later one of its topic is kept: _DONE, _NO_TOPIC, or the bytes of room it needs.

    `topic`: the address of its topic.
    """
    number = number_of(kept.topics, topic, topic_bytes)
    if number == FULL:
        return _NO_TOPIC
    newest = _newest_at(kept.rows + _ROW_BYTES * number)
    sequence: Any = numpy.int64(sequence_of(header, layout, body, row))
    if newest.epoch > header.epoch or (newest.epoch == header.epoch and newest.sequence > sequence):
        return _DONE
    size: Any = numpy.int64(header.stride)
    at = row * size
    if header.flags & FLAG_FIXED == 0:
        extents = int32s_at(body + layout.payload_offsets, header.count + 1)
        at, size = numpy.int64(extents[row]), numpy.int64(extents[row + 1]) - numpy.int64(extents[row])
    if size > newest.room:
        room: Any = (size + 7) & -8
        reached = _reached_at(kept.reached)
        if reached.used + room > kept.payload_bytes:
            return int(room)
        newest.start, newest.room = reached.used, room
        reached.used += room
    copy_bytes(kept.payloads + newest.start, body + layout.payloads + at, size)
    newest.epoch, newest.sequence, newest.schema = header.epoch, sequence, header.schema_id
    newest.ts_event, newest.ts_out = int64s_at(body + 8 * row, 1)[0], header.ts_out
    if not has_value(header, layout, body, row):
        size = numpy.int64(NO_VALUE)
    newest.size = size
    return _DONE


@njit(nogil=True, cache=True)
def _take(
    kept: _Kept,
    headers: NDArray[numpy.int64],
    bodies: NDArray[numpy.int64],
    first_rows: NDArray[numpy.int64],
    done: int,
    key_bytes: int,
) -> tuple[int, int]:
    """Take records from the place `done` on; return up to which, and what the one there lacks, as `_keep`.

    That one is then taken once more from its beginning.
    """
    reached = _reached_at(kept.reached)
    for place in range(done, len(headers)):
        header, body, first_row = read_header(headers[place]), bodies[place], first_rows[place]
        layout = layout_of(header)
        index = int32s_at(body + layout.topic_index, header.count)
        last = numpy.full(header.topics, -1, numpy.int64)
        for row in range(first_row, header.count):
            last[index[row]] = row
        offsets = int32s_at(body + layout.topic_offsets, header.topics + 1)
        for topic in range(header.topics):
            if last[topic] >= 0:
                start = numpy.int64(offsets[topic])
                size = numpy.int64(offsets[topic + 1]) - start
                lacking = _keep(kept, header, layout, body, last[topic], body + layout.topics + start, size)
                if lacking != _DONE:
                    return place, lacking
        if header.epoch > reached.epoch:
            forget_keys(kept.keys)
            reached.epoch, reached.ts_out = header.epoch, header.ts_out
        if header.epoch == reached.epoch:
            note_key(kept.keys, headers[place], body, first_row, key_bytes)
            reached.ts_out = max(reached.ts_out, header.ts_out)
    return len(headers), _DONE


@njit(nogil=True, cache=True)
def _move(rows: int, count: int, source: int, target: int) -> int:
    """Move payloads together, to an address; return how many bytes they take there."""
    used: Any = numpy.int64(0)
    for number in range(count):
        newest = _newest_at(rows + _ROW_BYTES * number)
        size: Any = max(0, newest.size)
        copy_bytes(target + used, source + newest.start, size)
        newest.start, newest.room = used, (size + 7) & -8
        used += newest.room
    return int(used)
