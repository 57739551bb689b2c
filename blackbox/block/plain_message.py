"""Messages as plain values: their fields by name, and as objects to be written as JSON."""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy

from blackbox.feed.schema import DECIMALS, Schema

if TYPE_CHECKING:
    from blackbox.block.batch import Message


def as_object(message: Message, schema: Schema | None) -> dict[str, Any]:
    """Return a message as it is written in JSON: `record` has its fields by name.

    Where the schema knows no such record, or is None, `payload` has its bytes in base64; null: it has no value.
    """
    found: dict[str, Any] = {
        "topic": message.topic.decode(errors="backslashreplace"),
        "ts_event": message.ts_event,
        "slice": message.slice_id,
        "epoch": message.epoch,
        "sequence": message.sequence,
    }
    payload = message.payload
    fields = None if schema is None else fields_of(payload, schema)
    if fields is not None:
        found["record"] = fields
    else:
        found["payload"] = None if payload is None else b64encode(payload).decode()
    return found


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
