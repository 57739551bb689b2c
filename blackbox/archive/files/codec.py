"""Compress and decompress bodies. Compression libraries are imported on first use."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final, Literal

import numpy
from numpy.typing import NDArray

from blackbox.archive.files.format import CODEC_LZ4, CODEC_NONE, CODEC_ZSTD
from blackbox.block.form.format import MAX_BODY_BYTES
from blackbox.errors import JournalError

Compression = Literal["none", "lz4", "zstd"]

BLOCK_BYTES: Final = 256 << 10
"""Default maximum size of a merged block."""
CODECS: Final = {"none": CODEC_NONE, "lz4": CODEC_LZ4, "zstd": CODEC_ZSTD}
"""The code of each codec in a record's head."""
_ALIGNMENT: Final = 8
_ZSTD_LEVEL: Final = 1
"""50 % faster than level 3 on real bodies, for at most 7 % more bytes: `make bench ONLY=compression`."""


def check_packing(compression: str, block_bytes: int) -> None:
    """Raise ValueError for an invalid setting, JournalError if the codec's library is not installed."""
    if compression not in CODECS:
        raise ValueError(f"compression was {compression!r}, expected one of: {', '.join(CODECS)}")
    if not 1 << 10 <= block_bytes <= MAX_BODY_BYTES:
        raise ValueError(f"block_bytes were {block_bytes}, expected {1 << 10} to {MAX_BODY_BYTES}")
    compress(compression, b"")


def compress(name: str, data: Any) -> bytes:
    """Compress a buffer with the codec `name`, one of `CODECS`.

    Raises JournalError for an unknown codec or if its library is not installed.
    """
    codec = CODECS.get(name)
    if codec is None:
        raise JournalError(f"compression was {name!r}, expected one of: {', '.join(CODECS)}")
    if codec == CODEC_LZ4:
        packed: bytes = _lz4().compress(data, store_size=False)
        return packed
    if codec == CODEC_ZSTD:
        frame: bytes = _zstandard().ZstdCompressor(level=_ZSTD_LEVEL).compress(data)
        return frame
    return bytes(data)


def decompress(codec: int, data: Any, size: int) -> NDArray[numpy.uint8]:
    """Decompress a stored body to `size` bytes: uint8[size], 8-byte aligned, read-only.

    Raises JournalError if its size differs, it is damaged, or the codec's library is not installed.
    """
    if codec == CODEC_NONE:
        body = numpy.frombuffer(data, numpy.uint8) if len(data) else numpy.empty(0, numpy.uint8)
    elif codec == CODEC_LZ4:
        body = _unpacked(_lz4(), data, size)
    elif codec == CODEC_ZSTD:
        body = _unframed(_zstandard(), data, size)
    else:
        raise JournalError(f"the codec of a body was {codec}, expected one of: {', '.join(map(str, CODECS.values()))}")
    if len(body) != size:
        raise JournalError(f"a body had {len(body)} bytes unpacked, expected {size}")
    return body if body.ctypes.data % _ALIGNMENT == 0 else body.copy()


def _unpacked(lz4: ModuleType, data: Any, size: int) -> NDArray[numpy.uint8]:
    try:
        return numpy.frombuffer(lz4.decompress(data, uncompressed_size=size), numpy.uint8)
    except (lz4.LZ4BlockError, ValueError) as error:
        raise JournalError(f"a body did not unpack: {error}") from error


def _unframed(zstandard: ModuleType, data: Any, size: int) -> NDArray[numpy.uint8]:
    # The size in the frame may be damaged, so it is checked before memory is allocated.
    try:
        told = zstandard.frame_content_size(data)
        if told not in (-1, size):
            raise JournalError(f"a body had {told} bytes unpacked, expected {size}")
        return numpy.frombuffer(zstandard.ZstdDecompressor().decompress(data, max_output_size=size), numpy.uint8)
    except zstandard.ZstdError as error:
        raise JournalError(f"a body did not unpack: {error}") from error


def _lz4() -> ModuleType:
    try:
        import lz4.block
    except ImportError as error:
        raise JournalError(_missing("lz4")) from error
    module: ModuleType = lz4.block
    return module


def _zstandard() -> ModuleType:
    try:
        import zstandard
    except ImportError as error:
        raise JournalError(_missing("zstandard")) from error
    return zstandard


def _missing(library: str) -> str:
    return (
        f"this recording's compression needs {library}, which is not installed: pip install 'blackbox-md[compression]'"
    )
