"""Messages as plain values: fields by name, and objects for JSON."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any

import numpy

from blackbox.feed.schema.schema import ABSENT, DECIMALS, Schema

if TYPE_CHECKING:
    from blackbox.block.batch.batch import Message


def as_object(message: Message, schema: Schema | None) -> dict[str, Any]:
    """Return a message as a JSON object: `record` has its fields by name.

    Without a schema for it, `payload` has its bytes in base64; null if it has no value.
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


def fields_of(payload: bytes | None, schema: Schema) -> dict[str, int | float | str | None] | None:
    """Return a payload's fields by name; None if the schema has no such record.

    Prices are texts with all decimals. A field is None if the venue gave no value.
    """
    if payload is None:
        return None
    kind = chr(payload[schema.type_offset]) if len(payload) > schema.type_offset else ""
    dtype = schema.records.get(kind)
    if dtype is None or dtype.itemsize != len(payload):
        return None
    meanings = schema._meanings.get(kind)
    if meanings is None:  # not cached by dtype: dtypes that differ only in metadata are equal
        meanings = schema._meanings[kind] = _meanings_of(dtype)
    record = numpy.frombuffer(payload, dtype, 1)[0]
    return {name: _plain(record[name], decimals, absent) for name, decimals, absent in meanings}


def decimal_text(value: int, decimals: int) -> str:
    """Return a scaled integer with its decimal point: 123450 with 4 decimals is `12.3450`."""
    digits = f"{abs(value):0{decimals + 1}d}"
    sign = "-" if value < 0 else ""
    return f"{sign}{digits[: len(digits) - decimals]}.{digits[len(digits) - decimals :]}" if decimals else sign + digits


def _meanings_of(dtype: numpy.dtype[Any]) -> list[tuple[str, int | None, int | None]]:
    """Return each field of a record with its decimals (None: not a price) and its absent value (None: none)."""
    told = [(name, dict(dtype[name].metadata or {})) for name in dtype.names or ()]
    return [(name, meaning.get(DECIMALS), meaning.get(ABSENT)) for name, meaning in told]


def _plain(value: Any, decimals: int | None, absent: int | None) -> int | float | str | None:
    if absent is not None and value == absent:
        return None
    if decimals is not None:
        return decimal_text(int(value), decimals)
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace").rstrip()
    if isinstance(value, numpy.ndarray):
        return int.from_bytes(value.tobytes(), "big")
    plain: int | float | str = value.item()
    return plain
