"""A file's bytes in bounded memory: mapped if plain, decompressed piece by piece if gzip or zstd.

    plain:  data = the whole file, mapped; nothing is ever copied
    packed: data = [ rest of the last window | newly decompressed bytes ], a new buffer each time,
            so that old arrays stay valid

The first bytes decide which it is, not the name.
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
"""Decompressed bytes of a file held at a time. Unit: bytes."""
_PIECE_BYTES = 1 << 16
_RELEASE_BYTES = 32 << 20
_GZIP_HEADER = b"\x1f\x8b\x08"
_SEARCHED_BYTES = 1 << 20


class FileWindow(ABC):
    """A view of consecutive bytes of a file that moves towards its end.

    Use it in a `with` statement; `open_window` makes one. Arrays taken from `data` stay valid after the window has
    moved or closed.
    """

    path: str
    data: NDArray[numpy.uint8]
    """The bytes in view, read-only."""
    start: int
    """Offset of `data` in the decompressed file. Unit: bytes."""
    last: bool
    """True if nothing follows `data`."""
    fault: str | None = None
    """Fault of the compressed data, if that ended the file early."""

    @abstractmethod
    def slide(self, consumed: int) -> None:
        """Drop the first `consumed` bytes from view and refill after the rest.

        If nothing of a full window was consumed, the window grows. Only while `last` is False.
        """

    def skip_damage(self) -> str | None:
        """Show the bytes after a damaged part.

        Return a description of their position, or None if nothing more decompresses. Only if `last` is True and there
        is a `fault`. An unknown number of bytes is missing before `data`: the reader drops unused bytes, and the new
        ones may begin in the middle of a message.
        """
        return None

    def release(self, consumed: int) -> None:  # noqa: B027 - nothing to do unless mapped
        """Mark the first `consumed` bytes of `data` as used: they need not stay in memory."""

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
        """Return why the input ended at `position` in `data`, where a `noun` was expected.

        None if it ended properly, else one sentence.
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

    def slide(self, consumed: int) -> None:  # noqa: D102 - see FileWindow
        raise AssertionError(f"{self.path}: slid by {consumed}, but all of it is in view")

    def release(self, consumed: int) -> None:  # noqa: D102 - see FileWindow
        # Touched pages of the file count as this process's memory until they are released; later they are read again.
        done = consumed - consumed % _RELEASE_BYTES
        if self._map is not None and done > self._released:
            self._map.madvise(mmap.MADV_DONTNEED, self._released, done - self._released)
            self._released = done

    def close(self) -> None:  # noqa: D102 - see FileWindow
        # Chunks may still be held: the map is freed with the last array on it.
        self._map = None


class PackedWindow(FileWindow):
    """A window that a subclass fills by decompressing; it calls `slide(0)` when ready."""

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
        """Show what decompresses from packed byte `found` on, after damage at another; describe both positions."""
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

    A cut member ends where the next one begins: bytes after its last complete one would inflate to noise.
    """

    def __init__(self, path: str, file: BinaryIO, window_bytes: int) -> None:
        super().__init__(path, window_bytes)
        self._file = file
        self._at = 0
        self._begin_member()
        self.slide(0)

    def skip_damage(self) -> str | None:
        """Skip damage as `FileWindow.skip_damage`, to the next member that inflates."""
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
        self._is_whole = False  # True once its end is certain

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
            # zlib keeps what it inflated before the damage: try again in smaller steps.
            if len(piece) > 1:
                self._inflater, self._step = before, len(piece) // 2
            else:
                self._stop(f"gzip data is corrupt before compressed byte {self._at + 1}: {error}")
            return b""
        # At the end of a member, zlib may keep the rest of the piece in both attributes.
        left = self._inflater.unused_data if self._inflater.eof else self._inflater.unconsumed_tail
        used = len(piece) - len(left)
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
        """Return the next packed bytes, up to the next header of a member, so that each header is checked first."""
        piece = self._peek(_PIECE_BYTES + len(_GZIP_HEADER) - 1)
        if self._member_began and piece.startswith(_GZIP_HEADER) and self._is_cut():
            return b""
        header = piece.find(_GZIP_HEADER, 1)
        return piece[: header if header > 0 else _PIECE_BYTES]

    def _is_cut(self) -> bool:
        """True if the member ends here prematurely: another one begins here, and this one never reaches its end.

        Only the checksum decides: noise may inflate for long without an error.
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

    def close(self) -> None:  # noqa: D102 - see FileWindow
        self._file.close()


def _inflates(inflater: Any, packed: bytes) -> bool:
    """Return True if these packed bytes inflate without an error, to their end or that of a member."""
    try:
        while packed and not inflater.eof:
            inflater.decompress(packed, _SEARCHED_BYTES)
            packed = inflater.unconsumed_tail
    except zlib.error:
        return False
    return True
