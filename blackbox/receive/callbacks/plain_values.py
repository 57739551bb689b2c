"""Callbacks with plain Python values: columns of a batch, values per message, and no `Message` objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import numpy
from numpy.typing import NDArray

from blackbox.arguments import did_you_mean
from blackbox.block.batch.batch import Batch, Message
from blackbox.errors import ConfigError
from blackbox.feed.schema.prices import Prices, in_form
from blackbox.feed.schema.schema import ABSENT, DECIMALS, Schema
from blackbox.receive.callbacks.callbacks import Callback, MisfitError

RECORD: Final = "record."
"""Prefix for a field of the schema with the same name as a field of the message itself."""


def _origins(place: int, of_batch: Callable[[Batch], int]) -> Callable[[Batch], list[int]]:
    def column(batch: Batch) -> list[int]:
        if batch.origins is None:
            return [of_batch(batch)] * len(batch)
        origins = batch.origins[place]
        return list((origins if batch.rows is None else origins[batch.rows]).tolist())

    return column


OWN: Final[dict[str, Callable[[Batch], list[Any]]]] = {
    "topic": Batch.topics_per_message,
    "symbol": Batch.symbols_per_message,
    "payload": Batch.payload_list,
    "ts_event": lambda batch: batch.ts_event.tolist(),
    "sequence": lambda batch: batch.sequence.tolist(),
    "ts_out": _origins(0, lambda batch: batch.ts_out),
    "ts_in": _origins(1, lambda batch: batch.ts_in),
    "ts_recv": _origins(2, lambda batch: batch.ts_recv),
    "slice_id": _origins(3, lambda batch: batch.block.slice_id),
    "epoch": _origins(4, lambda batch: batch.block.epoch),
}
"""Fields of the message itself: name, and a function that returns their values for a batch of one feed."""


class PlainCallback(Callback):
    """A callback per message with the values of `fields`, in that order, instead of a `Message`."""

    def __init__(
        self,
        fields: Sequence[str],
        prefix: bytes,
        function: Callable[..., Any],
        independent: bool,
        message_types: Sequence[str] | None,
        prices: Prices,
    ) -> None:
        super().__init__("message", prefix, function, independent=independent, message_types=message_types)
        self.fields = tuple(fields)
        self._prices = prices
        self._of_record = tuple(name.removeprefix(RECORD) for name in fields if name not in OWN)

    def check(self, schemas: Sequence[Schema | None]) -> None:
        """Raise ConfigError unless each field is one of the message itself, or of a type of these schemas."""
        super().check(schemas)
        known = {
            name for schema in schemas if schema for dtype in schema.records.values() for name in dtype.names or ()
        }
        for name in self.fields:
            if name in OWN or name.removeprefix(RECORD) in known:
                continue
            hint = did_you_mean(name, [*OWN, *sorted(known)])
            raise ConfigError(
                f"callback {self.name} for {self.prefix!r}: field was {name!r}, expected one of the message's own: "
                f"{', '.join(OWN)}; or of a record's{'' if known else ', but this feed has no records'}{hint}"
            )

    def calls(self, batch: Batch) -> tuple[Iterator[object], Iterator[object]]:
        """Return the calls, as `Callback.calls` does."""
        try:
            columns = self._columns(batch)
        except (
            ValueError,
            ConfigError,
        ):  # one message is unreadable: deliver one by one, so that its error comes in order
            places = iter(range(len(batch)))
            return map(self._call, batch.messages(places)), places
        first, *others = columns
        left = iter(first)
        return map(self.function, left, *others), left

    def _columns(self, batch: Batch) -> list[list[Any]]:
        parts = batch.split_by_feed()
        if len(parts) == 1:
            return self._columns_of_feed(batch)
        order = numpy.concatenate([places for places, _ in parts])
        columns = zip(*(self._columns_of_feed(part) for _, part in parts), strict=True)
        return [in_place(chain.from_iterable(column), order) for column in columns]

    def _columns_of_feed(self, batch: Batch) -> list[list[Any]]:
        record = iter(record_columns(batch, self._of_record, self._prices) if self._of_record else ())
        return [OWN[name](batch) if name in OWN else next(record) for name in self.fields]

    def _call(self, message: Message) -> object:
        """Call the function for one message. Raises MisfitError if its record is unreadable."""
        try:
            record = message.record if self._of_record and message.payload is not None else None
        except ValueError as error:
            raise MisfitError(str(error)) from error
        had = () if record is None else record._names_
        values = []
        for name in self.fields:
            field = name.removeprefix(RECORD)
            if name in OWN:
                values.append(getattr(message, name))
            else:
                values.append(_value(record, field, self._prices) if field in had else None)
        return self.function(*values)


def in_place(values: Iterable[Any], places: NDArray[Any]) -> list[Any]:
    """Return values ordered by their indices 0, 1, 2 ..."""
    if (places[1:] > places[:-1]).all():
        return list(values)
    return list(map(list(values).__getitem__, numpy.argsort(places).tolist()))


def _value(record: Any, field: str, prices: Prices) -> Any:
    """Return a field's value, with prices in the given form."""
    value = getattr(record, field)
    decimals = (record._dtype_[field].metadata or {}).get(DECIMALS)
    return value if decimals is None else in_form([value], decimals, prices)[0]


def record_columns(batch: Batch, fields: Sequence[str], prices: Prices = "integer") -> list[list[Any]]:
    """Return, for each field, its values in a batch of one feed; None for messages whose type lacks the field.

    The values are those of `Message.record`, with prices in the given form. Raises ValueError or ConfigError if a
    message matches no type of the schema, or a field has no plain values: then read it message by message.
    """
    schema: Any = batch.schema
    if schema is None or batch.block.validity is not None:
        raise ValueError("there is no schema, or a message without a value")
    kinds = types_of(batch, schema)
    if len(kinds) == 1 and (columns := _columns_of_one_type(batch, schema.dtype(kinds[0]), fields, prices)):
        return columns
    found = [(batch.indices(kind), kind) for kind in kinds]
    order = numpy.concatenate([places for places, _ in found])
    if len(order) != len(batch):
        raise ValueError("a message has no type of the schema")
    columns = [[] for _ in fields]
    for places, kind in found:
        records = batch.records(kind)
        for column, name in zip(columns, fields, strict=True):
            has_field = name in (records.dtype.names or ())
            column.extend(values_of(records[name], prices) if has_field else [None] * len(places))
    return [in_place(column, order) for column in columns]


def _columns_of_one_type(
    batch: Batch, dtype: numpy.dtype[Any], fields: Sequence[str], prices: Prices
) -> list[list[Any]]:
    """Return the values of fields, read in place, if all messages of the batch are records of this type."""
    block = batch.block
    if not block.is_fixed or block.stride != dtype.itemsize:
        return []
    records, rows = block.payloads.view(dtype), batch.rows
    return [
        values_of(records[name] if rows is None else records[name][rows], prices)
        if name in (dtype.names or ())
        else [None] * len(batch)
        for name in fields
    ]


def types_of(batch: Batch, schema: Schema) -> list[str]:
    """Return the distinct types of a batch's messages; those of one type are found at once."""
    block = batch.block
    if block.is_fixed and block.stride > schema.type_offset:
        characters = block.payloads.reshape(block.count, block.stride)[:, schema.type_offset]
        if batch.rows is not None:
            characters = characters[batch.rows]
        if len(characters) and (characters == characters[0]).all():
            return [chr(characters[0])]
        characters = numpy.unique(characters)
    else:
        starts = block.payload_offsets[:-1] if batch.rows is None else block.payload_offsets[batch.rows]
        if (starts + schema.type_offset >= len(block.payloads)).any():
            raise ValueError("a message has no type")
        characters = numpy.unique(block.payloads[starts + schema.type_offset])
    return list(map(chr, characters.tolist()))


def values_of(column: NDArray[Any], prices: Prices = "integer") -> list[Any]:
    """Return a field's values as `Message.record` does, with prices in the given form.

    Raises ValueError if they are not plain.
    """
    dtype = column.dtype
    if dtype.kind in "iufb" and column.ndim == 1:
        metadata: Mapping[str, Any] = dtype.metadata or {}
        decimals = None if prices == "integer" else metadata.get(DECIMALS)
        if decimals is not None and prices == "float":
            values: list[Any] = (column.astype(numpy.float64) / 10.0**decimals).tolist()
        else:
            values = column.astype(dtype.newbyteorder("="), copy=False).tolist()
        if (absent := metadata.get(ABSENT)) is not None:
            for place in numpy.flatnonzero(column == dtype.type(absent)).tolist():
                values[place] = None
        return in_form(values, decimals, prices) if decimals is not None and prices == "decimal" else values
    if dtype.kind == "S" and column.ndim == 1:
        texts: list[bytes] = column.tolist()
        return texts if b"".join(texts).find(0) < 0 else [text.partition(b"\0")[0] for text in texts]
    if dtype == numpy.uint8 or (dtype.kind == "V" and dtype.names is None):
        size = column[0:1].nbytes
        return numpy.ascontiguousarray(column).reshape(-1).view(numpy.uint8).view(f"V{size}").tolist()
    raise ValueError(f"values of {dtype} are not plain")
