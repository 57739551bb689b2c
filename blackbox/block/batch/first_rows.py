"""The first messages of a batch, recording or table as rows with readable values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy

from blackbox.block.batch.plain_message import fields_of
from blackbox.notebook import Cell, Rows, moment, period, view
from blackbox.numbers import byte_size

if TYPE_CHECKING:
    from blackbox.block.batch.batch import Batch
    from blackbox.feed.schema.schema import Schema

FIRST: Final = 5
"""Number of messages."""
_MOST_FIELDS: Final = 20
"""Maximum number of fields with a column each. Other messages have all fields in one column."""


class Row(NamedTuple):
    """A message."""

    ts_event: int
    topic: bytes
    payload: bytes | Any
    """None: no value."""
    schema: Schema | None


def rows_of(batch: Batch) -> Iterator[Row]:
    """Yield the first messages of a batch."""
    first = batch._of_rows(batch._all_rows()[:FIRST])
    for message in first.messages(count()):
        yield Row(message.ts_event, message.topic, message.payload, message.batch.schema)


def first_rows(messages: Iterable[Row], total: int, zone: str) -> Rows:
    """Return the first messages as a table. Fields have columns if all these messages have the same ones.

    Prices have their decimals, times are in `zone`, texts are decoded.
    """
    first = list(islice(messages, FIRST))
    fields = [None if each.schema is None else fields_of(each.payload, each.schema) for each in first]
    names = list(fields[0] or ()) if fields else []
    alike = 0 < len(names) <= _MOST_FIELDS and all(list(each or ()) == names for each in fields)
    cells = [
        (moment(each.ts_event, zone, 9), each.topic, *_contents(each, found, alike))
        for each, found in zip(first, fields, strict=True)
    ]
    return Rows((f"time, {zone}", "topic", *(names if alike else ["message"])), cells, total, "messages")


def _contents(row: Row, fields: dict[str, Any] | None, alike: bool) -> list[Cell]:
    if fields is None:
        return ["no value" if row.payload is None else row.payload]
    if alike:
        return [value if value is None else str(value) for value in fields.values()]
    return [" ".join(f"{name}={value}" for name, value in fields.items() if value not in ("", None))]


def batch_view(batch: Batch) -> str:
    """Return a batch as HTML."""
    times, ids = batch.ts_event, batch.slice_ids
    known = times[times > 0]
    marks = [name.removeprefix("is_") for name in ("is_image", "is_recorded", "conflated") if getattr(batch, name)]
    facts: dict[str, Cell] = {
        "feed": batch.feed or None,
        "messages": len(batch),
        "topics": len(numpy.unique(batch.topic_index)),
        "slice": ", ".join(map(str, numpy.unique(ids).tolist())) or None,
        "market time": period(int(known.min()), int(known.max()), "UTC") if len(known) else None,
        "sent": moment(batch.ts_out, "UTC"),
        "block": f"{batch.block.count:,} messages, {byte_size(batch.block.body.nbytes)}",
        **({"kind": ", ".join(marks)} if marks else {}),
    }
    return view("Batch", facts, first_rows(rows_of(batch), len(batch), "UTC"))
