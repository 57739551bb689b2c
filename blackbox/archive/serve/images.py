"""Make images of a feed's slices: the newest message of each topic, or books, at one position."""

from __future__ import annotations

import secrets
import time
from bisect import bisect, bisect_left
from collections.abc import Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy

from blackbox.archive.files.format import FILE_HEAD_BYTES
from blackbox.archive.files.segment import Damage, Segment
from blackbox.archive.read.filter import Filter
from blackbox.archive.read.reader import Span, read_spans
from blackbox.archive.recording import Recording
from blackbox.archive.serve.archive_days import ArchiveDays
from blackbox.archive.serve.newest_books import NewestBooks
from blackbox.archive.serve.newest_of_slice import Newest
from blackbox.archive.serve.piece_reading import PIECE_BLOCKS, PIECE_BYTES
from blackbox.archive.serve.pieces import Pieces, StaleCursorError
from blackbox.archive.serve.protocol import AskImage, Image, Snapshot
from blackbox.archive.serve.run_marks import Place
from blackbox.block.form.block import Block
from blackbox.errors import ArchiveError, ConfigError
from blackbox.feed.rights import Prefixes
from blackbox.feed.routing.symbol import SymbolRule

if TYPE_CHECKING:
    from blackbox.archive.serve.client import SliceImage

MOST_IMAGE_BYTES: Final = 256 << 20
"""Maximum size of an image, and of all kept images but the newest, without the blocks made from them."""
_KEPT_S: Final = 30.0
"""Time for which an image is kept after its last request, so that readers can fetch the rest."""
_BUSY_S: Final = 2.0
"""Time since its last request for which an image does not make room for another."""
_TURN_S: Final = 0.02
"""Maximum time for reading or making blocks for one request, before other requests are served."""
_READ_BYTES: Final = 4 << 20

_Asked = tuple[int, Snapshot, tuple[bytes, ...], tuple[bytes, ...] | None]
"""Slice, kind, prefixes, and rights of the request."""


class _Made(NamedTuple):
    """An image."""

    number: int
    asked: _Asked
    read_at: float
    """Everything recorded by then was read."""
    asked_at: float
    image: Image
    blocks: list[Block]
    """Blocks made so far."""
    rest: Iterator[Block]
    size: int


class Images:
    """The images of one feed, with the state of each requested slice. Not thread-safe."""

    def __init__(self, pieces: Pieces, beginnings: Mapping[int, SliceImage] = MappingProxyType({})) -> None:
        """Start without images. `pieces`: the days of the archive. `beginnings`: by slice, the image before them."""
        self._days, self._beginnings = pieces.days, beginnings
        self._scans: dict[tuple[int, Snapshot], _Scan] = {}
        self._kept: list[_Made] = []

    def answer(
        self,
        ask: AskImage,
        rights: Prefixes | None = None,
        most_bytes: int | None = None,
        received_at: float | None = None,
    ) -> tuple[Image, list[Block]]:
        """Return the next piece of an image, or an empty one while more must be read, or others be fetched, first.

        The image has everything that was recorded before the request. Equal requests that were waiting together get the
        same one. `received_at`: time of receipt, by `time.monotonic`, default now. `rights`, `most_bytes`: as in
        `Pieces.read`.

        Raises ArchiveError for an invalid request or an image that is too large; StaleCursorError if the image is no
        longer kept, JournalError if files cannot be read.
        """
        now = time.monotonic()
        received_at = received_at or now
        most_bytes = PIECE_BYTES if most_bytes is None else min(most_bytes, PIECE_BYTES)
        self._kept = [each for each in self._kept if now - each.asked_at < _KEPT_S]
        asked = ask.slice_id, ask.of, ask.prefixes, rights
        for index, made in reversed([*enumerate(self._kept)]):
            is_new_enough = ask.image == 0 and made.read_at > received_at
            if made.asked == asked and (made.number == ask.image or is_new_enough):
                self._kept[index] = made._replace(asked_at=now)
                return _piece(made, ask.first, most_bytes)
        if ask.image:
            raise StaleCursorError(f"image was {ask.image}, expected a recent one of this archive")
        scan = self._scan(ask.slice_id, ask.of)
        if not scan.go_on(self._days, now + _TURN_S):
            return Image(image=0), []
        if sum(each.size for each in self._kept if now - each.asked_at < _BUSY_S) > MOST_IMAGE_BYTES:
            return Image(image=0), []  # those that are being fetched come first
        self._kept.append(_make(scan, asked, now))
        while len(self._kept) > 1 and sum(each.size for each in self._kept[:-1]) > MOST_IMAGE_BYTES:
            asked_at = [each.asked_at for each in self._kept[:-1]]
            del self._kept[asked_at.index(min(asked_at))]
        return _piece(self._kept[-1], 0, most_bytes)

    def _scan(self, slice_id: int, of: Snapshot) -> _Scan:
        """Return the state of a slice, or a new one if the feed has changed."""
        days = self._days.reload()
        if not days:
            raise ArchiveError("there was no recorded day, expected at least one")
        last = self._days.known(days[-1])
        self._days.check_slice(slice_id)
        scan = self._scans.get((slice_id, of))
        if scan is None or scan.layout != _layout(last, of):
            scan = _Scan(slice_id, of, last)
            if isinstance(scan.newest, Newest) and (before := self._beginnings.get(slice_id)) is not None:
                scan.newest.begin(before.blocks, before.position, before.ts_out)
            self._scans[slice_id, of] = scan
        return scan


class _Scan:
    """State of an image while a slice's records are read."""

    newest: Newest | NewestBooks

    def __init__(self, slice_id: int, of: Snapshot, day: Recording) -> None:
        """Start with this day and others of the same feed. Raises ArchiveError if the slice has no such image."""
        self.slice_id, self._of, self.layout = slice_id, of, _layout(day, of)
        if of == "latest":
            self.newest = Newest(slice_id, day.feed.key_rule, day.feed.max_topics)
        else:
            try:
                self.newest = NewestBooks(slice_id, day.feed)
            except ConfigError as error:
                raise ArchiveError(str(error)) from error
        self.unreadable = 0
        """Number of damaged places in the files."""
        self._day, self._made = "", 0
        self._at = Place(0, FILE_HEAD_BYTES)

    def go_on(self, archive: ArchiveDays, until: float) -> bool:
        """Read on until a time. Return True if everything was read."""
        days = archive.reload()
        for name in days[bisect_left(days, self._day) :]:
            day, made = archive.fresh(name, self.slice_id), archive.made(name)
            if _layout(day, self._of) != self.layout:
                continue
            if self._day not in ("", name):
                if not day.segments.filled(self.slice_id):
                    continue  # the day before may still be written
                is_same = archive.made(self._day) == self._made
                if is_same and not self._read(archive.fresh(self._day, self.slice_id), until):
                    return False  # the end of the day before, which is complete now
            if (name, made) != (self._day, self._made):
                if name != self._day and isinstance(self.newest, NewestBooks):
                    self.newest.begin_day()
                self._day, self._made, self._at = name, made, Place(0, FILE_HEAD_BYTES)
            if not self._read(day, until):
                return False
        return True

    def _read(self, day: Recording, until: float) -> bool:
        """Read on in a day. Return True at its end."""
        for segment in day.segments.filled(self.slice_id):
            if segment.number < self._at.segment:
                continue
            start = self._at.offset if segment.number == self._at.segment else FILE_HEAD_BYTES
            entries = segment.entries[bisect(segment.entries["stop"], start) :]
            parts = (entries["stop"] - start) // _READ_BYTES
            for part in numpy.split(entries, numpy.flatnonzero(numpy.diff(parts)) + 1):
                if len(part):  # at least one per turn, even if it takes longer
                    self._take(day, segment, start, int(part["stop"][-1]))
                    start = int(part["stop"][-1])
                    if time.monotonic() > until:
                        return False
        return True

    def _take(self, day: Recording, segment: Segment, start: int, stop: int) -> None:
        def report(damage: Damage) -> None:
            self.unreadable += 1
            day.segments.note(damage)

        everything = Filter(day.feed.key_rule).records
        for run in read_spans([[Span(segment, start, stop)]], everything, day.feed.key_rule, report):
            self.newest.take(run)
        self._at = Place(segment.number, stop)


def _layout(day: Recording, of: Snapshot) -> tuple[int, int, str, SymbolRule | None]:
    """Return what days that are read together must share: for books also the schema and the symbol rule."""
    feed = day.feed
    return len(feed.slices), feed.key_rule, *((feed.schema_name, feed.symbol_rule) if of == "books" else ("", None))


def _make(scan: _Scan, asked: _Asked, read_at: float) -> _Made:
    slice_id, _, prefixes, rights = asked
    newest = scan.newest
    blocks = newest.blocks(prefixes, (b"",) if rights is None else rights)
    if blocks.size > MOST_IMAGE_BYTES:
        raise ArchiveError(
            f"image of slice {slice_id} had {blocks.size} bytes, expected at most {MOST_IMAGE_BYTES}: "
            "request longer prefixes"
        )
    image = Image(
        image=secrets.randbits(62) + 1,
        blocks=blocks.count,
        position=newest.position,
        ts_out=newest.ts_out,
        unreadable=scan.unreadable,
        is_unsure=blocks.is_unsure or scan.unreadable > 0,
    )
    return _Made(image.image, asked, read_at, time.monotonic(), image, [], iter(blocks), blocks.size)


def _piece(made: _Made, first: int, most_bytes: int) -> tuple[Image, list[Block]]:
    """Return the blocks from index `first` on, within the limits of an answer's size and time."""
    blocks, size, until = list[Block](), 0, time.monotonic() + _TURN_S
    while len(blocks) < PIECE_BLOCKS and size < most_bytes and (not blocks or time.monotonic() < until):
        index = first + len(blocks)
        if index == len(made.blocks):
            made.blocks.extend(islice(made.rest, 1))
        if index >= len(made.blocks):
            break
        blocks.append(made.blocks[index])
        size += blocks[-1].body.nbytes
    return made.image, blocks
