"""Open a plain, gzip or zstd file, detected by its first bytes."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from blackbox.errors import SourceError
from blackbox_feeds.io.window import WINDOW_BYTES, FileWindow, InflatingWindow, MappedWindow
from blackbox_feeds.io.zstd_window import ZstdWindow

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_SKIPPABLE_KIND = 0x5
_SKIPPABLE_MAGIC = b"\x2a\x4d\x18"
"""A skippable frame starts with a byte of 0x50 to 0x5f and these three. `pzstd` puts one before each frame."""


def open_window(
    path: str | Path, window_bytes: int = WINDOW_BYTES, *, expected: str = "a file, plain or packed"
) -> FileWindow:
    """Open a file, plain, gzip or zstd, and show its first bytes. `expected`: what it should be, for the error.

    Raises:
        SourceError: the file cannot be opened or read, or is a pipe.
        ConfigError: it is zstd, and `zstandard` is not installed (extra `compression`).
    """
    name = str(path)
    try:
        if Path(path).is_fifo():  # opening a pipe would wait for its writer
            raise OSError("it is a pipe")
        with ExitStack() as stack:
            file = stack.enter_context(Path(path).open("rb"))
            magic = file.read(len(_ZSTD_MAGIC))
            file.seek(0)
            window: FileWindow
            if magic[:2] == _GZIP_MAGIC:
                window = InflatingWindow(name, file, window_bytes)
            elif magic == _ZSTD_MAGIC or (magic[1:] == _SKIPPABLE_MAGIC and magic[0] >> 4 == _SKIPPABLE_KIND):
                window = ZstdWindow(name, file, window_bytes)
            else:
                window = MappedWindow(name, file)
            stack.pop_all()  # from here on the window closes the file
            return window
    except OSError as error:
        raise SourceError(f"{name}: cannot be read: {error.strerror or error}, expected {expected}") from error
