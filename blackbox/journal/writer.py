"""One slice's journal while it is written: makes its segments, takes care of their files."""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from ctypes import CFUNCTYPE, c_int64, c_void_p, cast, string_at
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy

from blackbox.journal import append
from blackbox.journal.codec import CODECS, compress
from blackbox.journal.day import make_directory, segment_path, slice_directory, sync_directory
from blackbox.journal.layout import ENTRY_BYTES, FILE_HEAD_BYTES, INDEX_MAGIC, SEGMENT_MAGIC
from blackbox.journal.recover import file_head, remove_empty, segment_numbers
from blackbox.pipe import Pipe
from blackbox.sink import BODY, BODY_BYTES, TS_RECV, SinkAt

if TYPE_CHECKING:
    from collections.abc import Callable

_NOTHING_FD: Final = -1


class Files:
    """The open files of one segment."""

    def __init__(self, day: Path, slice_id: int, number: int) -> None:
        """Create a segment and its index. Raises OSError; then neither is left behind."""
        self.path = segment_path(day, slice_id, number)
        self.fd = self.index_fd = _NOTHING_FD
        created_ns = time.time_ns()
        made: list[Path] = []
        try:
            # The segment first: a recorder killed in between must not leave an index that is in the way.
            for name, magic, how in (("fd", SEGMENT_MAGIC, os.O_EXCL), ("index_fd", INDEX_MAGIC, os.O_TRUNC)):
                path = self.path if name == "fd" else self.path.with_suffix(".index")
                setattr(self, name, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how, 0o644))
                made.append(path)
                head = file_head(magic, slice_id, number, created_ns)
                if os.write(getattr(self, name), head) != len(head):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            sync_directory(self.path.parent)
        except BaseException as error:
            self.close()
            for path in made:
                path.unlink(missing_ok=True)
            if isinstance(error, OSError) and error.filename is None:
                raise OSError(error.errno, os.strerror(error.errno or 0), str(self.path)) from error
            raise

    def sync(self) -> None:
        """Make what is written durable. Raises OSError naming the segment."""
        try:
            os.fdatasync(self.fd)
        except OSError as error:
            raise OSError(error.errno, os.strerror(error.errno or 0), str(self.path)) from error

    @property
    def is_there(self) -> bool:
        """Whether the segment still has its name: a file without one is lost when it is closed."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self.fd))
        except OSError:
            return False

    def close(self) -> None:
        """Close both; a segment that holds nothing is removed."""
        if self.fd != _NOTHING_FD and self.is_there:
            with suppress(OSError):  # then an empty one stays: the next recorder removes it
                remove_empty(self.path)
        for name in ("fd", "index_fd"):
            if getattr(self, name) != _NOTHING_FD:
                os.close(getattr(self, name))
                setattr(self, name, _NOTHING_FD)


class JournalWriter:
    """The journal of one slice: its compiled half runs in the slice thread, this half in the keeper's.

    What a recorder that was killed left is to be recovered before.
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
        self._day_of = day_of
        self._pipe = pipe
        self._words = numpy.zeros(append.JOURNAL_WORDS, numpy.int64)
        self._buffer = numpy.zeros(append.BUFFER_BYTES, numpy.uint8)
        self._entries = numpy.zeros((append.SEALED_MAX + 1) * ENTRY_BYTES, numpy.uint8)
        self._is_open = True
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
        self._before: list[Files] = []
        self._next: Files | None = None
        append.finish(words.ctypes.data)  # there is nothing yet: so that it is compiled before it is needed
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
        """Make the next segment if it is wanted. Raises OSError or JournalError when it cannot be made."""
        self._notice_switch()
        if self._words[append.WANTED] and self._next is None:
            # Of the day of the last block: whether another has begun is for the next block to say.
            self._next = self._open(int(self._words[TS_RECV]), following=True)
            self._words[append.NEXT_READY] = 1

    def sync(self, *, what_is_written: bool) -> None:
        """Close the segments that are full, durably; also make durable what is in the one that is written, if told."""
        while self._before:
            before = self._before.pop(0)
            try:
                before.sync()
            finally:
                before.close()
        if what_is_written:
            self._files.sync()

    @property
    def is_there(self) -> bool:
        """Whether the segment that is written still has its name."""
        return self._files.is_there

    def close(self) -> None:
        """Write what is in memory, make it durable, close. For when slice thread and keeper have ended.

        What was written to a segment that is there no more is then lost. Raises OSError when it is not durable.
        """
        if not self._is_open:
            return
        self._is_open = False
        append.finish(self._words.ctypes.data)
        self._notice_switch()
        if not self.is_there:
            append.lose_since(self._words.ctypes.data, append.BEGUN)
        try:
            self.sync(what_is_written=True)
        finally:
            for files in (*self._before, self._files, self._next):
                if files is not None:
                    files.close()

    def _notice_switch(self) -> None:
        if self._next is not None and self.count(append.SWITCHES) != self._switches:
            self._switches = self.count(append.SWITCHES)
            self._before.append(self._files)
            self._files, self._next = self._next, None

    def _open(self, now_ns: int, following: bool = False) -> Files:
        day, day_end_ns = self._day_of(now_ns)
        directory = slice_directory(day, self.slice_id)
        make_directory(directory)
        files = Files(day, self.slice_id, max(segment_numbers(directory), default=-1) + 1)
        words = self._words
        if following:
            places = append.NEXT_FD, append.NEXT_INDEX_FD, append.NEXT_OFFSET, append.NEXT_DAY_END
        else:
            places = append.FD, append.INDEX_FD, append.OFFSET, append.DAY_END
            words[append.SAFE] = FILE_HEAD_BYTES
        for place, value in zip(places, (files.fd, files.index_fd, FILE_HEAD_BYTES, day_end_ns), strict=True):
            words[place] = value
        return files

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
