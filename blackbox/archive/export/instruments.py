"""Instruments of a recorded day as one table, from the messages that a feed's schema declares.

    definitions ==newest of each instrument==> rows ==status, symbol mapping==> table

An instrument is a symbol with the ids that the schema declares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, cast

import numpy
import pyarrow
from pyarrow import compute

from blackbox.archive.export.columns import Columns
from blackbox.archive.export.gathered import gathered
from blackbox.archive.export.pushed import EARLIEST, LATEST, Pushed
from blackbox.archive.export.table import TEXT, Pick, text_of
from blackbox.archive.files.day import session_ns
from blackbox.errors import ConfigError, JournalError
from blackbox.feed.schema.instrument_fields import NUMBERS, PRICES, TEXTS, TIMES, InstrumentFields, Part
from blackbox.feed.schema.schema import DECIMALS, Schema, load_registered

if TYPE_CHECKING:
    from blackbox.archive.read.filter import Selection
    from blackbox.archive.recording import Recording

SYMBOLOGY_GROUP: Final = "blackbox.symbology"
"""The entry-point group of functions that read symbol mappings which are no records, by the name of the schema."""
Mapping = tuple[bytes, int, int, int, int]
"""Symbol, instrument id, start and end of the mapping, and the time at which it was known; times in ns since 1970."""
Mappings = Callable[["Recording"], Iterator[Mapping]]

_ID: Final = ("symbol", "publisher_id", "instrument_id")
_DELETED: Final = "deleted"
_OWN: Final = (*TEXTS, *NUMBERS, *PRICES, *TIMES, _DELETED)
_KNOWN: Final = ("messages", "ts_first", "ts_last", "source")
"""How often, from when on, and in which form an instrument was described."""
_ORDER: Final = (
    *("symbol", "venue", "publisher_id", "instrument_id", "name", "instrument_class", "lot_size", "tick_size"),
    *("price_decimals", "contract_size", "currency", "strike_price", "underlying", "activation", "expiration"),
    *("status", "mapped_from", "mapped_until", *_KNOWN),
)


def instruments_of(days: Sequence[Recording], form: dict[str, Any], selection: Selection) -> list[pyarrow.Table]:
    """Return the instruments of a selection of each day: see `Instruments`. Raises JournalError if no day has any."""
    tables = [_instruments_of_day(day, form, selection) for day in days]
    if not any(map(len, tables)):
        kinds = {repr(each.message_type) for day in days for each in day.schema.instruments if each.part != "status"}
        where = " to ".join(dict.fromkeys(str(day.path) for day in (days[0], days[-1])))
        raise JournalError(
            f"{where} has no instruments in the selection, expected messages of type {' or '.join(sorted(kinds))}: "
            "record from before the venue sends its definitions, import a file that has them, or take the instruments "
            "of another recording of the day"
        )
    return tables


def _instruments_of_day(recording: Recording, form: dict[str, Any], selection: Selection) -> pyarrow.Table:
    schema = recording.schema
    if not schema.instruments:
        raise ConfigError(f"schema {schema.name!r} declares no instruments, expected some in Schema.instruments")
    picks = tuple(_pick_of(schema, each) for each in schema.instruments)
    columns = Columns(recording.feed, picks, **form, told_apart=True)
    wanted = ("symbol", "ts_event", "message_type", *_OWN)
    columns = columns.narrowed([name for name in wanted if name in columns.schema.names])
    chunks = gathered(recording, columns, b"", selection, Pushed())
    found = _plain(pyarrow.Table.from_batches(chunks, columns.schema))

    def rows(part: Part) -> list[pyarrow.Table]:
        return [_rows_of(found, schema, each) for each in schema.instruments if each.part == part]

    definitions, statuses, mappings = rows("definition"), rows("status"), rows("mapping")
    if (more := _other_mappings(recording, columns.schema, selection)) is not None:
        mappings.append(more)
    table = _newest(_together(definitions)) if definitions else found.schema.empty_table()
    if definitions:
        table = _with_status(table, statuses)
    if mappings:
        table = _with_mappings(table, _together(mappings))
    return _finished(table, schema, columns.schema, form)


def _pick_of(schema: Schema, fields: InstrumentFields) -> Pick:
    """Return all messages of a declared type, with the declared columns."""
    arrow = schema.arrow(fields.message_type)
    names = dict(fields.columns)
    if fields.deleted is not None:
        names[_DELETED] = fields.deleted[0]
    own = tuple((field, arrow.field(field).with_name(name)) for name, field in names.items())
    return Pick.of_type(schema, fields.message_type)._replace(columns=own)


def _plain(table: pyarrow.Table) -> pyarrow.Table:
    """Return a table with strings instead of dictionaries, and each column in one piece."""
    for index, field in enumerate(table.schema):
        if pyarrow.types.is_dictionary(field.type):
            table = table.set_column(index, field.name, table.column(index).cast(pyarrow.string()))
    return table.combine_chunks()


def _rows_of(found: pyarrow.Table, schema: Schema, fields: InstrumentFields) -> pyarrow.Table:
    """Return the messages of a declared type with their own columns, texts as declared, and their source."""
    rows = found.filter(compute.equal(found["message_type"], fields.message_type))
    deleted = () if fields.deleted is None else (_DELETED,)
    rows = rows.select(["symbol", "ts_event", *fields.columns, *deleted])
    for name in (*TEXTS, _DELETED):
        if name in rows.column_names:
            text = rows[name].cast(pyarrow.string())
            if (meanings := fields.meanings.get(name)) is not None:
                at = compute.index_in(text, pyarrow.array(list(meanings), pyarrow.string()))
                named = compute.take(pyarrow.array(list(meanings.values()), pyarrow.string()), at)
                text = compute.coalesce(named, text)
            text = compute.if_else(compute.not_equal(text, ""), text, pyarrow.scalar(None, pyarrow.string()))
            rows = rows.set_column(rows.column_names.index(name), name, text)
    if fields.deleted is not None:
        is_deleted = compute.equal(rows[_DELETED], fields.deleted[1]).fill_null(fill_value=False)
        rows = rows.drop_columns(_DELETED).append_column(_DELETED, is_deleted)
    constants = {**fields.constants, "source": f"{schema.name} {fields.message_type}"}
    for name, text in constants.items():
        rows = rows.append_column(name, pyarrow.repeat(pyarrow.scalar(text, pyarrow.string()), len(rows)))
    if fields.part == "status":
        rows = rows.filter(compute.is_valid(rows["status"]))
    return rows


def _together(parts: Sequence[pyarrow.Table]) -> pyarrow.Table:
    return pyarrow.concat_tables(parts, promote_options="permissive").combine_chunks()


def _keys(*tables: pyarrow.Table) -> list[str]:
    """Return the columns that identify an instrument in all tables."""
    return [name for name in _ID if all(name in table.column_names for table in tables)]


def _newest(rows: pyarrow.Table) -> pyarrow.Table:
    """Return the newest row of each instrument, with the number of its rows, and their first and last time."""
    keys = _keys(rows)
    times = compute.fill_null(rows["ts_event"].cast(pyarrow.int64()), 0)
    rows = rows.take(pyarrow.array(numpy.argsort(times.to_numpy(), kind="stable")))
    numbered = rows.select([*keys, "ts_event"]).append_column("row", pyarrow.array(numpy.arange(len(rows))))
    groups = numbered.group_by(keys).aggregate(
        [("row", "max"), ("row", "count"), ("ts_event", "min"), ("ts_event", "max")]
    )
    newest = rows.take(groups["row_max"]).drop_columns("ts_event")
    told = groups["row_count"], groups["ts_event_min"], groups["ts_event_max"]
    for name, column in zip(_KNOWN, told, strict=False):
        newest = newest.append_column(name, column)
    return newest


def _with_status(table: pyarrow.Table, statuses: Sequence[pyarrow.Table]) -> pyarrow.Table:
    """Add the newest status of each instrument; "deleted" if its newest definition deletes it."""
    if statuses:
        rows = _together(statuses)
        keys = _keys(table, rows)
        newest = _newest(rows.select([*keys, "status", "ts_event"])).select([*keys, "status"])
        table = table.join(newest, keys, join_type="left outer")
    else:
        table = table.append_column("status", pyarrow.nulls(len(table), pyarrow.string()))
    if _DELETED not in table.column_names:
        return table
    is_deleted = table[_DELETED].fill_null(fill_value=False)  # null: of a message type that deletes nothing
    status = compute.if_else(is_deleted, pyarrow.scalar("deleted"), table["status"])
    return table.set_column(table.column_names.index("status"), "status", status)


def _with_mappings(table: pyarrow.Table, mappings: pyarrow.Table) -> pyarrow.Table:
    """Add the time for which a symbol means an id. Those without a definition are rows too."""
    keys = _keys(table, mappings)
    newest = _newest(mappings)
    spans = mappings.group_by(keys).aggregate([("mapped_from", "min"), ("mapped_until", "max")])
    spans = spans.select([*keys, "mapped_from_min", "mapped_until_max"])
    spans = spans.rename_columns([*keys, "mapped_from", "mapped_until"])
    newest = newest.drop_columns(["mapped_from", "mapped_until"]).join(spans, keys)
    joined = table.join(newest, keys, join_type="full outer", right_suffix=" of mapping")
    for name in newest.column_names:
        if (other := f"{name} of mapping") in joined.column_names:
            both = compute.coalesce(joined[name], joined[other])
            joined = joined.set_column(joined.column_names.index(name), name, both).drop_columns(other)
    return joined


def _other_mappings(recording: Recording, schema: pyarrow.Schema, selection: Selection) -> pyarrow.Table | None:
    """Return the mappings of the day that the format keeps in other messages than records; None if it has none."""
    name = recording.schema.name
    if name not in entry_points(group=SYMBOLOGY_GROUP).names:
        return None
    mappings_of = cast("Mappings", load_registered(SYMBOLOGY_GROUP, name, "symbology"))
    begin, end = session_ns(recording.feed, recording.date)
    symbols = selection.get("symbols")
    chosen = None if symbols is None else {each.encode() if isinstance(each, str) else each for each in symbols}
    stop = selection.get("stop")
    before = LATEST if stop is None else recording.time(stop)
    found = [
        each
        for each in mappings_of(recording)
        if each[2] < end and each[3] > begin and each[4] < before and (chosen is None or each[0] in chosen)
    ]
    symbol, instrument, first, last, known = zip(*found, strict=True) if found else ((),) * 5
    times = {"mapped_from": first, "mapped_until": last, "ts_event": known}
    time = schema.field("ts_event").type
    return pyarrow.table(
        {
            "symbol": pyarrow.array([text_of(each) for each in symbol], pyarrow.string()),
            "instrument_id": pyarrow.array(instrument, schema.field("instrument_id").type),
            **{each: pyarrow.array(map(_bound, values), pyarrow.int64()).cast(time) for each, values in times.items()},
            "source": pyarrow.repeat(pyarrow.scalar(f"{name} metadata"), len(symbol)),
        }
    )


def _bound(ns: int) -> int | None:
    return ns if EARLIEST < ns < LATEST else None


def _finished(table: pyarrow.Table, schema: Schema, fields: pyarrow.Schema, form: dict[str, Any]) -> pyarrow.Table:
    """Return the table's columns in their order, sorted by symbol and id."""
    table = table.sort_by([(name, "ascending") for name in _keys(table)])
    decimals = _price_decimals(schema)
    made: dict[str, Any] = {}
    for name in _ORDER:
        if name == "price_decimals":
            made[name] = pyarrow.repeat(pyarrow.scalar(decimals, pyarrow.int8()), len(table))
        elif name in table.column_names:
            column = table[name].combine_chunks()
            made[name] = column.dictionary_encode() if pyarrow.types.is_string(column.type) else column
        else:
            made[name] = pyarrow.nulls(len(table), _absent(name, fields, form))
    found = pyarrow.table(made)
    for name in PRICES:
        if name in fields.names:  # the decimals of integer prices, which joins drop
            at = found.schema.get_field_index(name)
            field = found.schema.field(at).with_metadata(fields.field(name).metadata)
            found = found.set_column(at, field, found.column(at))
    return found


def _absent(name: str, fields: pyarrow.Schema, form: dict[str, Any]) -> pyarrow.DataType:
    """Return the type of a column that no message has."""
    if name in TEXTS or name == "source":
        return TEXT
    if name in TIMES:
        return fields.field("ts_event").type
    if name in PRICES:
        prices = form.get("prices", "float")
        if prices != "integer":
            return pyarrow.float64() if prices == "float" else pyarrow.decimal128(18, 0)
    return pyarrow.int64()


def _price_decimals(schema: Schema) -> int | None:
    """Return the decimals of the integer prices of trades; None if they differ."""
    priced = [(trade.message_type, trade.price) for trade in schema.trades if trade.price is not None]
    found = {dict(schema.dtype(kind)[field].metadata or {}).get(DECIMALS) for kind, field in priced}
    return found.pop() if len(found) == 1 else None
