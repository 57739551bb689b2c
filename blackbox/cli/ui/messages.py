"""Messages decoded by their schema: as one line of text, and as fields by name."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy

from blackbox.feed.schema import DECIMALS, Schema
from blackbox.report.numbers import NOTHING
from blackbox.timestamps import time_text

if TYPE_CHECKING:
    from blackbox.block.batch import Message

_RAW_BYTES = 48


def describe(message: Message, schema: Schema) -> str:
    """Return a message as one line: time at the venue, topic, then its fields, or its bytes if the schema has none."""
    payload, fields = message.payload, fields_of(message.payload, schema)
    if payload is None:
        what = "deleted"
    elif fields is None:
        what = f"{payload[:_RAW_BYTES]!r}{'...' if len(payload) > _RAW_BYTES else ''}"
    else:
        what = " ".join(f"{name}={NOTHING if value == '' else value}" for name, value in fields.items())
    time = time_text(message.ts_event, 9) if message.ts_event > 0 else NOTHING
    return f"{time} {message.topic.decode(errors='backslashreplace')} {what}"


def fields_of(payload: bytes | None, schema: Schema) -> dict[str, int | float | str] | None:
    """Return a payload's fields by name, prices as texts with all decimals; None if the schema has no such record."""
    if payload is None:
        return None
    kind = chr(payload[schema.type_offset]) if len(payload) > schema.type_offset else ""
    dtype = schema.records.get(kind)
    if dtype is None or dtype.itemsize != len(payload):
        return None
    record = numpy.frombuffer(payload, dtype, 1)[0]
    return {name: _plain(record[name], decimals) for name, decimals in _decimals_of(dtype)}


def decimal_text(value: int, decimals: int) -> str:
    """Return a scaled integer with its decimal point: 123450 with 4 decimals is `12.3450`."""
    digits = f"{abs(value):0{decimals + 1}d}"
    sign = "-" if value < 0 else ""
    return f"{sign}{digits[: len(digits) - decimals]}.{digits[len(digits) - decimals :]}" if decimals else sign + digits


@cache
def _decimals_of(dtype: numpy.dtype[Any]) -> list[tuple[str, int | None]]:
    """Return the fields of a record, each with its decimals; None: it is no price."""
    return [(name, dict(dtype[name].metadata or {}).get(DECIMALS)) for name in dtype.names or ()]


def _plain(value: Any, decimals: int | None) -> int | float | str:
    if decimals is not None:
        return decimal_text(int(value), decimals)
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace").rstrip()
    if isinstance(value, numpy.ndarray):
        return int.from_bytes(value.tobytes(), "big")
    plain: int | float | str = value.item()
    return plain
