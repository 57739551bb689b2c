"""The first messages of a subscription, decoded by their schema, as lines of text."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import numpy

from blackbox.memory import shared_array
from blackbox.schema import RAW, SCHEMA_GROUP, Schema, load_schema

if TYPE_CHECKING:
    from blackbox.batch import Batch, Message

_LINE_BYTES = 2_000
_RAW_BYTES = 48


class Shown:
    """Lines about the first `limit` messages, from callbacks in this process or in ones that were forked from it.

    They travel through a pipe, so that one thread of this process prints them all.
    """

    def __init__(self, limit: int, print_line: Callable[[str], object]) -> None:
        self._left = shared_array((1,), numpy.int64)
        self._left[0] = limit
        self._limit = limit
        self._print = print_line
        self._reader, self._writer = os.pipe()
        self._thread = threading.Thread(target=self._read, name="blackbox-shown", daemon=True)

    def start(self) -> None:
        """Begin to print: after the processes were forked."""
        self._thread.start()

    def offer(self, batch: Batch) -> None:
        """Show the batch's messages as long as the limit allows."""
        # Two slices may both take the last place; the reader keeps to the limit.
        for message in batch if self._left[0] > 0 else ():
            if self._left[0] <= 0:
                return
            self._left[0] -= 1
            line = describe(message, schema_of(batch.block.schema_id)).encode(errors="backslashreplace")
            os.write(self._writer, line[:_LINE_BYTES] + b"\n")

    def close(self) -> None:
        """Print what is left. Call when no callback runs any more."""
        os.close(self._writer)
        self._thread.join()

    def _read(self) -> None:
        with os.fdopen(self._reader, encoding="utf-8", errors="replace") as lines:
            for number, line in enumerate(lines):
                if number < self._limit:
                    self._print(line.rstrip("\n"))


def describe(message: Message, schema: Schema) -> str:
    """A message in one line: time at the venue, topic, then the fields of its record or its bytes."""
    payload = message.payload
    kind = chr(payload[schema.type_offset]) if len(payload) > schema.type_offset else ""
    dtype = schema.records.get(kind)
    if dtype is None or dtype.itemsize != len(payload):
        more = "..." if len(payload) > _RAW_BYTES else ""
        what = f"{payload[:_RAW_BYTES]!r}{more}"
    else:
        record = numpy.frombuffer(payload, dtype, 1)[0]
        what = " ".join(f"{name}={_text(dtype[name], record[name])}" for name in dtype.names or ())
    return f"{_time(message.ts_event)} {message.topic.decode(errors='backslashreplace')} {what}"


def _text(dtype: numpy.dtype[Any], value: Any) -> str:
    metadata = dict(dtype.metadata or {})
    if "decimals" in metadata:
        return f"{int(value) / 10 ** metadata['decimals']:.{metadata['decimals']}f}"
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace").rstrip() or "-"
    if dtype.shape:
        return str(int.from_bytes(value.tobytes(), "big"))
    return str(value)


def _time(ts_event: int) -> str:
    if ts_event <= 0:
        return "-"
    seconds, nanoseconds = divmod(ts_event, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{nanoseconds:09d}Z"


@cache
def schema_of(schema_id: int) -> Schema:
    """The registered schema of a number in a block's header; plain bytes when it is not known here."""
    for entry in entry_points(group=SCHEMA_GROUP):
        schema = load_schema(entry.name)
        if schema.schema_id == schema_id:
            return schema
    return RAW
