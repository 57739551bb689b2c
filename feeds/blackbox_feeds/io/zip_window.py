"""A member of a zip archive in bounded memory, inflated piece by piece; its checksum is checked at the end."""

from __future__ import annotations

import zipfile
import zlib
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Final

from blackbox.errors import SourceError
from blackbox_feeds.io.window import PackedWindow

_PIECE_BYTES: Final = 1 << 14
"""A small size, because a damaged piece is lost as a whole."""


class ZipWindow(PackedWindow):
    """The bytes of one member of a zip archive. `archive`: it, if it is open; its members share a descriptor.

    Raises:
        SourceError: the archive or member does not exist or cannot be read.
    """

    def __init__(self, path: Path, member: str, window_bytes: int, archive: zipfile.ZipFile | None = None) -> None:
        super().__init__(str(path), window_bytes)
        # A member stays readable after its archive is closed.
        with open_archive(path) if archive is None else nullcontext(archive) as opened:
            try:
                self._file: IO[bytes] = opened.open(member)
            except (OSError, RuntimeError, NotImplementedError, zipfile.BadZipFile) as error:
                raise SourceError(f"{path}: {member} in it cannot be read: {error}") from error
        self.slide(0)

    def _unpack(self, room: int) -> bytes:
        try:
            unpacked = self._file.read(min(room, _PIECE_BYTES))
        except (EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
            reason = str(error) or "it ends early"
            self._stop(f"zip data is corrupt: {reason}")
            return b""
        if not unpacked:
            self._stop(None)
        return unpacked

    def close(self) -> None:
        """Close the member."""
        self._file.close()


def open_archive(path: Path) -> zipfile.ZipFile:
    """Open a zip archive for reading.

    Raises:
        SourceError: it cannot be opened, or is not a complete zip archive.
    """
    try:
        if path.is_fifo():  # opening a pipe would wait for its writer
            raise OSError("it is a pipe")
        return zipfile.ZipFile(path)
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or error
        raise SourceError(f"{path}: cannot be read: {reason}, expected a whole zip archive") from error
