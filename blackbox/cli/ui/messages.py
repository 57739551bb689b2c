"""Format messages decoded by their schema."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from blackbox.block.batch.plain_message import fields_of
from blackbox.notebook import escaped
from blackbox.numbers import NOTHING
from blackbox.timestamps import time_text

if TYPE_CHECKING:
    from blackbox.block.batch.batch import Message
    from blackbox.feed.schema.schema import Schema

_RAW_BYTES = 48


def describe(message: Message, schema: Schema, names: Collection[str] | None = None) -> str:
    """Return a message as one line: venue time, topic, then its fields, or its bytes if the schema has none.

    `names`: only these fields.
    """
    payload, fields = message.payload, fields_of(message.payload, schema)
    if fields is not None and names is not None:
        fields = {name: value for name, value in fields.items() if name in names}
    if payload is None:
        what = "deleted"
    elif fields is None:
        what = f"{payload[:_RAW_BYTES]!r}{'...' if len(payload) > _RAW_BYTES else ''}"
    else:
        what = " ".join(f"{name}={NOTHING if value in ('', None) else value}" for name, value in fields.items())
    time = time_text(message.ts_event, 9) if message.ts_event > 0 else NOTHING
    return escaped(" ".join(filter(None, (time, message.topic.decode(errors="backslashreplace"), what))))
