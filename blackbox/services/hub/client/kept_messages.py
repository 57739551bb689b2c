"""Keep received messages of a durable subscription until they are committed, for a restart while the hub is away.

In: batches from the subscription's worker threads. Out: after a restart, the messages that were not committed. Files
are in the format of a recording, one part after the other, and are deleted as positions advance.
"""

from __future__ import annotations

import ctypes
import logging
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, compress
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy

from blackbox.archive.files.day import Manifest, make_directory, recorded_days, replace_file, session_date
from blackbox.archive.maintain.deleter import ends_of, needs
from blackbox.archive.record.crash_recovery import recover_day
from blackbox.archive.record.journal_writer import JournalWriter
from blackbox.archive.record.settings import JournalSettings
from blackbox.archive.recording import Recording
from blackbox.block.batch.batch import Batch, Message
from blackbox.block.batch.block_handler import BLOCK
from blackbox.block.position import Position
from blackbox.errors import BlackBoxError, JournalError
from blackbox.feed.feed import Feed
from blackbox.transport.wakeup import Pipe

log = logging.getLogger("blackbox")

MOST_BYTES: Final = 64 << 20
"""Maximum bytes of a subscription's kept messages; later ones come from the hub only."""
_PART_BYTES: Final = 8 << 20
_SEGMENT_BYTES: Final = 1 << 40
_NEVER: Final = 1 << 62
_TAKEN: Final = "taken"


class KeptMessages:
    """Received messages of a subscription, in parts. `put` is for workers, all else for the subscription's reader."""

    def __init__(self, feed: Feed, directory: Path, prefix: bytes, symbols: list[bytes] | None) -> None:
        """Store the settings; nothing is opened."""
        self._feed, self._directory = feed, directory
        self._prefix, self._symbols = prefix, symbols
        self._lock = threading.Lock()
        self._part: _Part | None = None
        """The part that is being written."""
        self._closed: dict[Path, _Closed] = {}
        self._number = self._bytes = 0
        self._is_full = False
        self._seen: dict[int, Position] = {}
        """Position of the last message given to `put`, by slice, even if it was not kept."""
        self._known: set[tuple[int, int, int]] = set()
        """Slice, epoch and sequence of messages that were delivered from here, and will arrive from the hub too."""
        self._delivered: dict[Path, int] = {}
        """Messages of each part that were delivered since the last `commit`."""

    def messages(self, stored: Mapping[int, Position]) -> Iterator[Message]:
        """Yield received messages from the stored positions on, except committed ones. Call it before `put`."""
        self._known.clear()
        self._delivered.clear()
        try:
            for part in recorded_days(self._directory):
                recover_day(part)
                size = sum(path.stat().st_size for path in part.rglob("*") if path.is_file())
                self._closed[part], self._number = _Closed(ends_of(part), size), int(part.name)
            self._bytes = sum(part.bytes for part in self._closed.values())
            for part in list(self._closed):
                yield from self._messages_of(part, stored)
        except (OSError, ValueError, BlackBoxError) as error:
            log.warning("messages in %s cannot be read, they come from the hub: %s", self._directory, error)

    def _messages_of(self, part: Path, stored: Mapping[int, Position]) -> Iterator[Message]:
        Manifest.read(part).check_feed(self._feed, part)
        taken = part / _TAKEN
        begin = int(taken.read_text()) if taken.exists() else 0
        recording, number = Recording.open(part), 0
        for message in chain.from_iterable(map(_once, recording.batches(self._prefix, symbols=self._symbols))):
            if recording.damage:  # a later message must not come before those that the hub has
                raise JournalError(str(recording.damage[0]))
            number += 1
            place = _place_of(message)
            if place in self._known or place[1:] < stored.get(place[0], (0, 0)):
                continue
            self._known.add(place)
            if number > begin:
                self._delivered[part] = number
                yield message

    def was_delivered(self, message: Message) -> bool:
        """Return True, once, if a message of the hub was delivered from here."""
        place = _place_of(message)
        is_known = place in self._known
        self._known.discard(place)
        return is_known

    def put(self, batch: Batch) -> None:
        """Keep messages before their reader gets them."""
        block = batch.block
        with self._lock:
            slice_id, epoch, sequences = block.slice_id, block.epoch, batch.sequence.tolist()
            self._seen[slice_id] = Position(epoch, sequences[-1])
            if self._is_full or all((slice_id, epoch, each) in self._known for each in sequences):
                return
            try:
                if self._part is None:
                    self._number += 1
                    self._part = _Part(self._feed, self._directory / f"{self._number:06d}")
                self._part.append(batch)
                self._bytes += block.body.nbytes
                if self._part.bytes >= _PART_BYTES:
                    self._close_part()
            except (OSError, BlackBoxError) as error:
                log.warning("messages are no longer kept in %s: %s", self._directory, error)
                self._is_full = True
            self._is_full = self._is_full or self._bytes >= MOST_BYTES
            if self._is_full:
                self._close_part()

    def commit(self) -> None:
        """Note durably that the messages delivered from here are committed. Raises JournalError."""
        for part, count in list(self._delivered.items()):
            try:
                replace_file(part / _TAKEN, part / f"{_TAKEN}.new", str(count).encode())
            except OSError as error:
                raise JournalError(f"{part} cannot be written: {error.strerror}") from error
            del self._delivered[part]

    def advance(self, stored: Mapping[int, Position]) -> None:
        """Delete the parts before stored positions."""
        with self._lock:
            for path, part in list(self._closed.items()):
                if not needs(stored, part.ends):
                    shutil.rmtree(path, ignore_errors=True)
                    del self._closed[path]
                    self._bytes -= part.bytes
            if self._is_full:  # kept messages must have no gap
                self._is_full = bool(self._closed) or needs(stored, {n: [last] for n, last in self._seen.items()})

    def close(self) -> None:
        """Close the files."""
        with self._lock:
            self._close_part()

    def discard(self) -> None:
        """Close and delete the files."""
        self.close()
        shutil.rmtree(self._directory, ignore_errors=True)
        self._closed.clear()
        self._known.clear()
        self._bytes = 0

    def _close_part(self) -> None:
        part, self._part = self._part, None
        if part is not None:
            with suppress(OSError):  # it was reported when it was written
                part.close()
            self._closed[part.path] = _Closed({n: [last] for n, last in part.ends.items()}, part.bytes)


class _Closed(NamedTuple):
    """A part that is complete."""

    ends: Mapping[int, list[Position]]
    """By slice, the last messages, as from `ends_of`."""
    bytes: int


class _Part:
    """Files that are being written, until they are full or the process ends."""

    def __init__(self, feed: Feed, path: Path) -> None:
        """Create the files. Raises OSError."""
        self.path, self.bytes = path, 0
        self.ends: dict[int, Position] = {}
        self._key_rule, self._pipe = feed.key_rule, Pipe()
        self._writers: dict[int, tuple[JournalWriter, Any]] = {}
        now_ns = time.time_ns()
        make_directory(path)
        Manifest.new(feed, session_date(feed, now_ns), now_ns).write(path)

    def append(self, batch: Batch) -> None:
        """Write the block of a batch. Raises OSError, JournalError."""
        block = batch.block
        if block.slice_id not in self._writers:
            self._writers[block.slice_id] = self._new_writer(block.slice_id)
        writer, append = self._writers[block.slice_id]
        header = numpy.frombuffer(block.header, numpy.uint8)
        given = writer.state
        given.kind, given.held, given.first_row, given.ts_recv = BLOCK, 0, 0, batch.ts_recv
        given.head, given.body, given.body_bytes = header.ctypes.data, block.body.ctypes.data, block.body.nbytes
        append(writer.handler.record)
        if writer.error:
            raise JournalError(writer.error)
        self.bytes += block.body.nbytes
        last = Position(block.epoch, block.number_of(-1))
        self.ends[block.slice_id] = max(last, self.ends.get(block.slice_id, last))

    def _new_writer(self, slice_id: int) -> tuple[JournalWriter, Any]:
        writer = JournalWriter(
            slice_id,
            self._key_rule,
            JournalSettings(segment_bytes=_SEGMENT_BYTES),
            self._pipe,
            day_of=lambda _: (self.path, _NEVER),
            is_outbox=True,
        )
        return writer, ctypes.CFUNCTYPE(None, ctypes.c_int64)(writer.handler.function)

    def close(self) -> None:
        """Close the files. Raises OSError if they are not durable."""
        for writer, _ in self._writers.values():
            writer.close()


def _place_of(message: Message) -> tuple[int, int, int]:
    return message.slice_id, message.epoch, message.sequence


def _once(batch: Batch) -> Iterable[Message]:
    """Return the messages of a batch, each under the first of its topics."""
    if (same := batch.block.same) is None:
        return batch
    firsts = batch.sequence - (same if batch.rows is None else same[batch.rows])
    return compress(batch, (numpy.diff(firsts, prepend=-1) != 0).tolist())
