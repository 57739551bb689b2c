"""Entries of the journals as the two hubs of a pair exchange them: made by a turn, or read back from the journals."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy

from blackbox.archive.files.dropped import Dropped
from blackbox.archive.files.format import OFFSET_BLOCK_HEADER, RECORD_HEAD_BYTES
from blackbox.block.form.block import Block
from blackbox.block.form.format import HEADER_BYTES
from blackbox.block.form.validate import FAULT_TEXT, KEY_OF_TOPICS, Fault, check_block
from blackbox.errors import BlockError, JournalError
from blackbox.feed.feed import Feed
from blackbox.publish.send.ring import MAX_NOTE_BYTES
from blackbox.services.hub.pair.protocol import Entry, Part, checksum_of
from blackbox.services.hub.server.history import History, records_after
from blackbox.services.hub.server.history import Part as JournalPart


class TooFarBehindError(JournalError):
    """The journals no longer have the turns that the peer lacks."""


def part_of(slice_id: int, sequence: int, note: bytes, blocks: Iterable[tuple[bytes, bytes]]) -> Part:
    """Return a part of an entry."""
    return Part(slice_id, sequence, note, checksum_of(note), list(blocks))


def digest_of(entry: Entry) -> bytes:
    """Return the digest that distinguishes a turn from another one with the same number."""
    return entry.parts[0].checksum.to_bytes(8, "little")


def checked(feed: Feed, part: Part) -> list[Block]:
    """Return the blocks of a part. Raises BlockError if they are not what was sent."""
    if checksum_of(part.note) != part.checksum:
        raise BlockError("the note did not match its checksum")
    if len(part.note) > MAX_NOTE_BYTES:
        raise BlockError(f"the note had {len(part.note)} bytes, expected at most {MAX_NOTE_BYTES}")
    blocks: list[Block] = []
    for head, body in part.blocks:
        header, memory = numpy.frombuffer(head, numpy.uint8), numpy.frombuffer(body, numpy.uint8).copy()
        place = memory.ctypes.data
        fault = check_block(header.ctypes.data, len(header), place, len(memory), place, KEY_OF_TOPICS, feed.key_rule)
        if fault:
            raise BlockError(FAULT_TEXT[Fault(fault)])
        block = Block(b"", head, memory)
        block.key = feed.key_of(block.topics[0])
        blocks.append(block)
    return blocks


class _Noted(NamedTuple):
    """Place of a note in a journal."""

    number: int
    slice_id: int
    at: int
    """Place of its part among those of the slice."""
    place: int


class Entries:
    """Entries from a turn on, read from the journals as they are now. Raises JournalError when they are damaged."""

    def __init__(self, directory: Path, feed: Feed, first: int) -> None:
        """Find turn `first` and later turns. Raises TooFarBehindError if turn `first` is missing."""
        history = History(directory, feed)
        self._dropped_through = Dropped.read(directory).through
        self._lacks_messages = False
        """True if the next entry is of a day from which messages were dropped."""
        self._parts = [history.parts_from(slice_id, first) for slice_id in range(len(feed.slices))]
        noted = heapq.merge(*(self._noted(slice_id, first) for slice_id in range(len(feed.slices))))
        self._groups = groupby(noted, lambda each: each.number)
        self._next = self._read()
        if self._next is None or self._next.number != first:
            raise TooFarBehindError(f"journals of {directory} had no turn {first}, expected all from there on")

    def take(self, most_bytes: int) -> list[Entry]:
        """Return the next entries, at least one and at most `most_bytes` bytes; an empty list at the end.

        With 0 bytes, the one entry may lack messages. Raises TooFarBehindError if another one would.
        """
        found: list[Entry] = []
        while self._next is not None and (most_bytes > 0 or not found):
            if self._lacks_messages and most_bytes:
                raise TooFarBehindError(f"turn {self._next.number} is of a day from which messages were dropped")
            found.append(self._next)
            for part in self._next.parts:
                most_bytes -= len(part.note) + sum(len(head) + len(body) for head, body in part.blocks)
            self._next = self._read()
        return found

    def _noted(self, slice_id: int, first: int) -> Iterator[_Noted]:
        for at, part in enumerate(self._parts[slice_id]):
            notes = part.notes
            for number, place in zip(notes.numbers.tolist(), notes.places.tolist(), strict=True):
                if number >= first:
                    yield _Noted(number, slice_id, at, place)

    def _read(self) -> Entry | None:
        for number, notes in self._groups:
            parts, epoch = list[Part](), 0
            self._lacks_messages = False
            for each in notes:
                day = self._parts[each.slice_id][each.at].segment.path.parts[-3]
                self._lacks_messages |= day <= self._dropped_through
                blocks = list(_blocks_after(self._parts[each.slice_id][each.at :], each.place))
                text = self._parts[each.slice_id][each.at].notes.text(each.place)
                headers = [Block(b"", head, numpy.empty(0, numpy.uint8)) for head, _ in blocks]
                epoch = headers[0].epoch if headers else epoch
                sequence = headers[0].sequence if headers else 0
                parts.append(part_of(each.slice_id, sequence, text, blocks))
            return Entry(number, epoch, parts)
        return None


def _blocks_after(parts: Sequence[JournalPart], place: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield header and body of each block after a note, up to the next note."""
    for segment, at, stored in records_after(parts, place):
        head, body = at + OFFSET_BLOCK_HEADER, at + RECORD_HEAD_BYTES
        yield segment.memory[head : head + HEADER_BYTES].tobytes(), segment.memory[body : body + stored].tobytes()
