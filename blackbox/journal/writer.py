"""One slice's journal while it is written: makes its segments, recovers what a crash left, takes care of files."""

from __future__ import annotations

import errno
import logging
import os
import time
from ctypes import CFUNCTYPE, c_int64, c_void_p, cast, string_at
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy

from blackbox.journal import append
from blackbox.journal.codec import CODECS, compress
from blackbox.journal.day import segment_path, slice_directory, sync_directory
from blackbox.journal.layout import (
    ENTRY_BYTES,
    FILE_HEAD,
    FILE_HEAD_BYTES,
    FORMAT_VERSION,
    INDEX_MAGIC,
    SEGMENT_MAGIC,
)
from blackbox.journal.segment import Segment
from blackbox.pipe import Pipe
from blackbox.sink import BODY, BODY_BYTES, TS_RECV, SinkAt
from blackbox.xxh3 import xxh3

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("blackbox")

_NOTHING_FD: Final = -1


def file_head(magic: bytes, slice_id: int, number: int, created_ns: int) -> bytes:
    """The 64 bytes that a segment or an index begins with."""
    head = numpy.zeros(1, FILE_HEAD)
    head["magic"], head["version"], head["slice"], head["segment"] = magic, FORMAT_VERSION, slice_id, number
    head["created"] = created_ns
    head["checksum"] = int(xxh3(head.ctypes.data, FILE_HEAD_BYTES - 4)) & 0xFFFFFFFF
    return head.tobytes()


class Files:
    """The open files of one segment."""

    def __init__(self, day: Path, slice_id: int, number: int) -> None:
        """Create a segment and its index. Raises OSError; then neither is left behind."""
        self.path = segment_path(day, slice_id, number)
        self.number = number
        self.fd = self.index_fd = _NOTHING_FD
        created_ns = time.time_ns()
        made: list[Path] = []
        try:
            for name, magic in (("index_fd", INDEX_MAGIC), ("fd", SEGMENT_MAGIC)):
                path = self.path if name == "fd" else self.path.with_suffix(".index")
                setattr(self, name, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
                made.append(path)
                head = file_head(magic, slice_id, number, created_ns)
                if os.write(getattr(self, name), head) != len(head):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        except BaseException:
            self.close()
            for path in made:
                path.unlink(missing_ok=True)
            raise

    def sync(self) -> None:
        """Make what is written durable."""
        os.fdatasync(self.fd)

    def close(self) -> None:
        """Close both."""
        for name in ("fd", "index_fd"):
            if getattr(self, name) != _NOTHING_FD:
                os.close(getattr(self, name))
                setattr(self, name, _NOTHING_FD)


class JournalWriter:
    """The journal of one slice: its compiled half runs in the slice thread, this half in the keeper's.

    `cut_bytes` of a torn tail were cut off when it was opened.
    """

    def __init__(
        self,
        slice_id: int,
        key_bytes: int,
        segment_bytes: int,
        sync_each: bool,
        compression: str,
        pipe: Pipe,
        day_of: Callable[[int], tuple[Path, int]],
    ) -> None:
        """`day_of(now_ns)` is the directory of a time's day, and when that day ends."""
        self.slice_id = slice_id
        self.cut_bytes = 0
        self._key_bytes = key_bytes
        self._day_of = day_of
        self._pipe = pipe
        self._words = numpy.zeros(append.JOURNAL_WORDS, numpy.int64)
        self._buffer = numpy.zeros(append.BUFFER_BYTES, numpy.uint8)
        self._entries = numpy.zeros((append.SEALED_MAX + 1) * ENTRY_BYTES, numpy.uint8)
        words = self._words
        words[append.BUFFER] = self._buffer.ctypes.data
        words[append.ENTRIES] = self._entries.ctypes.data
        words[append.KEY_BYTES] = key_bytes
        words[append.SEGMENT_BYTES] = segment_bytes
        words[append.SYNC] = sync_each
        words[append.KEEPER_FD] = pipe.writer
        self._entry = append.compile_append()
        self._packer = self._make_packer(compression)
        self._switches = 0
        self._next: Files | None = None
        self._files = self._open(time.time_ns())

    @property
    def at(self) -> SinkAt:
        """Where the slice thread finds it."""
        return SinkAt(int(self._entry.address), self._words.ctypes.data)

    def count(self, word: int) -> int:
        """A counter of `append`."""
        return int(self._words[word])

    @property
    def error(self) -> str:
        """What the system refused, with the file's name; empty: nothing."""
        number = self.count(append.ERRNO)
        return f"{self._files.path}: {os.strerror(number)}" if number else ""

    @property
    def path(self) -> Path:
        """The segment that is written now."""
        return self._files.path

    def refuse(self) -> None:
        """Record nothing from now on: what still comes is counted as lost."""
        if not self._words[append.ERRNO]:
            self._words[append.ERRNO] = errno.ECANCELED

    def tend(self) -> None:
        """Make the next segment if it is wanted, close the one before. Raises OSError when it cannot be made."""
        if self._next is not None and self.count(append.SWITCHES) != self._switches:
            self._switches = self.count(append.SWITCHES)
            before, self._files, self._next = self._files, self._next, None
            before.sync()
            before.close()
        if self._words[append.WANTED] and self._next is None:
            now_ns = int(self._words[TS_RECV]) if self._words[append.WANTED] == append.NEW_DAY else time.time_ns()
            self._next = self._open(now_ns, following=True)
            self._words[append.NEXT_READY] = 1

    def sync(self) -> None:
        """Make what is written durable."""
        self._files.sync()

    def is_there(self) -> bool:
        """Whether the segment still has its name: a file without one is lost when it is closed."""
        try:
            return self._files.path.stat().st_ino == os.fstat(self._files.fd).st_ino
        except OSError:
            return False

    def close(self) -> None:
        """Write what is in memory, make it durable, close. For when the slice thread has ended."""
        append.finish(self._words.ctypes.data)
        try:
            self._files.sync()
        finally:
            self._files.close()
            if self._next is not None:
                self._next.close()

    def _open(self, now_ns: int, following: bool = False) -> Files:
        day, day_end_ns = self._day_of(now_ns)
        directory = slice_directory(day, self.slice_id)
        directory.mkdir(parents=True, exist_ok=True)
        numbers = sorted(int(path.stem) for path in directory.glob("*.journal"))
        if numbers and not following:
            self._recover(day, numbers[-1])
        files = Files(day, self.slice_id, numbers[-1] + 1 if numbers else 0)
        sync_directory(directory)
        words = self._words
        if following:
            places = append.NEXT_FD, append.NEXT_INDEX_FD, append.NEXT_OFFSET, append.NEXT_DAY_END
        else:
            places = append.FD, append.INDEX_FD, append.OFFSET, append.DAY_END
        for place, value in zip(places, (files.fd, files.index_fd, FILE_HEAD_BYTES, day_end_ns), strict=True):
            words[place] = value
        return files

    def _recover(self, day: Path, number: int) -> None:
        """Cut the torn tail that a killed recorder left, and complete its index."""
        path = segment_path(day, self.slice_id, number)
        if path.stat().st_size < FILE_HEAD_BYTES:
            self.cut_bytes += path.stat().st_size
            log.warning("%s: cut %d bytes, a head that was not written whole", path, path.stat().st_size)
            path.write_bytes(file_head(SEGMENT_MAGIC, self.slice_id, number, time.time_ns()))
        segment = Segment(path, self.slice_id, number, self._key_bytes)
        if segment.torn_bytes:
            log.warning("%s: cut %d bytes of a block that was not written whole", path, segment.torn_bytes)
            self.cut_bytes += segment.torn_bytes
            os.truncate(path, segment.whole_bytes)
        for damage in segment.damage:
            log.warning("%s", damage)
        head = file_head(INDEX_MAGIC, self.slice_id, number, time.time_ns())
        fresh = path.with_suffix(".index.new")
        fresh.write_bytes(head + segment.entries.tobytes())
        fresh.replace(path.with_suffix(".index"))

    def _make_packer(self, compression: str) -> Any:
        """The C function that compresses the body at hand; it needs the interpreter once a block."""
        if compression == "none":
            return None
        compress(compression, b"")  # whether its library is there is to be known now
        words = self._words

        def pack(_address: int) -> None:
            packed: Any = compress(compression, string_at(int(words[BODY]), int(words[BODY_BYTES])))
            if len(packed) < words[BODY_BYTES]:
                self._packed = packed  # stays until the next one
                words[append.PACKED] = cast(packed, c_void_p).value or 0
                words[append.PACKED_BYTES] = len(packed)

        packer = CFUNCTYPE(None, c_int64)(pack)
        words[append.CODEC] = CODECS[compression]
        words[append.PACK] = cast(packer, c_void_p).value or 0
        return packer
