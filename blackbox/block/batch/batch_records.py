"""Records of a batch as objects with fields: all at once, or one by one."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from blackbox.block.batch.batch import Batch, Message

_MANY_RECORDS: Final = 16
"""Least number of messages for which wrapping all records at once is faster than one by one."""


def read_records(batch: Batch) -> Sequence[Any]:
    """Return all records at once if many are of one type; else nothing: they are then read one by one."""
    schema, block = batch.schema, batch.block
    if schema is None:
        raise ValueError("this message has no schema: give the feed one, or read payload")
    if block.is_fixed and len(batch) >= _MANY_RECORDS and block.stride > schema.type_offset:
        payloads = batch.payloads()
        types = payloads[:, schema.type_offset]
        if (types == types[0]).all():
            kind = schema.record_type(chr(types[0]))
            if ctypes.sizeof(kind) == block.stride:
                found: Sequence[Any] = (kind * len(batch)).from_buffer_copy(payloads)
                return found
    return ()


def read_record(message: Message) -> Any:
    """Return the record of one message. Raises as `Message.record`."""
    schema: Any = message.batch.schema
    payload = message.payload
    if payload is None:
        raise ValueError(f"{_named(message)} had no value, expected a record")
    if len(payload) <= schema.type_offset:
        raise ValueError(f"{_named(message)} had {len(payload)} bytes, expected a type at byte {schema.type_offset}")
    type_ = chr(payload[schema.type_offset])
    kind = schema.record_type(type_)
    if len(payload) != ctypes.sizeof(kind):
        raise ValueError(
            f"{_named(message)} is of type {type_!r} but has {len(payload)} bytes, expected {ctypes.sizeof(kind)}"
        )
    return kind.from_buffer_copy(payload)


def _named(message: Message) -> str:
    return f"message {message.sequence} of topic {message.topic!r}"
