"""Pack one message as a record of the ring."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import numpy

from blackbox.block.form.encode import Rows
from blackbox.errors import ConfigError
from blackbox.feed.schema.schema import Schema
from blackbox.publish.send.batcher import first_misfit, payload_of
from blackbox.publish.send.ring import RECORD_BYTES

MAX_PAYLOAD_BYTES: Final = 64 << 10
"""Larger messages are put in as blocks, not as records."""


def bytes_of(payload: object) -> bytes:
    """Return a payload as bytes. Raises TypeError for lists, dicts and numbers, which `bytes` itself would convert."""
    if isinstance(payload, bytes):
        return bytes(payload)  # not a subclass, such as numpy.bytes_
    try:
        return memoryview(payload).tobytes()  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"payload was {payload!r:.80}, expected bytes or another buffer of bytes") from None


class LargePayloadError(Exception):
    """A payload is larger than MAX_PAYLOAD_BYTES."""


class FullError(Exception):
    """Room is not certain; use `put_waiting`."""


_Packer = tuple[Callable[..., None], int, int, int, frozenset[int] | None]


class Packers(dict[int, _Packer]):
    """The packers by payload size: pack function, sizes of record and payload, offset of the type byte, type bytes.

    The type bytes are those whose records have this size; None if payloads have no types. Raises LargePayloadError.
    """

    null = struct.Struct("<iIq").pack_into
    """Packs a record without a payload, with NO_VALUE as its size."""

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        self.schema = schema
        self._record_bytes = numpy.zeros(256, numpy.int64)
        """Size of the records of each type byte; 0: not in the schema."""
        for kind, dtype in schema.records.items():
            self._record_bytes[ord(kind)] = dtype.itemsize

    def __missing__(self, payload_bytes: int) -> _Packer:
        if payload_bytes > MAX_PAYLOAD_BYTES:
            raise LargePayloadError
        size = (RECORD_BYTES + payload_bytes + 7) & -8
        records, pack = self.schema.records, struct.Struct(f"<IIq{payload_bytes}s").pack_into
        kinds = frozenset(ord(kind) for kind, dtype in records.items() if dtype.itemsize == payload_bytes)
        packer = self[payload_bytes] = pack, size, payload_bytes, self.schema.type_offset, kinds if records else None
        return packer

    def check(self, payload: bytes) -> None:
        """Raise ConfigError unless the payload is a record of the schema."""
        if (why := self.schema.misfit(payload)) is not None:
            raise ConfigError(why)

    def check_rows(self, rows: Rows, count: int) -> None:
        """Raise ConfigError unless each payload is a record of the schema."""
        if not self.schema.records:
            return
        row = first_misfit(rows, count, self.schema.type_offset, self._record_bytes)
        if row >= 0:
            raise ConfigError(f"message {row}: {self.schema.misfit(payload_of(rows, row))}; nothing was published")
