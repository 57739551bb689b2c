"""A zstd file's bytes in bounded memory, unpacked piece by piece. Source: RFC 8878."""

from __future__ import annotations

from types import ModuleType
from typing import BinaryIO

from blackbox.errors import ConfigError
from blackbox_feeds.io.window import PackedWindow

_PIECE_BYTES = 1 << 12
"""Packed bytes unpacked at a time. Few: the library sets no bound, and 4 of them may unpack to 128 KiB."""


class ZstdWindow(PackedWindow):
    """The bytes of one zstd file, all frames of it.

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
        self._frame = self._library.ZstdDecompressor().decompressobj()
        self._frame_began = False
        self._pending = b""
        self._unpacked = memoryview(b"")
        self.slide(0)

    def _unpack(self, room: int) -> bytes:
        if not self._unpacked:
            self._read()
        taken, self._unpacked = self._unpacked[:room], self._unpacked[room:]
        return bytes(taken)

    def _read(self) -> None:
        piece = self._pending or self._file.read(_PIECE_BYTES)
        self._pending = b""
        if not piece:
            end = self._file.tell()
            self._stop(f"zstd data ends early, at packed byte {end}" if self._frame_began else None)
            return
        try:
            self._unpacked = memoryview(self._frame.decompress(piece))
        except self._library.ZstdError as error:
            before = self._file.tell() - len(piece)
            self._stop(f"zstd data is corrupt after packed byte {before}: {error}")
            return
        self._frame_began = not self._frame.eof
        if self._frame.eof:
            # Frames may follow one another in one file.
            self._pending = self._frame.unused_data
            self._frame = self._library.ZstdDecompressor().decompressobj()

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
