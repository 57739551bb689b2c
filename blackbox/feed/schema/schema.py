"""Schemas: the record layouts of a feed's payloads, by message type.

A schema has a name, a number that is sent in every block, and one numpy structured dtype per message type. The dtype
matches the venue's bytes of one message exactly, so `.view(dtype)` turns a column of equal payloads into typed records
without a copy.

Third parties register a schema in the entry-point group `blackbox.schemas`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy

from blackbox.arguments import did_you_mean
from blackbox.errors import ConfigError
from blackbox.feed.schema import field_meaning
from blackbox.feed.schema.instrument_fields import InstrumentFields
from blackbox.feed.schema.pack import RecordPacker, kind_in
from blackbox.feed.schema.typed_record import record_type

if TYPE_CHECKING:
    import pyarrow

_log = logging.getLogger(__name__)

_LAST_CHARACTER = 0xFF
_FLOAT_BYTES = (4, 8)
_MOST_DECIMALS = 18
_MOST_TIME_BYTES = 8

SCHEMA_GROUP = "blackbox.schemas"
"""The entry-point group in which schemas are registered."""

# Keys of a field's `dtype.metadata`.
DECIMALS = field_meaning.DECIMALS
"""Metadata key of a price: the integer is the price times 10 to the power of this."""
UTC = field_meaning.UTC
"""Metadata key of a time since 1970-01-01 UTC: the unit, "ns" or "s"."""
SINCE_MIDNIGHT = field_meaning.SINCE_MIDNIGHT
"""Metadata key of a time of day: the time zone whose midnight it counts from. Unit: ns."""
ABSENT = field_meaning.ABSENT
"""Metadata key: the integer by which the venue marks a field without a value. Readers return null instead."""


def price(dtype: str, decimals: int, absent: int | None = None) -> numpy.dtype[Any]:
    """Return a field dtype for a price: an integer with `decimals` implied decimal places.

    `absent`: the integer that means "no price". Every other integer is a price, also 0 and below.
    """
    return _with_metadata(dtype, absent, {DECIMALS: decimals})


def utc_time(dtype: str, unit: str, absent: int | None = None) -> numpy.dtype[Any]:
    """Return a field dtype for an integer that counts `unit` ("ns" or "s") since 1970-01-01 UTC.

    `absent`: the integer that means "no time".
    """
    return _with_metadata(dtype, absent, {UTC: unit})


def optional(dtype: str, absent: int) -> numpy.dtype[Any]:
    """Return a field dtype for an integer. The value `absent` means "no value"."""
    return _with_metadata(dtype, absent, {})


def _with_metadata(dtype: str, absent: int | None, metadata: dict[str, Any]) -> numpy.dtype[Any]:
    return numpy.dtype(dtype, metadata=metadata if absent is None else {**metadata, ABSENT: absent})


@dataclass(frozen=True)
class TradeFields:
    """Fields of a message type that describe a trade."""

    message_type: str
    price: str | None
    """The field with the price; None: the price is that of the order."""
    size: str
    only: tuple[str, str | int] | None = None
    """A field and its value in the messages that count as trades."""
    rank: int = 0
    """Types of other ranks repeat the same trades: for each symbol and day only the lowest rank present counts."""
    order: str | None = None
    """The field with the number of the traded order, if the price is that of the order (`Schema.orders`)."""
    id: str | None = None
    """The field with the venue's trade id. Trades with the same symbol, id, price and size count once."""


@dataclass(frozen=True)
class BreakFields:
    """Fields of a message type that cancels the trade with the same symbol and id."""

    message_type: str
    id: str
    price: str | None = None
    """The field with the price of that trade, if repeated; it must be equal."""
    size: str | None = None
    """The field with the size of that trade, if repeated; it must be equal."""


@dataclass(frozen=True)
class OrderFields:
    """Fields of a message type that adds an order. Its number is unique for the symbol and day."""

    message_type: str
    number: str
    price: str


@dataclass(frozen=True)
class QuoteFields:
    """Fields of a message type with the best bid and offer.

    A side is absent if its price equals the `ABSENT` metadata of the field, or `absent`.
    """

    message_type: str
    bid_price: str
    bid_size: str
    ask_price: str
    ask_size: str
    rank: int = 0
    """As in `TradeFields`."""
    one_sided: bool = False
    """True if an absent side means that it has not changed since the last quote that had it."""
    absent: float | None = None
    """For JSON payloads: the price that means that the side is absent. A missing price always does."""


@dataclass(frozen=True)
class Schema:
    """The message types of one feed, with a record layout for each.

    Two schemas are equal if their names and numbers are.
    """

    name: str
    """The registered name, e.g. "itch50"."""
    schema_id: int
    """The number in a block's header, 0 to 65535; 0 means plain bytes."""
    records: Mapping[str, numpy.dtype[Any]] = field(compare=False)
    """Message type (one character) to the structured dtype of one payload."""
    type_offset: int = field(default=0, compare=False)
    """Offset of the type character in payloads. Unit: bytes."""
    names: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Names for types with unprintable characters, e.g. "mbo" for "\\xa0". Accepted wherever a type is."""
    trades: tuple[TradeFields, ...] = field(default=(), compare=False)
    """The message types that are trades."""
    quotes: tuple[QuoteFields, ...] = field(default=(), compare=False)
    """The message types that are quotes."""
    orders: tuple[OrderFields, ...] = field(default=(), compare=False)
    """The message types of new orders, for trades that take their price from an order."""
    breaks: tuple[BreakFields, ...] = field(default=(), compare=False)
    """The message types that cancel a trade."""
    json: str | None = field(default=None, compare=False)
    """For payloads that end with a JSON document: its member that holds the fields, if the document has that member.

    Fields of trades and quotes are then names in it with text values, and message types are those of the topics."""
    instruments: tuple[InstrumentFields, ...] = field(default=(), compare=False)
    """The message types that describe instruments."""

    _record_types: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _packers: dict[str, RecordPacker] = field(default_factory=dict, init=False, repr=False, compare=False)
    _meanings: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.schema_id <= 0xFFFF:
            raise ConfigError(f"schema {self.name!r}: schema_id was {self.schema_id}, expected 0 to 65535")
        object.__setattr__(self, "records", MappingProxyType(dict(self.records)))
        object.__setattr__(self, "names", MappingProxyType(dict(self.names)))
        for name in (self.name, *self.names):
            if not name or not name.isprintable():
                raise ConfigError(f"schema {self.name!r}: a name was {name!r}, expected printable text")
        for kind, dtype in self.records.items():
            self._check_type(kind, dtype)
        for each in self.instruments:
            self._check(each.message_type, *each.fields)
        if self.json is None:
            self._check_ticks()

    def _check_ticks(self) -> None:
        """Raise ConfigError unless the records have the declared fields of trades and quotes."""
        for trade in self.trades:
            if (trade.price is None) == (trade.order is None) or (trade.order is not None and not self.orders):
                raise ConfigError(
                    f"schema {self.name!r}: trades of type {trade.message_type!r} had price {trade.price!r} and order "
                    f"{trade.order!r}, expected exactly one of them, and `orders` when the price is that of the order"
                )
            others = [name for name in (trade.only and trade.only[0], trade.id) if name is not None]
            self._check(trade.message_type, trade.price or trade.order or "", trade.size, *others)
        for taken_back in self.breaks:
            others = [name for name in (taken_back.price, taken_back.size) if name is not None]
            self._check(taken_back.message_type, taken_back.id, *others)
        for order in self.orders:
            self._check(order.message_type, order.number, order.price)
        for quote in self.quotes:
            if quote.absent is not None:
                raise ConfigError(
                    f"schema {self.name!r}: quotes of type {quote.message_type!r} had absent {quote.absent}, expected "
                    "it only for payloads of JSON; give `absent` to the fields of the prices"
                )
            self._check(quote.message_type, quote.bid_price, quote.bid_size, quote.ask_price, quote.ask_size)

    def _check_type(self, kind: str, dtype: object) -> None:
        """Raise ConfigError unless this is a valid payload type."""
        if len(kind) != 1 or ord(kind) > _LAST_CHARACTER:
            raise ConfigError(f"schema {self.name!r}: a type was {kind!r}, expected one character, a byte of payloads")
        if not isinstance(dtype, numpy.dtype) or not dtype.names:
            raise ConfigError(f"schema {self.name!r}: type {kind!r} was {dtype!r}, expected a numpy dtype with fields")
        if not 0 <= self.type_offset < dtype.itemsize:
            raise ConfigError(
                f"schema {self.name!r}: type_offset was {self.type_offset}, expected one within the {dtype.itemsize} "
                f"bytes of type {kind!r}"
            )
        for name, each in _fields_within(dtype):
            # Python and ctypes reserve `_x_`; unprintable text could control a terminal.
            if not name or not name.isprintable() or (name[0] == name[-1] == "_"):
                raise ConfigError(
                    f"schema {self.name!r}: type {kind!r} had a field named {name!r}, expected a printable name "
                    "that does not start and end with an underscore"
                )
            fits = each.itemsize in _FLOAT_BYTES if each.kind == "f" else each.kind in "iubSV" and each.itemsize > 0
            if not fits:
                raise ConfigError(
                    f"schema {self.name!r}: type {kind!r} had field {name!r} of {each}, expected an integer, a float "
                    "of 4 or 8 bytes, a boolean, bytes (S or V), or arrays or records of these"
                )
        for name in dtype.names:
            self._check_meaning(kind, name, dtype[name])

    def _check_meaning(self, kind: str, name: str, field: numpy.dtype[Any]) -> None:
        """Raise ConfigError unless prices and times are integers, with decimals and units that readers support."""
        told = dict(field.metadata or {})
        decimals, unit = told.get(DECIMALS, 0), told.get(UTC, "ns")
        integer = field.kind in "iu" or (SINCE_MIDNIGHT in told and field.itemsize <= _MOST_TIME_BYTES)
        meant = told.keys() & {DECIMALS, UTC, SINCE_MIDNIGHT}
        if (meant and not integer) or decimals not in range(_MOST_DECIMALS + 1) or unit not in ("ns", "s"):
            raise ConfigError(
                f"schema {self.name!r}: type {kind!r} had field {name!r} of {field} with {told}, expected an integer "
                f"with {DECIMALS} of 0 to {_MOST_DECIMALS}, or {UTC} of 'ns' or 's', or {SINCE_MIDNIGHT}"
            )
        if (absent := told.get(ABSENT)) is None:
            return
        limits = numpy.iinfo(field) if field.kind in "iu" else None
        if limits is None or not limits.min <= absent <= limits.max:
            raise ConfigError(
                f"schema {self.name!r}: type {kind!r} had field {name!r} of {field} with {ABSENT} of {absent}, "
                "expected an integer field, and a value that it can hold"
            )

    def _check(self, kind: str, *fields: str) -> None:
        names = self.dtype(kind).names or ()
        for name in fields:
            if name not in names:
                raise ConfigError(
                    f"schema {self.name!r}: type {kind!r} had no field {name!r}, expected: {', '.join(names)}"
                )

    def __repr__(self) -> str:
        types = ",".join(self.names) or "".join(self.records) or None
        return f"<Schema {self.name} id={self.schema_id} types={types}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # A read-only mapping cannot be pickled; worker processes get a plain one.
        plain = self.name, self.schema_id, dict(self.records), self.type_offset, dict(self.names)
        return Schema, (*plain, self.trades, self.quotes, self.orders, self.breaks, self.json, self.instruments)

    def dtype(self, message_type: str) -> numpy.dtype[Any]:
        """Return the record layout of a message type, given as a character or a name.

        Its `itemsize` is the payload size.

        Raises:
            ConfigError: this schema has no such message type.
        """
        try:
            return self.records[self.names.get(message_type, message_type)]
        except KeyError:
            raise self._unknown(message_type) from None

    def offset(self, message_type: str, field: str) -> int:
        """Return the offset of a field in payloads of a message type, in bytes, for compiled code.

        Raises:
            ConfigError: this schema has no such message type, or the type no such field.
        """
        self._check(message_type, field)
        fields: Any = self.dtype(message_type).fields
        return int(fields[field][1])

    def record_type(self, message_type: str) -> Any:
        """Return the class of a message type's records: fields are attributes (see `Message.record`).

        Raises:
            ConfigError: this schema has no such message type.
        """
        found = self._record_types.get(message_type)
        if found is None:
            named = {character: name for name, character in self.names.items()}.get(message_type, message_type)
            found = record_type(f"{self.name}_{named}", self.dtype(message_type))
            self._record_types[message_type] = found
        return found

    def pack(self, record: object, message_type: str | None = None) -> bytes:
        """Return the payload of a record: a dict, a dataclass, a msgspec Struct, a NamedTuple or a numpy record.

        Every field of the message type is required, except the one that holds the type itself. An `int` in a price
        field is the venue's integer. A float, a Decimal or a text is the price: a float is rounded to the nearest unit
        and must be within 1e-9 of it, relative to the price, and a Decimal must be exact. A time is the venue's
        integer, a datetime with a time zone, a `numpy.datetime64` (UTC), or a text (UTC unless it has an offset). None
        or NaN in an integer field is its `ABSENT` value. Texts are Latin-1, padded with zeros.

        Args:
            record: the fields by name. A `Message.record` also works.
            message_type: a character or a name. Optional if the record has it, or the schema has one type.

        Raises:
            ConfigError: a field is missing, unknown, or has an invalid value; or the type is not known.
            TypeError: `record` is none of these.
        """
        character = self.character(message_type or kind_in(record, self.type_offset, self.records) or self._only_type())
        packer = self._packers.get(character)
        if packer is None:
            known = {character: name for name, character in self.names.items()}.get(character, character)
            name = f"record of type {known!r} ({self.name})"
            packer = RecordPacker(name, self.dtype(character), self.type_offset, character)
            self._packers[character] = packer
        return packer.pack(record)

    def _only_type(self) -> str:
        if len(self.records) == 1:
            return next(iter(self.records))
        known = " ".join(self.names or self.records)
        wanted = f"one of: {known}" if known else "a schema with records: payloads of this one are plain bytes"
        raise ConfigError(f"schema {self.name!r}: message_type was not given, expected {wanted}")

    def character(self, message_type: str) -> str:
        """Return the type character of a message type, given as a character or a name.

        Raises:
            ConfigError: it is neither.
        """
        found = self.names.get(message_type, message_type)
        if len(found) != 1:
            raise self._unknown(message_type)
        return found

    def _types_in(self, message_types: Iterable[str]) -> list[str]:
        """Return those of the given message types, characters or names, that this schema has."""
        known = {*self.names, *self.records}
        return [each for each in dict.fromkeys(message_types) if each in known]

    def misfit(self, payload: bytes) -> str | None:
        """Return why a payload is not a record of this schema; None if it is, or if payloads have no types."""
        if not self.records:
            return None
        kind = payload[self.type_offset : self.type_offset + 1].decode("latin-1")
        expected = self.records[kind].itemsize if kind in self.records else None
        if len(payload) == expected:
            return None
        fits = f"that of a type of the schema, which has no type {kind!r}" if kind else "one with a type"
        fits = fits if expected is None else f"{expected} of type {kind!r}"
        return f"payload had {len(payload)} bytes, expected {fits} ({self.name})"

    def _unknown(self, message_type: str) -> ConfigError:
        known = " ".join(self.names or self.records) or "none: its payloads are plain bytes"
        return ConfigError(f"schema {self.name!r}: message type was {message_type!r}, expected one of: {known}")

    def arrow(self, message_type: str) -> pyarrow.Schema:
        """Return the Arrow schema of a message type, in native byte order.

        Numbers keep their width and sign, texts become strings, times since the epoch become UTC timestamps, and a time
        of day becomes int64 ns. A price stays a scaled integer; its field's metadata has `decimals`. Arrays and nested
        records become bytes.

        Raises:
            ConfigError: this schema has no such message type.
            ImportError: pyarrow is not installed (extra `arrow`).
        """
        import pyarrow

        dtype = self.dtype(message_type)
        return pyarrow.schema(
            [field_meaning.arrow_field(name, dtype[name]) for name in dtype.names or ()],
            metadata={"schema": self.name, "type": message_type},
        )


def _fields_within(dtype: numpy.dtype[Any]) -> Iterator[tuple[str, numpy.dtype[Any]]]:
    """Yield all fields of a record by name, including those of nested records; arrays by their items."""
    for name in dtype.names or ():
        item = dtype[name].base
        yield name, item
        yield from _fields_within(item)


RAW = Schema("raw", 0, {})
"""Plain bytes: no message types, no records."""


def load_schema(name: str | Schema) -> Schema:
    """Return the schema registered under `name` in the entry-point group `blackbox.schemas`; or a feed's own schema.

    Raises:
        ConfigError: no such schema, the registered object is not a `Schema`, or the feed's own schema has the number of
            a registered one, which readers of its blocks would use.
    """
    if isinstance(name, Schema):
        owner = schema_of(name.schema_id)
        if owner != name and (owner is not RAW or name.schema_id == RAW.schema_id):
            raise ConfigError(
                f"schema {name.name!r} has the number {name.schema_id}, already used by {owner.name!r}, expected "
                "another"
            )
        return name
    if name == RAW.name:
        return RAW  # without a lookup, which takes 20 ms
    schema = load_registered(SCHEMA_GROUP, name, "schema")
    if not isinstance(schema, Schema):
        raise ConfigError(f"schema {name!r}: the entry point holds {schema!r}, expected a Schema")
    return schema


@cache
def schema_of(schema_id: int) -> Schema:
    """Return the schema registered with the number of a block's header; RAW if none can be loaded.

    Raises:
        ConfigError: several schemas have the number.
    """
    schema = RAW
    if schema_id == RAW.schema_id:
        return schema
    found: dict[str, str] = {}
    for entry in entry_points(group=SCHEMA_GROUP):
        try:
            known = load_schema(entry.name)
        except ConfigError as error:
            _log.warning("%s", error)
            continue
        if known.schema_id == schema_id:
            schema = known
            found[known.name] = _origin(entry)
    if len(found) > 1:
        each = ", ".join(f"{name!r} of {origin}" for name, origin in found.items())
        raise ConfigError(f"schema id {schema_id} was that of several schemas, expected one: {each}")
    return schema


def _origin(entry: EntryPoint) -> str:
    """Describe where an entry point comes from: package and object."""
    return f"{entry.dist.name if entry.dist is not None else 'an unknown package'} ({entry.value})"


@cache
def _registered(group: str, _path: tuple[str, ...]) -> EntryPoints:
    """Return the entry points of a group. Cached: a lookup reads the metadata of all packages, 20 ms."""
    return entry_points(group=group)


def load_registered(group: str, name: str, noun: str) -> object:
    """Return the object registered under `name` in entry-point group `group`; `noun` is for the error.

    Raises:
        ConfigError: the name has no or several objects, or the object cannot be loaded.
    """
    # One package may be found twice, e.g. installed and editable; that is not a conflict.
    values = {entry.value: entry for entry in _registered(group, tuple(sys.path)) if entry.name == name}
    if not values:
        entries = entry_points(group=group)  # it may have been installed since
        values = {entry.value: entry for entry in entries if entry.name == name}
    if not values:
        known = sorted({entry.name for entry in entries})
        hint = did_you_mean(name, known)
        raise ConfigError(f"{noun} was {name!r}, expected one of: {', '.join(known) or 'none registered'}{hint}")
    if len(values) > 1:
        raise ConfigError(f"{noun} {name!r} is registered more than once: {', '.join(map(_origin, values.values()))}")
    (entry,) = values.values()
    try:
        loaded: object = entry.load()
    except Exception as error:  # a plug-in may raise anything
        raise ConfigError(f"{noun} {name!r} of {_origin(entry)} cannot be loaded: {error!r}") from error
    return loaded
