"""A zstd file's bytes in bounded memory, unpacked piece by piece. Source: RFC 8878."""

from __future__ import annotations

from types import ModuleType
from typing import BinaryIO

from blackbox.errors import ConfigError
from blackbox_feeds.io.window import PackedWindow

_PIECE_BYTES = 1 << 12
"""Packed bytes unpacked at a time. Few: the library sets no bound, and 4 of them may unpack to 128 KiB."""


class ZstdWindow(PackedWindow):
    """The bytes of one zstd file: all its frames, without the skippable ones.

    Raises:
        ConfigError: `zstandard` is not installed.
    """

    def __init__(self, path: str, file: BinaryIO, window_bytes: int) -> None:
        super().__init__(path, window_bytes)
        self._file = file
        try:
            self._library = _zstandard()
        except ConfigError:
            file.close()
            raise
        self._pending = b""
        self._unpacked = memoryview(b"")
        self._damage: str | None = None
        self._begin_frame()
        self.slide(0)

    def _begin_frame(self) -> None:
        self._frame = self._library.ZstdDecompressor().decompressobj()
        self._frame_start = self._file.tell() - len(self._pending)
        self._frame_began = False
        self._frame_bytes = 0

    def _unpack(self, room: int) -> bytes:
        if not self._unpacked:
            self._read()
        taken, self._unpacked = self._unpacked[:room], self._unpacked[room:]
        return bytes(taken)

    def _read(self) -> None:
        if self._damage is not None:
            self._stop(self._damage)
            return
        piece = self._pending or self._file.read(_PIECE_BYTES)
        self._pending = b""
        if not piece:
            end = self._file.tell()
            self._stop(f"zstd data ends early, at packed byte {end}" if self._frame_began else None)
            return
        try:
            unpacked = self._frame.decompress(piece)
        except self._library.ZstdError as error:
            self._unpacked = memoryview(self._before_damage())
            self._damage = f"zstd data is corrupt after packed byte {self._file.tell() - 1}: {error}"
            return
        self._unpacked = memoryview(unpacked)
        self._frame_bytes += len(unpacked)
        self._frame_began = True
        if self._frame.eof:
            # Another frame may follow in the same file.
            self._pending = self._frame.unused_data
            self._begin_frame()

    def _before_damage(self) -> bytes:
        """Return the rest of a damaged frame up to the first byte that cannot be unpacked, where the file is left.

        A call that fails returns nothing of what it has unpacked. So the frame is unpacked again, its end byte by byte.
        """
        end, done, rest = self._file.tell(), 0, bytearray()
        frame = self._library.ZstdDecompressor().decompressobj()
        self._file.seek(self._frame_start)
        while piece := self._file.read(1 if self._file.tell() >= end - 2 * _PIECE_BYTES else _PIECE_BYTES):
            try:
                unpacked = frame.decompress(piece)
            except self._library.ZstdError:
                break
            rest += unpacked[max(0, self._frame_bytes - done) :]
            done += len(unpacked)
        return bytes(rest)

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
