"""Read one piece of an answer: wanted blocks in sequence order, and the gaps between them."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Collection, Iterator
from typing import Any, Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.archive.files.dropped import DroppedMessages
from blackbox.archive.files.format import OFFSET_BLOCK_HEADER, record_bytes
from blackbox.archive.files.segment import NO_GOOD_RECORD, Damage, Segment
from blackbox.archive.read.filter import Filter
from blackbox.archive.read.reader import Recorded, Span, blocks_of, read_spans
from blackbox.archive.serve.protocol import AskBlocks, Cursor, EndOfEpoch, Gone, Piece, PieceState
from blackbox.archive.serve.run_marks import RunEnd
from blackbox.block.form.block import Block
from blackbox.block.form.format import FLAG_SEQUENCES
from blackbox.block.position import Position
from blackbox.feed.rights import Prefixes
from blackbox.feed.routing.key_rule import start_of_keys

PIECE_BYTES: Final = 4 << 20
"""A piece is full once its blocks have this many bytes."""
PIECE_BLOCKS: Final = 1_024
_ENTRIES: Final = 1_024
"""Number of index entries that are read for one piece."""
EVERYTHING: Final = 1 << 62
"""Larger than every sequence and offset."""
_NOT_RECORDED: Final = "not recorded"
_DELETED: Final = "deleted"
_DROPPED: Final = "dropped"


class Read(NamedTuple):
    """A piece and its blocks."""

    piece: Piece
    blocks: list[Block]


class PieceReading:
    """A piece under construction, filled from one segment after the other.

    Attributes: `passed`, as in `Piece`; `is_done`, True if the answer ends with this piece; `next_epoch`, the epoch of
    the next block if that begins another epoch, else 0; `fresh_day`, the day that was read again for this piece.
    """

    def __init__(
        self,
        ask: AskBlocks,
        key_rule: int,
        deleted: Collection[Position],
        dropped: DroppedMessages,
        rights: Prefixes | None = None,
        most_bytes: int | None = None,
    ) -> None:
        """`deleted`: last position of each epoch in the deleted days. `dropped`: from days that are kept.

        `rights`, `most_bytes`: see `Pieces.read`.
        """
        self._rights, self._room = rights, PIECE_BYTES if most_bytes is None else min(most_bytes, PIECE_BYTES)
        self._ask, self._key_rule, self._deleted, self._dropped = ask, key_rule, deleted, dropped
        self.passed, self.is_done, self.next_epoch, self.fresh_day = ask.start, False, 0, ""
        self._entries = _ENTRIES
        """Number of entries that may still be read."""
        self._damage: list[Damage] = []
        """Unreadable places after `passed`."""
        self._blocks: list[Block] = []
        self._told: list[tuple[int, int]] = []
        self._gone: list[tuple[int, Gone]] = []
        self._ended: EndOfEpoch | None = None

    @property
    def is_full(self) -> bool:
        """True if the piece takes no more blocks."""
        return self._entries <= 0 or self._is_large or self.is_done or self.next_epoch > 0

    @property
    def _is_large(self) -> bool:
        return self._room <= 0 or len(self._blocks) == PIECE_BLOCKS

    def note_damage(self, damage: Collection[Damage]) -> None:
        """Add the damage that comes next."""
        self._damage += damage

    def take(self, segment: Segment, start: int, *, torn: bool) -> int:
        """Take blocks of a segment from an offset on. Return the offset to continue at; -1 at the end of the segment.

        `torn`: the segment is no longer written, so an incomplete record at its end is lost.
        """
        entries, until = segment.entries[bisect(segment.entries["stop"], start) :], -1
        with_records = numpy.flatnonzero(entries["records"] > 0)
        is_ahead = self._is_ahead(entries)[with_records]
        # A repair starts at the first entry of its day: passed entries must not count, except the last, for its damage.
        first = max(0, _first(is_ahead) - 1)
        behind_last = first + self._entries
        if len(with_records) > behind_last:
            until = int(entries["stop"][with_records[behind_last - 1]])
        entries, is_ahead = entries[with_records[first:behind_last]], is_ahead[first:behind_last]
        self._entries -= len(entries)
        limit = until if until >= 0 else EVERYTHING
        # Damage of the index is left out: its records are read from the segment.
        self._damage += [each for each in segment.damage if each.path == segment.path and start <= each.offset < limit]
        if len(behind := entries[~is_ahead]):  # damage before the last passed entry is passed as well
            last = int(behind["start"][-1])
            self._damage = [each for each in self._damage if each.path == segment.path and each.offset > last]
        entries = entries[is_ahead]
        may_skip = self._may_skip(entries, segment.key_rule)
        for part in numpy.split(entries, numpy.flatnonzero(numpy.diff(may_skip)) + 1) if len(entries) else ():
            stop = -1 if self._skips(part, segment.key_rule) else self._read(segment, start, part)
            if stop >= 0:
                # The next piece finds damage after `stop`.
                self._damage = [each for each in self._damage if each.path != segment.path or each.offset < stop]
                return stop
        if torn and until < 0 and segment.torn_bytes:
            self._damage.append(Damage(segment.path, segment.whole_bytes, segment.torn_bytes, NO_GOOD_RECORD))
        return until

    def _is_ahead(self, entries: NDArray[Any]) -> NDArray[numpy.bool_]:
        """Return bool[n]: True for each entry that has a block at or after the next wanted position."""
        epoch, sequence = self.passed
        ahead: NDArray[numpy.bool_] = (entries["epoch"] > epoch) | (
            (entries["epoch"] == epoch) & (entries["max_sequence"] >= sequence)
        )
        return ahead

    def _may_skip(self, entries: NDArray[Any], key_rule: int) -> NDArray[numpy.bool_]:
        """Return bool[n]: True for each entry with no wanted block and no gap.

        An entry after a skipped one must also start where that one ends.
        """
        low, behind = entries["min_sequence"], entries["max_sequence"] + 1
        may: NDArray[numpy.bool_] = entries["messages"] == behind - low
        for prefix in self._ask.prefixes:
            may &= ~Filter(key_rule, prefix, self._ask.of_keys).entries(entries)
        if self._ask.stop_ns is not None:
            may &= entries["max_ts_recv"] < self._ask.stop_ns
        goes_on = (low[1:] == behind[:-1]) & (entries["epoch"][1:] == entries["epoch"][:-1])
        may[1:] &= goes_on | ~may[:-1]
        return may

    def _skips(self, part: NDArray[Any], key_rule: int) -> bool:
        """Pass entries if all of them may be skipped. Return True if they were."""
        if not self._may_skip(part, key_rule).all():
            return False
        epoch, sequence = self.passed
        following = Position(epoch, int(part["max_sequence"][-1]) + 1)
        may_skip = int(part["epoch"][0]) == epoch and int(part["min_sequence"][0]) <= sequence
        may_skip &= self._ask.stop is None or following <= self._ask.stop
        if may_skip:
            self.passed = following
        return may_skip

    def _read(self, segment: Segment, start: int, part: NDArray[Any]) -> int:
        """Take the wanted blocks of some entries. Return the offset at which the piece ends; -1: it is not full."""
        while len(part):
            many = int(numpy.searchsorted(numpy.cumsum(part["stop"] - part["start"]), self._room)) + 2
            some, part = part[:many], part[many:]
            apart = numpy.flatnonzero(some["stop"][:-1] != some["start"][1:]) + 1
            spans = [
                Span(segment, max(start, int(together["start"][0])), int(together["stop"][-1]))
                for together in numpy.split(some, apart)
            ]
            for recorded, begin, behind in self._blocks_in(segment, spans):
                if not self._add(recorded, segment, begin):
                    return begin
                if self._is_large or self.is_done:
                    return behind
        return -1

    def _blocks_in(self, segment: Segment, spans: list[Span]) -> Iterator[tuple[Recorded, int, int]]:
        """Yield each readable block of some spans, with the start and end offset of its record."""
        for run in read_spans([spans], self._may, segment.key_rule, self._damage.append):
            sizes = run.heads["stored_bytes"].tolist()
            for recorded, stored in zip(blocks_of(run, segment.key_rule), sizes, strict=True):
                begin = recorded.header - OFFSET_BLOCK_HEADER - segment.address
                yield recorded, begin, begin + int(record_bytes(stored))

    def _may(self, heads: NDArray[Any]) -> NDArray[numpy.bool_]:
        """Return bool[n]: True for each record at or after the next wanted position."""
        epoch, sequence = self.passed
        reaches = (heads["sequence"] + heads["count"] > sequence) | (heads["flags"] & FLAG_SEQUENCES != 0)
        may: NDArray[numpy.bool_] = (heads["epoch"] > epoch) | ((heads["epoch"] == epoch) & reaches)
        return may

    def _add(self, recorded: Recorded, segment: Segment, offset: int) -> bool:
        """Take a block if it is wanted. Return False if the piece ends before it."""
        block, ask = recorded.block, self._ask
        first, behind = block.number_of(recorded.first_row), block.number_of(-1) + 1
        if ask.stop_ns is not None and recorded.ts_recv >= ask.stop_ns:
            self.is_done = True
            return False
        epoch, sequence = self.passed
        if block.epoch > epoch:
            self.next_epoch = block.epoch
            return False
        if block.epoch < epoch or behind <= sequence:
            return True
        stop = EVERYTHING if ask.stop is None or ask.stop.epoch > epoch else ask.stop.sequence
        damage = self._damage_before(segment, offset) if self._damage else []
        if first > sequence:
            self._miss(min(first, stop), damage)
        if first >= stop:
            self.is_done = True
            return False
        self.passed = Position(epoch, behind)
        if self._is_wanted(block):
            self._blocks.append(block)
            self._room -= block.body.nbytes
            self._told.append((recorded.ts_recv, recorded.first_row))
        self.is_done = behind >= stop
        return True

    def _is_wanted(self, block: Block) -> bool:
        if self._rights is not None and not block.key.startswith(self._rights):
            return False
        if self._ask.of_keys:
            return block.key.startswith(self._ask.prefixes)
        return b"" in self._ask.prefixes or any(topic.startswith(self._ask.prefixes) for topic in block.topics)

    def _damage_before(self, segment: Segment, offset: int) -> list[Damage]:
        """Remove and return the unreadable places before an offset."""
        before = [each for each in self._damage if each.path != segment.path or each.offset < offset]
        self._damage = [each for each in self._damage if each not in before]
        return before

    def _miss(self, stop: int, damage: Collection[Damage]) -> None:
        """Report a gap from `passed` to a sequence, unless only unwanted messages were dropped there."""
        epoch, first = self.passed
        why = "; ".join(sorted({_words(each) for each in damage}))
        if not why:
            deleted = max((last.sequence for last in self._deleted if epoch == last.epoch), default=-1)
            why = _DELETED if stop - 1 <= deleted else _NOT_RECORDED
            if first > deleted and self._dropped.were_dropped(self._ask.slice_id, self.passed, stop):
                topics = self._ask.topics if self._ask.of_keys else self._ask.prefixes
                why = _DROPPED if self._dropped.has(self._ask.slice_id, self.passed, topics) else ""
        if why:
            self._gone.append((len(self._blocks), Gone(epoch, first, stop, why)))
        self.passed = Position(epoch, stop)

    def note_heard(self, following: int) -> None:
        """Report all messages before a sequence that were not passed as a gap. The answer may end there."""
        stop = self._ask.stop
        if stop is not None and stop.epoch == self.passed.epoch:
            following = min(following, stop.sequence)
        if following > self.passed.sequence:
            self._miss(following, self._damage)
            self._damage = []
        self.is_done |= stop is not None and self.passed >= stop

    def end_epoch(self, end: RunEnd, next_epoch: int) -> None:
        """Note the end of the epoch and continue with the next known one."""
        epoch = self.passed.epoch
        deleted = [last.sequence + 1 for last in self._deleted if last.epoch == epoch]
        self.note_heard(max(end.heard, *deleted, 0))
        if self.is_done:
            return
        self._give_up_damage()
        ends: dict[bytes, tuple[int, int]] = {
            key: of_key for key, of_key in end.ends.items() if self._is_wanted_key(key)
        }
        self._ended = EndOfEpoch(epoch, self.passed.sequence, end.told, ends)
        self.passed = Position(next_epoch, 0)

    def _is_wanted_key(self, key: bytes) -> bool:
        ask, rule = self._ask, self._key_rule
        keys = ask.prefixes if ask.of_keys else tuple(start_of_keys(rule, prefix) for prefix in ask.prefixes)
        return key.startswith(keys) and (self._rights is None or key.startswith(self._rights))

    def _give_up_damage(self) -> None:
        """Report damage as a gap of unknown size where no later sequence shows how much is missing."""
        if self._damage:
            self._miss(self.passed.sequence, self._damage)
            self._damage = []

    def answer(self, state: PieceState, cursor: Cursor) -> Read:
        """Return the piece."""
        self._give_up_damage()
        piece = Piece(
            blocks=self._told,
            gone=self._gone,
            state="done" if self.is_done else state,
            cursor=cursor,
            passed=self.passed,
            ended=self._ended,
        )
        return Read(piece, self._blocks)


def _first(are: NDArray[numpy.bool_]) -> int:
    """Return the index of the first True; without any, the length."""
    return int(are.argmax()) if are.any() else len(are)


def _words(damage: Damage) -> str:
    """Return a description of the damage, without the directory of the archive."""
    path = damage.path
    return f"{path.parent.parent.name}/{path.parent.name}/{path.name}: {damage.what} (at {damage.offset})"
