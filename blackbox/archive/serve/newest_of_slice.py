"""Keep the newest message of every topic of one slice, from its records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy
from numpy.typing import NDArray

from blackbox.archive.serve.newest import (
    NO_TOPIC,
    ROW_BYTES,
    NewestRows,
    keep_row,
    move_payloads,
    newest_at,
    number_of_topic,
    room_at,
    tables_at,
)
from blackbox.block.form.block import Block
from blackbox.block.form.encode import NO_VALUE
from blackbox.block.form.format import layout_of, read_header, sequence_of
from blackbox.block.position import Position
from blackbox.native.compile.jit import njit, warm_up
from blackbox.native.memory.intrinsics import int32s_at
from blackbox.native.memory.records import Field, SharedRecord, record_at
from blackbox.native.tables.name_table import FULL

if TYPE_CHECKING:
    from blackbox.archive.read.reader import RecordRun


class _Reached(SharedRecord):
    """End of the records that were read."""

    epoch = Field()
    """The last epoch."""
    following = Field()
    """Sequence after its last message."""
    ts_out = Field()
    """Largest `ts_out` of that epoch."""


_reached_at = record_at(_Reached)


class Newest(NewestRows):
    """The newest message of each topic of one slice: of the last epoch that has it, the one with the highest sequence.

    Attributes: `epoch`, the last epoch read, 0 for none; `ts_out`, the largest in it.
    """

    def __init__(self, slice_id: int, key_rule: int, most_topics: int, *, has_payloads: bool = True) -> None:
        """Start empty, as `NewestRows`."""
        super().__init__(f"slice {slice_id}", key_rule, most_topics, has_payloads=has_payloads)
        self.slice_id = slice_id
        self._reached = _Reached()

    @property
    def position(self) -> Position:
        """Position after the last message of the last epoch read. Epoch 0: nothing was read."""
        return Position(self._reached.epoch, self._reached.following)

    @property
    def epoch(self) -> int:
        """The last epoch read; 0 for none."""
        return self._reached.epoch

    @property
    def ts_out(self) -> int:
        """The largest `ts_out` of that epoch."""
        return self._reached.ts_out

    def places(self) -> dict[bytes, tuple[int, int]]:
        """Return epoch and sequence of the newest message of each topic with a value."""
        rows = self._rows[: len(self._topics)]
        spans = zip(
            self._topics.names(), rows["epoch"].tolist(), rows["sequence"].tolist(), rows["size"].tolist(), strict=True
        )
        return {name: (epoch, sequence) for name, epoch, sequence, size in spans if size != NO_VALUE}

    def begin(self, blocks: Sequence[Block], position: Position, ts_out: int) -> None:
        """Begin with an image, the position after it, and the largest `ts_out` before that. Raises as `take`."""
        headers = [numpy.frombuffer(block.header, numpy.uint8).copy() for block in blocks]  # aligned
        bodies = [block.body if block.body.ctypes.data % 8 == 0 else block.body.copy() for block in blocks]
        headers_at, bodies_at = (
            numpy.array([each.ctypes.data for each in arrays], numpy.int64) for arrays in (headers, bodies)
        )
        self._add(headers_at, bodies_at, numpy.zeros(len(blocks), numpy.int64))
        self._reached.epoch, self._reached.following, self._reached.ts_out = *position, ts_out

    def take(self, run: RecordRun) -> None:
        """Add checked records. Records may be repeated.

        Raises JournalError if there are too many topics, or too many bytes of newest messages.
        """
        self._add(run.headers, run.bodies, run.heads["first_row"].astype(numpy.int64))

    def _add(
        self, headers: NDArray[numpy.int64], bodies: NDArray[numpy.int64], first_rows: NDArray[numpy.int64]
    ) -> None:
        done, reached = 0, self._reached.address
        while done < len(headers):
            done = _take(self._kept.address, reached, headers, bodies, first_rows, done)
            if done < len(headers):
                self.make_room()


def warm_up_images() -> None:
    """Compile what images need, so that the first request does not wait for it."""
    none = numpy.zeros(0, numpy.int64)
    warm_up(_take, 0, 0, none, none, none, 0)
    warm_up(move_payloads, 0, 0, 0, 0)


@njit(nogil=True, cache=True)
def _take(
    address: int,
    reached_at: int,
    headers: NDArray[numpy.int64],
    bodies: NDArray[numpy.int64],
    first_rows: NDArray[numpy.int64],
    done: int,
) -> int:
    """Store records from index `done` on. Return the index of the first that did not fit; it is then stored again."""
    kept, reached = tables_at(address), _reached_at(reached_at)
    for place in range(done, len(headers)):
        header, body, first_row = read_header(headers[place]), bodies[place], first_rows[place]
        layout = layout_of(header)
        index = int32s_at(body + layout.topic_index, header.count)
        last = numpy.full(header.topics, -1, numpy.int64)
        for row in range(first_row, header.count):
            last[index[row]] = row
        for topic in range(header.topics):
            row = last[topic]
            if row >= 0:
                number = number_of_topic(kept, layout, body, topic)
                if number == FULL:
                    room_at(kept.room).lacking = NO_TOPIC
                    return place
                newest = newest_at(kept.rows + ROW_BYTES * number)
                sequence = numpy.int64(sequence_of(header, layout, body, row))
                if newest.epoch > header.epoch or (newest.epoch == header.epoch and newest.sequence > sequence):
                    continue
                if not keep_row(kept, newest, header, layout, body, row):
                    return place
        if header.epoch > reached.epoch:
            reached.epoch = header.epoch
            reached.following = reached.ts_out = 0
        if header.epoch == reached.epoch:
            following: Any = numpy.int64(sequence_of(header, layout, body, header.count - 1)) + 1
            reached.following = max(reached.following, following)
            reached.ts_out = max(reached.ts_out, header.ts_out)
    return len(headers)
