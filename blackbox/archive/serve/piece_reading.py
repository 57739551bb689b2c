"""Read what one piece is made of: wanted blocks, and what is missing between them."""

from __future__ import annotations

from bisect import bisect
from collections import deque
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple

import msgspec
import numpy
from numpy.typing import NDArray

from blackbox.archive.filter import Filter
from blackbox.archive.format import OFFSET_BLOCK_HEADER, record_bytes
from blackbox.archive.reader import Recorded, Span, blocks_of, read_spans
from blackbox.archive.segment import NO_GOOD_RECORD, Damage, Segment
from blackbox.archive.serve.protocol import AskBlocks, Cursor, Gone, Piece, PieceState, Range
from blackbox.archive.serve.run_marks import EVERYWHERE, Place
from blackbox.block.block import Block
from blackbox.block.format import FLAG_SEQUENCES
from blackbox.block.position import Position
from blackbox.feed.rights import Prefixes

PIECE_BYTES: Final = 4 << 20
"""A piece ends once its blocks have this many bytes."""
PIECE_BLOCKS: Final = 1_024
_ENTRIES: Final = 1_024
"""Entries of the index that are looked at for one piece, unless it is of ranges."""
EVERYTHING: Final = 1 << 62
"""Beyond every number and offset."""


class Read(NamedTuple):
    """A piece, and its blocks."""

    piece: Piece
    blocks: list[Block]


Told = Callable[[int, Place], dict[int, int]]
"""By run, from one on, the next number that its publisher has told of the key asked for, before a place of the day."""
_NOT_RECORDED: Final = "not recorded"
_DELETED: Final = "deleted"


class PieceReading:
    """What one piece is made of."""

    def __init__(
        self,
        ask: AskBlocks,
        key_bytes: int,
        missing: list[Damage],
        deleted: list[Position],
        told: Told,
        rights: Prefixes | None = None,
        most_bytes: int | None = None,
    ) -> None:
        """`deleted`: of each epoch of the days that were deleted, the largest position.

        `rights`, `most_bytes`: see `Pieces.read`.
        """
        self._rights, self._most_bytes = rights, PIECE_BYTES if most_bytes is None else min(most_bytes, PIECE_BYTES)
        self.is_done = False
        self._deleted, self._told_of_runs = deleted, told
        self._ask, self._key_bytes = ask, key_bytes
        self._damage, self._missing = missing, set(missing)
        self._start = ask.start
        self._ranges: dict[bytes, deque[Range]] = {}
        """Those that are not answered yet, in order."""
        for each in sorted(ask.ranges):
            self._ranges.setdefault(each.key, deque()).append(each)
        self._bytes = 0
        self._blocks: list[Block] = []
        self._told: list[tuple[int, int]] = []
        self._offsets: list[int] = []
        """Where each block's record begins, in the segment that is read."""
        self._gone: list[tuple[int, Gone]] = []

    def take(self, segment: Segment, start: int, *, torn: bool) -> int:
        """Take blocks of the segment from an offset on; return where the next piece begins, -1: there is no more.

        `torn`: nothing is appended to it any more, so that what is not whole is lost.
        """
        ask = self._ask
        stops = segment.entries["stop"]
        entries = segment.entries[bisect(stops, start) :]
        until = -1
        if len(entries) > _ENTRIES and not ask.ranges:
            entries = entries[:_ENTRIES]
            until = int(entries["stop"][-1])
        # With a start, what was received before `start_ns` is read too: else it would be told as gone.
        start_ns = ask.start_ns if ask.start is None else None
        wanted = Filter(self._key_bytes, ask.prefix, ask.key, start_ns, None, "ts_recv")
        may = wanted.entries(entries)
        may &= _may_follow(entries["epoch"], entries["max_ts_out"], ask)
        if ask.start is not None:
            epochs = entries["epoch"]
            reaches = entries["max_sequence"] >= ask.start.sequence
            may &= (epochs > ask.start.epoch) | ((epochs == ask.start.epoch) & reaches)
        if ask.ranges:
            may &= self._in_ranges(entries)
        if ask.stop_ns is not None:
            may |= entries["max_ts_recv"] >= ask.stop_ns  # the block that ends the answer may be of any topic
        chosen = entries[may & (entries["records"] > 0)]
        many = int(numpy.searchsorted(numpy.cumsum(chosen["stop"] - chosen["start"]), self._most_bytes)) + 2
        if many < len(chosen):
            until = int(chosen["stop"][many - 1])
        if ask.ranges and until < 0 and len(chosen):
            until = int(chosen["stop"][-1])  # what ends a range may stand further on, where keys share a bit
        chosen = chosen[:many]
        apart = numpy.flatnonzero(chosen["stop"][:-1] != chosen["start"][1:]) + 1
        spans = [
            Span(segment, max(start, int(together["start"][0])), int(together["stop"][-1]))
            for together in numpy.split(chosen, apart)
            if len(together)
        ]
        limit = until if until >= 0 else EVERYTHING
        self._damage += [each for each in segment.damage if start <= each.offset < limit]
        seen = -1
        for recorded, offset, after in self._blocks_in(segment, spans) if spans else ():
            seen = after
            is_last = not self._add(recorded, Place(segment.number, offset))
            if is_last or self._bytes >= self._most_bytes or len(self._blocks) == PIECE_BLOCKS:
                # What is damaged behind it is told by the next piece.
                self._damage = [each for each in self._damage if each.path != segment.path or each.offset < after]
                return after
        if 0 <= seen < until and any(each.path == segment.path and each.offset >= seen for each in self._damage):
            # The next piece has the block after the damage: only that shows which numbers are missing.
            self._damage = [each for each in self._damage if each.path != segment.path or each.offset < seen]
            return seen
        if torn and until < 0 and segment.torn_bytes:
            self._damage.append(Damage(segment.path, segment.whole_bytes, segment.torn_bytes, NO_GOOD_RECORD))
        return until

    def _in_ranges(self, entries: NDArray[Any]) -> NDArray[numpy.bool_]:
        """Return bool[n]: which entries may hold some of the ranges, or be the first behind one of them."""
        may = numpy.zeros(len(entries), bool)
        low, high, epochs = entries["min_sequence"], entries["max_sequence"], entries["epoch"]
        for key, ranges in self._ranges.items():
            of_key = Filter(self._key_bytes, key=key).entries(entries) & (entries["records"] > 0)
            for epoch, some in groupby(ranges, key=attrgetter("epoch")):
                firsts, stops = numpy.array([(each.first, each.stop) for each in some]).T
                here = of_key & (epochs == epoch)
                # Ranges may overlap: those that begin by an entry's end reach into it if one ends behind its begin.
                begun = numpy.searchsorted(firsts, high, side="right")
                reach = numpy.concatenate(([0], numpy.maximum.accumulate(stops)))[begun]
                may |= here & (reach > low)
                reached = numpy.where(of_key & (epochs > epoch), EVERYTHING, numpy.where(here, high, -1))
                behind = numpy.searchsorted(numpy.maximum.accumulate(reached), stops - 1)
                may[behind[behind < len(may)]] = True
        return may

    def _blocks_in(self, segment: Segment, spans: list[Span]) -> Iterator[tuple[Recorded, int, int]]:
        """Yield the good blocks of spans, and where each record begins and ends."""
        for run in read_spans([spans], self._may, self._key_bytes, self._damage.append):
            sizes = run.heads["stored_bytes"].tolist()
            for recorded, stored in zip(blocks_of(run, self._key_bytes), sizes, strict=True):
                begin = recorded.header - OFFSET_BLOCK_HEADER - segment.address
                yield recorded, begin, begin + int(record_bytes(stored))

    def _may(self, heads: NDArray[Any]) -> NDArray[numpy.bool_]:
        may = _may_follow(heads["epoch"], heads["ts_out"], self._ask)
        if self._ask.start_ns is not None and self._ask.start is None:
            may &= heads["ts_recv"] >= self._ask.start_ns
        if (start := self._ask.start) is not None:
            reaches = (heads["sequence"] + heads["count"] > start.sequence) | (heads["flags"] & FLAG_SEQUENCES != 0)
            may &= (heads["epoch"] > start.epoch) | ((heads["epoch"] == start.epoch) & reaches)
        if self._ask.stop_ns is not None:
            may |= heads["ts_recv"] >= self._ask.stop_ns
        return may

    def _add(self, recorded: Recorded, place: Place) -> bool:
        """Take a block if it is wanted; return False when the answer ends before it, or with it."""
        block, ask, offset = recorded.block, self._ask, place.offset
        if ask.stop_ns is not None and recorded.ts_recv >= ask.stop_ns:
            self.end(block.epoch, place)
            return False
        if ask.key is not None and block.key != ask.key:
            return True
        first, last = block.number_of(recorded.first_row), block.number_of(-1)
        if ask.ranges:
            if self._takes_of_ranges(block.key, block.epoch, first, last):
                self._take(recorded, offset)
            self.is_done = not self._ranges
            return not self.is_done
        if ask.stop is not None and Position(block.epoch, first) >= ask.stop:
            self.end(block.epoch, place)
            return False
        is_early = ask.start_ns is not None and recorded.ts_recv < ask.start_ns
        if self._start is not None:
            if Position(block.epoch, last) < self._start:
                return True
            at = self._start.sequence if block.epoch == self._start.epoch else 0
            self._end_runs(block.epoch, place)
            if first > at:
                self._miss(block.epoch, at, first - at, block.key)
            self._start = Position(block.epoch, last + 1)
        elif ask.key is not None and not is_early:
            self._start = Position(block.epoch, last + 1)
        if not is_early and self._is_wanted(block):
            self._take(recorded, offset)
        if ask.stop is not None and Position(block.epoch, last + 1) >= ask.stop:
            self.is_done = True
            return False
        return True

    def _is_wanted(self, block: Block) -> bool:
        prefix = self._ask.prefix
        if self._rights is not None and not block.key.startswith(self._rights):
            return False
        return not prefix or any(topic.startswith(prefix) for topic in block.topics)

    def _take(self, recorded: Recorded, offset: int) -> None:
        self._blocks.append(recorded.block)
        self._bytes += recorded.block.body.nbytes
        self._told.append((recorded.ts_recv, recorded.first_row))
        self._offsets.append(offset)

    def _takes_of_ranges(self, key: bytes, epoch: int, first: int, last: int) -> bool:
        """Go on in the ranges of a key up to a block's last number; return whether it holds some of them."""
        ranges, rests, holds = self._ranges.get(key, deque()), [], False
        while ranges and (ranges[0].epoch, ranges[0].first) <= (epoch, last):
            each = ranges.popleft()
            come = min(first, each.stop) if each.epoch == epoch else each.stop
            if come > each.first:
                self._miss(each.epoch, each.first, come - each.first, key)
            holds |= come < each.stop
            if come < each.stop and last + 1 < each.stop:
                rests.append(msgspec.structs.replace(each, first=last + 1))
        ranges.extendleft(reversed(rests))
        if not ranges:
            self._ranges.pop(key, None)
        return holds

    def end(self, before: int = EVERYTHING, place: Place = EVERYWHERE) -> None:
        """Note that nothing follows, and what is missing up to where the answer was to end.

        What follows is of an epoch, and stands at a place of the day, if there is something.
        """
        self.is_done = True
        for each in self._left():
            self._miss(each.epoch, each.first, each.stop - each.first, each.key)
        self._ranges.clear()
        stop = self._ask.stop
        self._end_runs(before if stop is None else min(before, stop.epoch), place)
        start = self._start
        if stop is None or start is None:
            return
        at = start.sequence if start.epoch == stop.epoch else 0
        if start.epoch <= stop.epoch and at < stop.sequence:
            self._miss(stop.epoch, at, stop.sequence - at, self._ask.key or b"")

    def pass_runs(self, before: int) -> None:
        """Note that all runs before one are over, and what is missing of them; that may be the end of the answer."""
        stop = self._ask.stop
        if stop is not None and stop.epoch < before:
            self.end()
            return
        self._end_runs(before, EVERYWHERE)
        for key, ranges in list(self._ranges.items()):
            while ranges and ranges[0].epoch < before:
                each = ranges.popleft()
                self._miss(each.epoch, each.first, each.stop - each.first, key)
            if not ranges:
                del self._ranges[key]
        self.is_done = bool(self._ask.ranges) and not self._ranges

    def _end_runs(self, before: int, place: Place) -> None:
        """Note as missing what runs before one are known to have sent from `self._start` on, or was deleted of them."""
        start, key = self._start, self._ask.key
        if start is None or key is None or start.epoch >= before:
            return
        ends = [*self._told_of_runs(start.epoch, place).items()]
        if self._key_bytes == 0:  # else nobody knows of which keys the deleted ones were
            ends += [(epoch, last + 1) for epoch, last in self._deleted]
        for epoch, following in sorted(ends):
            at = start.sequence if epoch == start.epoch else 0
            if start.epoch <= epoch < before and at < following:
                self._miss(epoch, at, following - at, key)
                self._start = start = Position(epoch, following)

    def _left(self) -> list[Range]:
        return [each for ranges in self._ranges.values() for each in ranges]

    def _miss(self, epoch: int, first: int, count: int, key: bytes) -> None:
        why = "; ".join(sorted({_words(each) for each in self._damage})) or self._why(epoch, first + count)
        if not self._ask.ranges:  # several ranges may lack messages for the same damage
            self._damage.clear()
        self._gone.append((len(self._blocks), Gone(epoch, first, count, why, key)))

    def _why(self, epoch: int, stop: int) -> str:
        is_deleted = any(epoch == last.epoch and stop - 1 <= last.sequence for last in self._deleted)
        return _DELETED if is_deleted else _NOT_RECORDED

    def answer(self, state: PieceState, cursor: Cursor, epoch: int = 0) -> Read:
        """Return the piece. `epoch`: with `later`, that of which the recorder has heard last."""
        for damage in sorted(set() if self._ask.ranges else set(self._damage)):
            place = 0 if damage in self._missing else bisect(self._offsets, damage.offset)
            self._gone.append((place, Gone(0, -1, damage.messages, _words(damage))))
        self._gone.sort(key=itemgetter(0))
        piece = Piece(
            blocks=self._told,
            gone=self._gone,
            state=state,
            cursor=cursor,
            start=self._start,
            ranges=self._left(),
            epoch=epoch,
        )
        return Read(piece, self._blocks)


def _may_follow(epochs: NDArray[Any], sent_ns: NDArray[Any], ask: AskBlocks) -> NDArray[numpy.bool_]:
    """Return bool[n]: what is of a later run than asked for, or of that one and was sent late enough."""
    may: NDArray[numpy.bool_] = (epochs > ask.epoch) | ((epochs == ask.epoch) & (sent_ns >= ask.sent_ns))
    return may


def _words(damage: Damage) -> str:
    """Return what is damaged, without saying where the archive has its files."""
    path = damage.path
    return f"{path.parent.parent.name}/{path.parent.name}/{path.name}: {damage.what} (at {damage.offset})"
