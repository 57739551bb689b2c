"""One slice's journal while a recorder or an outbox writes it: create, sync and close its segments."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from contextlib import suppress
from ctypes import CFUNCTYPE, c_int64, c_void_p, cast, string_at
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy

from blackbox.archive.files.closed import note_closed, note_segments
from blackbox.archive.files.codec import CODECS, Compression, compress
from blackbox.archive.files.day import Manifest, make_directory, segment_numbers, segment_path, slice_directory
from blackbox.archive.files.format import ENTRY_BYTES, FILE_HEAD_BYTES
from blackbox.archive.files.marks import Totals, chain_start, end_of, is_closed
from blackbox.archive.files.segment import Segment
from blackbox.archive.record.append import compile_append
from blackbox.archive.record.append_marks import finish
from blackbox.archive.record.journal_state import BUFFER_BYTES, COUNTERS, SEALED_MAX, JournalState, lose_segment
from blackbox.archive.record.segment_files import SegmentFiles
from blackbox.archive.record.settings import JournalSettings
from blackbox.block.batch.block_handler import IDLE, BlockHandlerAt
from blackbox.errors import JournalError
from blackbox.native.system.limits import Needs
from blackbox.native.system.posix import begin_writing
from blackbox.transport.wakeup import Pipe

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("blackbox")

_SYNC_AHEAD_BYTES: Final = 4 << 20


class JournalPosition(NamedTuple):
    """Recorded range of a slice; fields as in `Acknowledgement`."""

    epoch: int
    begin: int
    recorded: int
    missing: int


WRITER_NEEDS = Needs(descriptors=6)
"""Maximum number of open segments and indexes of a journal: current, prepared, and not yet closed."""


class JournalWriter:
    """The journal of one slice. Its compiled half runs in the slice thread, this half in the keeper thread.

    The day must have been recovered before. Attributes: `state`, shared with the slice thread.
    """

    def __init__(
        self,
        slice_id: int,
        key_rule: int,
        settings: JournalSettings,
        pipe: Pipe,
        day_of: Callable[[int], tuple[Path, int]],
        *,
        is_outbox: bool = False,
        note_synced: Callable[[int, int, int], None] | None = None,
    ) -> None:
        """`day_of(now_ns)` returns the directory and the end of the day at a time.

        `note_synced` is called after a sync with the slice, the segment's creation time, and its synced bytes.
        """
        self.slice_id = slice_id
        self.state = state = JournalState()
        self._key_rule, self._day_of, self._pipe, self._note_synced = key_rule, day_of, pipe, note_synced
        self._memory = numpy.zeros(BUFFER_BYTES + (SEALED_MAX + 1) * ENTRY_BYTES, numpy.uint8)
        """The buffer and the index entries."""
        state.buffer = self._memory.ctypes.data
        state.entries = state.buffer + BUFFER_BYTES
        state.key_rule = key_rule
        state.segment_bytes = settings.segment_bytes
        state.sync_each = settings.fsync == "block"
        state.is_outbox = is_outbox
        state.keeper_fd = pipe.writer
        self._packer = None if settings.compression == "none" else Packer(state, settings.compression)
        self._is_open = True
        self._switches = 0
        self._lock = threading.Lock()
        """Held by the thread that creates, syncs or closes files."""
        self._sync_error: OSError | None = None
        self._before: list[tuple[SegmentFiles, Totals]] = []
        self._next: SegmentFiles | None = None
        finish(state.address, False, 0)  # does nothing yet, but compiles it
        self._files = self._open_first(time.time_ns())

    @property
    def handler(self) -> BlockHandlerAt:
        """The handler that the slice thread calls."""
        return BlockHandlerAt(int(compile_append().address), self.state.address)

    def position(self) -> JournalPosition:
        """Return the range that is written to the file. Its epoch is 0 until a position is known."""
        state = self.state
        while True:
            version = state.position_version
            read = JournalPosition(state.position_epoch, state.position_begin, state.position, state.position_missing)
            if version % 2 == 0 and version == state.position_version:
                return read

    @property
    def is_recording(self) -> bool:
        """True if the slice thread is appending."""
        return self._is_open and self.state.kind != IDLE

    @property
    def error(self) -> str:
        """The error of a failed write, with the file's name; otherwise empty."""
        number = self.state.error
        return f"{self._files.path}: {os.strerror(number)}" if number else ""

    @property
    def day(self) -> Path:
        """The oldest day with an open segment."""
        return next((files.day for files, _ in self._before), self._files.day)

    def refuse(self) -> None:
        """Stop recording. Messages received later are counted as lost."""
        if not self.state.error:
            self.state.error = errno.ECANCELED

    def tend(self) -> None:
        """Create the next segment if it is requested. Raises OSError or JournalError."""
        with self._lock:
            self._notice_switch()
            if self.state.wanted and self._next is None:
                # In the day of the last block. The next block shows if another day has begun.
                self._next = self._open_next(self.state.ts_recv)
                self.state.next_ready = 1

    def sync(self, *, what_is_written: bool) -> None:
        """Sync and close full segments; with `what_is_written` also sync the current one.

        Also stores the number of segments in `closed.json`. Any thread may call this. Raises OSError. After a failed
        sync it always raises, because the system drops unwritten pages and the next sync would succeed.
        """
        with self._lock:
            self._notice_switch()
            if self._sync_error is None:
                try:
                    self._sync(what_is_written)
                except OSError as error:
                    self._sync_error = error
            if self._sync_error is not None:
                raise self._sync_error

    def _sync(self, what_is_written: bool) -> None:
        while self._before:
            before, totals = self._before[0]
            before.sync()
            before.close()
            if totals.marks:  # else it was empty and is removed
                note_closed(before.day, self.slice_id, totals, before.number + 1)
            del self._before[0]
        files, state = self._files, self.state
        writes, size = state.writes, state.safe
        is_its_size = state.switches == self._switches  # else `size` is of another segment
        if not files.is_noted and is_its_size and size > FILE_HEAD_BYTES:
            with suppress(OSError):  # retried; file errors are reported elsewhere
                note_segments(files.day, self.slice_id, files.number + 1)
                files.is_noted = True
        if what_is_written and writes != files.synced_writes:
            files.sync()
            files.synced_writes = writes
            if self._note_synced is not None and is_its_size:
                self._note_synced(self.slice_id, files.created_ns, size)

    def begin_sync(self) -> None:
        """Start writing cached pages to the disk, so that the next sync takes less time."""
        with self._lock:
            self._notice_switch()
        files, size = self._files, self.state.safe
        if size - files.sync_begun >= _SYNC_AHEAD_BYTES:
            begin_writing(files.fd, files.sync_begun, size - files.sync_begun)
            files.sync_begun = size

    def check_is_there(self) -> None:
        """Raise JournalError if the current segment has lost its name."""
        with self._lock:
            if not self._files.is_there:
                raise JournalError(f"{self._files.path} was removed or replaced during recording")

    def close(self) -> None:
        """Write the buffer, sync and close. Requires that the slice thread and the keeper thread have ended.

        Data in a segment that was removed is lost. Raises OSError if the data is not durable.
        """
        if not self._is_open:
            return
        self._is_open = False
        self._notice_switch()
        finish(self.state.address, True, time.time_ns())
        if not self._files.is_there:
            lose_segment(self.state.address)
        try:
            self.sync(what_is_written=True)
            if self._files.is_there and self._ended().marks:
                note_closed(self._files.day, self.slice_id, self._ended(), self._files.number + 1)
        finally:
            for files in (*(files for files, _ in self._before), self._files, self._next):
                if files is not None:
                    files.close()

    def _ended(self) -> Totals:
        """The totals after the SEGMENT_END of the last finished segment; without marks, it was empty."""
        return Totals(*self.state.ended[COUNTERS - len(Totals._fields) :])

    def _notice_switch(self) -> None:
        if self._next is not None and self.state.switches != self._switches:
            self._switches = self.state.switches
            self._before.append((self._files, self._ended()))
            self._files, self._next = self._next, None

    def _open_first(self, now_ns: int) -> SegmentFiles:
        """Open the first segment of this recorder, after those that the day already has."""
        day, day_end_ns = self._day_of(now_ns)
        state = self.state
        totals = Totals(chain=chain_start(Manifest.read(day).created_ns, self.slice_id))
        numbers = segment_numbers(slice_directory(day, self.slice_id))
        if numbers:
            state.after_kill = 1
            try:
                path = segment_path(day, self.slice_id, numbers[-1])
                segment = Segment(path, self.slice_id, numbers[-1], self._key_rule)
                totals, state.after_kill = end_of(segment, totals).totals, not is_closed(segment)
            except JournalError as error:
                log.warning("%s", error)  # readers report the same, and `verify` that the totals do not continue
        state.started = now_ns
        state.day_records, state.day_messages, state.day_marks, state.chain = totals
        files = self._make(day)
        files.synced_writes = 0  # nothing to sync
        state.fd, state.index_fd, state.offset, state.day_end = files.fd, files.index_fd, FILE_HEAD_BYTES, day_end_ns
        state.safe = FILE_HEAD_BYTES
        for counters in (state.begun, state.written):
            counters[-len(totals) :] = numpy.array(totals, numpy.int64).data
        return files

    def _open_next(self, now_ns: int) -> SegmentFiles:
        day, day_end_ns = self._day_of(now_ns)
        files, state = self._make(day), self.state
        state.next_fd, state.next_index_fd, state.next_day_end = files.fd, files.index_fd, day_end_ns
        state.next_is_new_day = day != self._files.day
        if state.next_is_new_day:
            state.next_chain = chain_start(Manifest.read(day).created_ns, self.slice_id)
        return files

    def _make(self, day: Path) -> SegmentFiles:
        directory = slice_directory(day, self.slice_id)
        make_directory(directory)
        return SegmentFiles(day, self.slice_id, max(segment_numbers(directory), default=-1) + 1)


class Packer:
    """Compresses the bodies of a journal. It takes the GIL once per block."""

    def __init__(self, state: JournalState, compression: Compression) -> None:
        """Raises JournalError if the compression library is missing."""
        compress(compression, b"")
        self._packed: Any = b""
        """The last compressed body, kept alive until the next one."""

        def pack(_address: int) -> None:
            packed: Any = compress(compression, string_at(state.body, state.body_bytes))
            if len(packed) < state.body_bytes:
                self._packed = packed
                state.packed = cast(packed, c_void_p).value or 0
                state.packed_bytes = len(packed)

        self._entry = CFUNCTYPE(None, c_int64)(pack)
        state.codec = CODECS[compression]
        state.pack = cast(self._entry, c_void_p).value or 0
