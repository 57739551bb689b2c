"""The newest trade and quote in a batch, as the feed's schema declares them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from blackbox.archive.export.members import number, reader_of
from blackbox.block.batch.batch import Batch
from blackbox.block.batch.plain_message import fields_of
from blackbox.feed.schema.schema import Schema

_MOST_ROWS: Final = 64
"""Rows of a batch, from its end, that are searched for a trade: others do not count as one."""

Read = Callable[[bytes], tuple[Any, ...]]


class Trade(NamedTuple):
    """A trade's price and size."""

    price: float
    size: float


class Quote(NamedTuple):
    """Best bid and ask; None: no such side."""

    bid: float | None
    bid_size: float | None
    ask: float | None
    ask_size: float | None


class _Kind(NamedTuple):
    message_type: str
    read: Read
    only: str | int | None
    """Value of the last field that counts; None: any."""


class TickReader:
    """Reads batches of one schema."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        lowest = min((each.rank for each in schema.trades), default=0)
        self._trades = [
            _Kind(
                each.message_type,
                _reader(schema, (each.price, each.size, each.only[0] if each.only else None)),
                each.only[1] if each.only else None,
            )
            for each in schema.trades
            if each.price is not None and each.rank == lowest
        ]
        self._quotes = [
            _Kind(
                each.message_type, _reader(schema, (each.bid_price, each.bid_size, each.ask_price, each.ask_size)), None
            )
            for each in schema.quotes
        ]

    def trade(self, batch: Batch) -> Trade | None:
        """Return the last trade with a price, or None."""
        for kind in self._trades:
            for price, size, only in self._rows(batch, kind):
                value = number(price)
                if value is not None and (kind.only is None or only == kind.only):
                    return Trade(value, number(size) or 0.0)
        return None

    def quote(self, batch: Batch) -> Quote | None:
        """Return the last quote, or None."""
        for kind in self._quotes:
            for values in self._rows(batch, kind):
                return Quote(*map(number, values))
        return None

    def _rows(self, batch: Batch, kind: _Kind) -> Iterator[tuple[Any, ...]]:
        """Yield the fields of the last messages of a type, newest first."""
        if self._schema.json is not None:
            suffix = kind.message_type.encode()
            rows = [row for row, topic in enumerate(batch.topics_per_message()) if topic.endswith(suffix)]
        else:
            rows = batch.indices(kind.message_type).tolist()
        for row in reversed(rows[-_MOST_ROWS:]):
            payload = batch.payload(row)
            if payload is not None:
                yield kind.read(bytes(payload))


def _reader(schema: Schema, names: tuple[str | None, ...]) -> Read:
    """Return a function that reads these fields of a payload."""
    if schema.json is not None:
        return reader_of(schema.json, names)

    def read(payload: bytes) -> tuple[Any, ...]:
        fields = fields_of(payload, schema) or {}
        return tuple(fields.get(name) if name else None for name in names)

    return read
