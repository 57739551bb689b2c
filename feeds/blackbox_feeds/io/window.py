"""A file's bytes in bounded memory: mapped when plain, unpacked piece by piece when gzip or zstd.

    plain:  data = the whole file, mapped; nothing is ever copied
    packed: data = [ rest of the last window | newly unpacked bytes ], a new buffer each time,
            so that whoever still holds the old one may keep it

Which of them it is shows in the first bytes, not in the name.
"""

from __future__ import annotations

import mmap
import os
import zlib
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy
from numpy.typing import NDArray

WINDOW_BYTES = 4 << 20
"""How much of a packed file is held unpacked at a time. Unit: bytes."""
_PIECE_BYTES = 1 << 16
_RELEASE_BYTES = 32 << 20
_GZIP_HEADER = b"\x1f\x8b\x08"
_SEARCHED_BYTES = 1 << 20


class FileWindow(ABC):
    """A view of consecutive bytes of a file that moves on towards its end.

    Use it in a `with` statement; `open_window` makes one. Arrays taken from `data` stay valid after
    the window has moved or closed.
    """

    path: str
    data: NDArray[numpy.uint8]
    """The bytes in view, read-only."""
    start: int
    """Where in the file (after decompression) `data` starts. Unit: bytes."""
    last: bool
    """True when nothing comes after `data`."""
    fault: str | None = None
    """What was wrong with the compressed form, when that ended the file early."""

    @abstractmethod
    def slide(self, consumed: int) -> None:
        """Drop the first `consumed` bytes from view and fill up behind the rest.

        With nothing consumed of a full window the window grows. Only while `last` is false.
        """

    def skip_damage(self) -> str | None:
        """Show the bytes that follow a damaged part. Return their place, in words, or None if nothing after it unpacks.

        Only when `last` is true and there is a `fault`. An unknown number of bytes is missing before `data`: the
        reader drops what it has not used, and what it finds now may begin in the middle of a message.
        """
        return None

    def release(self, consumed: int) -> None:  # noqa: B027 - nothing to do unless mapped
        """The first `consumed` bytes of `data` have been used: they need not stay in memory."""

    @abstractmethod
    def close(self) -> None:
        """Close the file."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def ending(self, position: int, noun: str) -> str | None:
        """Return why the input ended at `position` in `data`, where a `noun` was to start.

        None when it ended there in good order, else one sentence.
        """
        fault = f" ({self.fault})" if self.fault else ""
        end = self.start + len(self.data)
        if position < len(self.data):
            begin = self.start + position
            return f"{self.path}: input ended at byte {end} inside the {noun} that starts at byte {begin}{fault}"
        return f"{self.path}: input ended at byte {end}{fault}" if fault else None


class MappedWindow(FileWindow):
    """The bytes of a plain file, mapped: all of it is in view."""

    def __init__(self, path: str, file: BinaryIO) -> None:
        self.path = path
        self.start = 0
        self.last = True
        self._released = 0
        with file:
            size = file.seek(0, 2)
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else None
        self.data = numpy.frombuffer(self._map or b"", numpy.uint8)
        if self._map is not None:
            self._map.madvise(mmap.MADV_SEQUENTIAL)

    def slide(self, consumed: int) -> None:  # noqa: D102 - as FileWindow says
        raise AssertionError(f"{self.path}: slid by {consumed}, but all of it is in view")

    def release(self, consumed: int) -> None:  # noqa: D102 - as FileWindow says
        # Pages of the file that this process has touched count as its memory until they are given
        # back; touched again they come from the file again.
        done = consumed - consumed % _RELEASE_BYTES
        if self._map is not None and done > self._released:
            self._map.madvise(mmap.MADV_DONTNEED, self._released, done - self._released)
            self._released = done

    def close(self) -> None:  # noqa: D102 - as FileWindow says
        # Chunks may still be held: the map goes when the last array on it does.
        self._map = None


class PackedWindow(FileWindow):
    """A window that a subclass fills by unpacking; it calls `slide(0)` once it is ready to."""

    def __init__(self, path: str, window_bytes: int) -> None:
        self.path = path
        self.start = 0
        self.last = False
        self._size = window_bytes
        self.data = numpy.empty(0, numpy.uint8)

    def slide(self, consumed: int) -> None:
        """As `FileWindow.slide`."""
        rest = self.data[consumed:]
        if len(rest) >= self._size:
            self._size *= 2
        buffer = numpy.empty(self._size, numpy.uint8)
        buffer[: len(rest)] = rest
        filled = len(rest)
        view = buffer.data
        while filled < len(buffer) and not self.last:
            unpacked = self._unpack(len(buffer) - filled)
            view[filled : filled + len(unpacked)] = unpacked
            filled += len(unpacked)
        view.release()
        self.start += consumed
        self.data = buffer[:filled]
        self.data.flags.writeable = False

    @abstractmethod
    def _unpack(self, room: int) -> bytes:
        """Return up to `room` more bytes, perhaps none yet; calls `_stop` at the end."""

    def _go_on(self, damaged: int, found: int) -> str:
        """Show what unpacks from packed byte `found` on, after damage at another; return their places in words."""
        self.start += len(self.data)
        self.data = self.data[:0]
        self.last, self.fault = False, None
        self.slide(0)
        return f"reading goes on at compressed byte {found}, after {found - damaged:,} bytes that do not unpack"

    def _stop(self, fault: str | None) -> None:
        self.last = True
        self.fault = fault


class InflatingWindow(PackedWindow):
    """The bytes of a gzip file, inflated piece by piece.

    A member that is cut ends where the next one begins. What follows its last whole byte would inflate to noise.
    """

    def __init__(self, path: str, file: BinaryIO, window_bytes: int) -> None:
        super().__init__(path, window_bytes)
        self._file = file
        self._at = 0
        self._begin_member()
        self.slide(0)

    def skip_damage(self) -> str | None:
        """As `FileWindow.skip_damage`: the next member that inflates."""
        damaged = self._at
        found = self._next_header(damaged)
        if found is None:
            return None
        self._at = found
        self._begin_member()
        return self._go_on(damaged, found)

    def _begin_member(self) -> None:
        self._inflater = zlib.decompressobj(31)
        self._pending = b""
        self._step = _PIECE_BYTES
        self._member_began = False
        self._is_whole = False  # known to come to its end

    def _unpack(self, room: int) -> bytes:
        if self._inflater.eof:
            self._skip_padding()
            self._begin_member()
        if not self._pending:
            self._pending = self._read()
        piece = self._pending[: self._step]
        before = self._inflater.copy()
        try:
            inflated = self._inflater.decompress(piece, room)
        except zlib.error as error:
            # zlib keeps what it inflated before the damage to itself: try again in smaller steps.
            if len(piece) > 1:
                self._inflater, self._step = before, len(piece) // 2
            else:
                self._stop(f"gzip data is corrupt before compressed byte {self._at + 1}: {error}")
            return b""
        used = len(piece) - len(self._inflater.unconsumed_tail) - len(self._inflater.unused_data)
        self._at += used
        self._pending = self._pending[used:]
        self._member_began = self._member_began or used > 0
        if not piece and not inflated:
            self._stop(f"gzip data ends early, at compressed byte {self._at}" if self._member_began else None)
        return inflated

    def _skip_padding(self) -> None:
        """Skip zero bytes: they may pad the end of a file."""
        while piece := self._peek(_PIECE_BYTES):
            rest = piece.lstrip(b"\0")
            self._at += len(piece) - len(rest)
            if rest:
                return

    def _read(self) -> bytes:
        """Return the next packed bytes: up to the next header of a member, so that each header is looked at first."""
        piece = self._peek(_PIECE_BYTES + len(_GZIP_HEADER) - 1)
        if self._member_began and piece.startswith(_GZIP_HEADER) and self._is_cut():
            return b""
        header = piece.find(_GZIP_HEADER, 1)
        return piece[: header if header > 0 else _PIECE_BYTES]

    def _is_cut(self) -> bool:
        """True if the member ends here without its end: another one begins here, and this one never comes to its end.

        Only the checksum tells: noise, too, may inflate for long without an error.
        """
        if self._is_whole or not _inflates(zlib.decompressobj(31), self._peek(_PIECE_BYTES)):
            return False
        self._is_whole = self._comes_to_its_end()
        return not self._is_whole

    def _comes_to_its_end(self) -> bool:
        inflater, at = self._inflater.copy(), self._at
        while not inflater.eof and (packed := os.pread(self._file.fileno(), _PIECE_BYTES, at)):
            if not _inflates(inflater, packed):
                return False
            at += len(packed)
        return bool(inflater.eof)

    def _next_header(self, at: int) -> int | None:
        """Return where the next member that inflates begins, from byte `at` on."""
        while piece := os.pread(self._file.fileno(), _SEARCHED_BYTES, at):
            header = piece.find(_GZIP_HEADER)
            if header < 0:
                at += max(1, len(piece) - len(_GZIP_HEADER) + 1)
            elif _inflates(zlib.decompressobj(31), os.pread(self._file.fileno(), _PIECE_BYTES, at + header)):
                return at + header
            else:
                at += header + 1
        return None

    def _peek(self, size: int) -> bytes:
        return os.pread(self._file.fileno(), size, self._at)

    def close(self) -> None:  # noqa: D102 - as FileWindow says
        self._file.close()


def _inflates(inflater: Any, packed: bytes) -> bool:
    """True if these packed bytes inflate without an error, to their end or that of a member."""
    try:
        while packed and not inflater.eof:
            inflater.decompress(packed, _SEARCHED_BYTES)
            packed = inflater.unconsumed_tail
    except zlib.error:
        return False
    return True
