"""A zstd file's bytes in bounded memory, unpacked piece by piece. Source: RFC 8878.

frame:  magic number 4 | header | block, block, ... | checksum 4, if the header says so
block:  3 bytes: last 1 bit, type 2 bits, size 21 bits | content
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import BinaryIO

from blackbox.errors import ConfigError
from blackbox_feeds.io.window import PackedWindow

_PIECE_BYTES = 1 << 12
"""Packed bytes per call. Few: the library has no limit, and 4 of them may decompress to 128 KiB."""
_MAGIC = b"\x28\xb5\x2f\xfd"
_SKIPPABLE = b"\x2a\x4d\x18"
"""The magic number of a skippable frame, without its first byte, which may vary."""
_LONGEST_HEAD = 18
_LONGEST_BLOCK = 1 << 17
_RLE, _RESERVED = 1, 3
_SEARCHED_BYTES = 1 << 20


class ZstdWindow(PackedWindow):
    """The bytes of one zstd file: all its frames, without the skippable ones.

    A cut frame ends where the next one begins.

    Raises:
        ConfigError: `zstandard` is not installed.
    """

    def __init__(self, path: str, file: BinaryIO, window_bytes: int) -> None:
        super().__init__(path, window_bytes)
        self._file = file
        self._library = _zstandard()
        self._at = 0
        self._begin_frame()
        self.slide(0)

    def skip_damage(self) -> str | None:
        """Skip damage as `FileWindow.skip_damage`, to the next frame that decompresses."""
        damaged = self._at
        found = self._next_frame(self._frame_start + 1)  # blocks of a cut frame may reach far into the next ones
        if found is None:
            return None
        self._at = found
        self._begin_frame()
        return self._go_on(min(damaged, found), found)

    def _begin_frame(self) -> None:
        self._frame = self._library.ZstdDecompressor().decompressobj()
        self._frame_start = self._at
        self._frame_bytes = 0
        self._is_whole = False  # True once its end is certain
        self._unpacked = memoryview(b"")
        self._damage: str | None = None

    def _unpack(self, room: int) -> bytes:
        if not self._unpacked:
            self._read()
        taken, self._unpacked = self._unpacked[:room], self._unpacked[room:]
        return bytes(taken)

    def _read(self) -> None:
        if self._damage is not None:
            self._stop(self._damage)
            return
        if self._frame.eof:
            self._begin_frame()  # another frame may follow in the same file
        piece = self._next_piece()
        if not piece:
            has_begun = self._at > self._frame_start
            self._stop(f"zstd data ends early, at packed byte {self._at}" if has_begun else None)
            return
        try:
            unpacked = self._frame.decompress(piece)
        except self._library.ZstdError as error:
            self._unpacked = memoryview(self._before_damage(self._at + len(piece)))
            self._damage = f"zstd data is corrupt after packed byte {self._at - 1}: {error}"
            return
        self._unpacked = memoryview(unpacked)
        self._frame_bytes += len(unpacked)
        self._at += len(piece) - len(self._frame.unused_data)

    def _next_piece(self) -> bytes:
        """Return the next packed bytes, up to the next magic number, so that each is checked first."""
        piece = self._peek(_PIECE_BYTES + len(_MAGIC) - 1, self._at)
        if self._at > self._frame_start and piece.startswith(_MAGIC) and self._is_cut():
            return b""
        magic = piece.find(_MAGIC, 1)
        return piece[: magic if magic > 0 else _PIECE_BYTES]

    def _is_cut(self) -> bool:
        """True if the frame ends here prematurely: another one begins here, and the blocks do not lead to an end.

        Without this check the first bytes of the next frame would be decompressed as a block.
        """
        if self._is_whole or not self._begins_frame(self._at):
            return False
        self._is_whole = self._end_of(self._frame_start) is not None
        return not self._is_whole

    def _begins_frame(self, at: int) -> bool:
        """Return True if a frame begins here whose first blocks decompress, up to the next magic number."""
        packed = self._peek(2 * _LONGEST_BLOCK, at)
        magic = packed.find(_MAGIC, 1)
        packed = packed[:magic] if magic > 0 else packed
        frame = self._library.ZstdDecompressor().decompressobj()
        try:
            for start in range(0, len(packed), _PIECE_BYTES):
                frame.decompress(packed[start : start + _PIECE_BYTES])
                if frame.eof:
                    break
        except self._library.ZstdError:
            return False
        return True

    def _next_frame(self, at: int) -> int | None:
        """Return where the next frame that decompresses begins, from packed byte `at` on."""
        while piece := self._peek(_SEARCHED_BYTES, at):
            magic = piece.find(_MAGIC)
            if magic < 0:
                at += max(1, len(piece) - len(_MAGIC) + 1)
            elif self._begins_frame(at + magic):
                return at + magic
            else:
                at += magic + 1
        return None

    def _end_of(self, at: int) -> int | None:
        """Return where the frame at `at` ends; None if its blocks lead neither to another frame nor the file's end."""
        head = self._peek(_LONGEST_HEAD, at)
        try:
            at += self._library.frame_header_size(head)
            checksum_bytes = 4 if self._library.get_frame_parameters(head).has_checksum else 0
        except (self._library.ZstdError, ValueError):
            return None
        is_last = False
        while not is_last:
            head = self._peek(3, at)
            word = int.from_bytes(head, "little")
            is_last, kind, size = bool(word & 1), word >> 1 & 3, word >> 3
            if len(head) < 3 or kind == _RESERVED or size > _LONGEST_BLOCK:
                return None
            at += 3 + (1 if kind == _RLE else size)
        at += checksum_bytes
        behind = self._peek(len(_MAGIC), at)
        is_end = behind == _MAGIC or behind[1:] == _SKIPPABLE or at == os.fstat(self._file.fileno()).st_size
        return at if is_end else None

    def _before_damage(self, end: int) -> bytes:
        """Return the rest of a damaged frame up to the first byte that cannot be decompressed; `_at` is after it.

        A failing call returns none of the bytes before `end` that it has decompressed. So the frame is decompressed
        again, its end byte by byte.
        """
        done, rest = 0, bytearray()
        frame = self._library.ZstdDecompressor().decompressobj()
        self._at = self._frame_start
        while piece := self._peek(1 if self._at >= end - 2 * _PIECE_BYTES else _PIECE_BYTES, self._at):
            self._at += len(piece)
            try:
                unpacked = frame.decompress(piece)
            except self._library.ZstdError:
                break
            rest += unpacked[max(0, self._frame_bytes - done) :]
            done += len(unpacked)
        return bytes(rest)

    def _peek(self, size: int, at: int) -> bytes:
        return os.pread(self._file.fileno(), size, at)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _zstandard() -> ModuleType:
    try:
        import zstandard
    except ImportError as error:
        raise ConfigError(
            "a zstd file needs zstandard, which is not installed: pip install 'blackbox-md[compression]'"
        ) from error
    return zstandard
