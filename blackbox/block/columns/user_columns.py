"""User columns as messages: numpy arrays, lists, Arrow tables, pandas and polars data frames."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from string import Formatter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.arguments import did_you_mean
from blackbox.block.form.rows import as_integers
from blackbox.errors import ConfigError
from blackbox.feed.schema.pack import type_field
from blackbox.feed.schema.prices import END_OF_INT64, NEAR, units_of
from blackbox.feed.schema.schema import ABSENT, DECIMALS, SINCE_MIDNIGHT, UTC, Schema

if TYPE_CHECKING:
    import pyarrow

_GIVEN_BACK: Final = ("slice", "ts_out", "ts_recv", "epoch", "sequence")
"""Columns of `Recording.to_arrow` that the writer computes."""
_OF_TOPIC: Final = ("symbol", "type")
"""Parts of the topic, also in `Recording.to_arrow`."""
_TOPIC, _TIME, _PAYLOAD, _TYPE = "topic", "ts_event", "payload", "type"
_CLASHING: Final = "record_"
_LEAST_NS: Final = 10**16
"""April 1970: times all below it are in microseconds, milliseconds or seconds."""


_Payloads = tuple[NDArray[Any], NDArray[numpy.int64] | None, NDArray[numpy.bool_] | None]


class Columns(NamedTuple):
    """Arguments of `ColumnWriter.put`."""

    topics: list[bytes]
    topic_index: NDArray[numpy.int32]
    payloads: NDArray[Any]
    ts_event: NDArray[numpy.int64]
    offsets: NDArray[numpy.int64] | None
    valid: NDArray[numpy.bool_] | None


def columns_of(
    table: Any,
    schema: Schema,
    message_type: str | None,
    topic: str | None = None,
    default_topic: str | None = None,
    default_ns: int | None = None,
) -> Columns:
    """Return a table's messages: see `Recording.create` and `Publisher.publish_table`.

    Args:
        table: the columns.
        schema: that of the feed.
        message_type: the message type of all rows; None: there is a column of payloads.
        topic: a template of the topics, such as "{symbol}.{type}": columns in braces. `{type}` is the message type.
        default_topic: the template for a table without a column of topics; None: the column is required.
        default_ns: the time of all rows of a table without a column of times; None: the column is required.

    Raises ConfigError naming the column that is missing, unknown or of the wrong type, or a value that does not fit.
    """
    found = _named_columns(table)
    if topic is None and _TOPIC not in found:
        topic = default_topic
    pieces: list[tuple[bytes, str | None]] = [(b"", _TOPIC)] if topic is None else pieces_of(topic, message_type)
    parts = [name for _, name in pieces if name is not None]
    fields = {} if message_type is None else fields_of(schema, message_type, found)
    timed = [_TIME] if default_ns is None or _TIME in found else []
    needed = list(dict.fromkeys([*parts, *timed, *([_PAYLOAD] if message_type is None else fields)]))
    unknown = [name for name in found if name not in (*needed, *_GIVEN_BACK, *_OF_TOPIC, _TOPIC)]
    filled = None if message_type is None else type_field(schema.dtype(message_type), schema.type_offset)
    missing = [name for name in needed if name not in found and (filled is None or fields.get(name) != filled)]
    if unknown or missing:
        what = f"had column {unknown[0]!r}" if unknown else f"lacked column {missing[0]!r}"
        near = did_you_mean(str(unknown[0]), missing or needed) if unknown else ""
        raise ConfigError(f"the table {what}{near}, expected: {', '.join(needed)}")
    topics, index = _topics_by(pieces, found) if topic is not None else _texts(found[_TOPIC], _TOPIC)
    first = needed[0]
    for name in needed:
        if name in found and len(found[name]) != len(index):
            raise ConfigError(f"column {name!r} had {len(found[name])} values, expected {len(index)} as {first!r}")
    times = _times(found[_TIME], _TIME) if timed else numpy.full(len(index), default_ns, numpy.int64)
    if message_type is None:
        data, offsets, valid = _payloads(found[_PAYLOAD])
        return Columns(topics, index, data, times, offsets, valid)
    records = numpy.zeros(len(index), schema.dtype(message_type))
    data = records.view(numpy.uint8).reshape(len(index), records.dtype.itemsize)
    data[:, schema.type_offset] = ord(schema.character(message_type))
    for name, field in fields.items():
        if name in found:
            records[field] = _field(found[name], name, records.dtype[field])
    return Columns(topics, index, data, times, None, None)


def parts_of(table: Any, rows: int) -> Iterator[Any]:
    """Yield a table in parts of at most `rows` rows, as views of its memory; at least one part."""
    if isinstance(table, Mapping):
        columns = _columns_in(table)
        count = max(map(len, columns.values()), default=0)
        for start in range(0, max(1, count), rows):
            yield {name: values[start : start + rows] for name, values in columns.items()}
        return
    is_pandas = type(table).__module__.partition(".")[0] == "pandas"
    if not is_pandas and not hasattr(table, "slice"):
        raise _no_table(table)
    for start in range(0, max(1, len(table)), rows):
        yield table.iloc[start : start + rows] if is_pandas else table.slice(start, rows)


def _columns_in(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a dict, each with a length. Raises ConfigError for one that is a single value."""
    for name, values in table.items():
        if isinstance(values, str | bytes) or not isinstance(values, Iterable) or getattr(values, "ndim", 1) == 0:
            raise ConfigError(f"column {name!r} was {values!r:.80}, expected a list or an array")
    return {name: values if hasattr(values, "__len__") else list(values) for name, values in table.items()}


def _no_table(table: object) -> TypeError:
    return TypeError(f"table was {table!r:.80}, expected a dict of columns, an Arrow table or a data frame")


def pieces_of(template: str, message_type: str | None) -> list[tuple[bytes, str | None]]:
    """Return the pieces of a topic template: fixed text, and the name of the column after it, if any.

    Raises ConfigError for an invalid template.
    """
    expected = "expected text with columns in braces, such as '{symbol}.{type}'"
    try:
        parsed = list(Formatter().parse(template))
        template.encode()
    except ValueError as error:
        raise ConfigError(f"topic was {template!r}, {expected}: {error}") from None
    pieces: list[tuple[bytes, str | None]] = [(b"", None)]
    for text, name, spec, conversion in parsed:
        if spec or conversion or name == "":
            raise ConfigError(f"topic was {template!r}, {expected}")
        is_fixed = name == _TYPE and message_type is not None
        before = pieces.pop()[0] if pieces[-1][1] is None else b""
        pieces.append((before + (text + (message_type or "") * is_fixed).encode(), None if is_fixed else name))
    if all(name is None for _, name in pieces):
        raise ConfigError(f"topic was {template!r}, {expected}")
    return pieces


def _topics_by(
    pieces: list[tuple[bytes, str | None]], found: Mapping[str, Any]
) -> tuple[list[bytes], NDArray[numpy.int32]]:
    """Return the distinct topics that a template makes, and the index of each row's topic."""
    topics, index = [b""], numpy.zeros(len(found[next(name for _, name in pieces if name is not None)]), numpy.int64)
    for text, name in pieces:
        topics = [topic + text for topic in topics]
        if name is None:
            continue
        more, places = _texts(found[name], name)
        if len(places) != len(index):
            raise ConfigError(f"column {name!r} had {len(places)} values, expected {len(index)} like the others")
        used, index = numpy.unique(index * len(more) + places, return_inverse=True)
        pairs = (divmod(pair, len(more)) for pair in used.tolist())
        topics = [topics[before] + more[after].rstrip(b"\0 ") for before, after in pairs]
    return topics, index.reshape(-1).astype(numpy.int32)


def _named_columns(table: Any) -> dict[str, Any]:
    """Return the columns of a table of any kind; of a data frame as Arrow columns."""
    library = type(table).__module__.partition(".")[0]
    if library == "pandas":
        import pyarrow

        table = pyarrow.Table.from_pandas(table, preserve_index=False)
    elif library == "polars":
        table = table.to_arrow()
    elif isinstance(table, Mapping):
        return _columns_in(table)
    elif library != "pyarrow":
        raise _no_table(table)
    if hasattr(table, "schema") and not hasattr(table, "combine_chunks"):
        import pyarrow

        table = pyarrow.Table.from_batches([table])
    return dict(zip(table.column_names, table.columns, strict=True))


def fields_of(schema: Schema, message_type: str, given: Container[str]) -> dict[str, str]:
    """Return the fields of a message type by column name."""
    taken = {_TOPIC, _TIME, *_GIVEN_BACK, *(name for name in _OF_TOPIC if _CLASHING + name in given)}
    return {_CLASHING * (name in taken) + name: name for name in schema.dtype(message_type).names or ()}


def _is_arrow(values: Any) -> bool:
    return type(values).__module__.partition(".")[0] == "pyarrow"


def _array(values: Any, name: str) -> NDArray[Any]:
    if _is_arrow(values):
        if values.null_count:
            raise ConfigError(f"column {name!r} had {values.null_count} nulls, expected none")
        values = values.to_numpy(zero_copy_only=False)
    return numpy.asarray(values)


def _times(values: Any, name: str) -> NDArray[numpy.int64]:
    """Return times as ns since 1970; 0 for no time."""
    if _is_arrow(values):
        values = _timestamps(values, name, "ns")
        values = values.fill_null(0) if values.null_count else values
    found = _array(values, name)
    if found.dtype.kind == "M":
        found = numpy.where(numpy.isnat(found), 0, _since_epoch(found, name, "ns"))
    elif found.dtype.kind in "OSTU":
        wrong = next(value for value in [*found.tolist(), found.dtype] if not isinstance(value, int))
        raise ConfigError(
            f"column {name!r} held {wrong!r:.80}, expected ns since 1970, 0 for no time, or timestamps: those of a "
            "data frame or an Arrow table, with their zone; or numpy's datetime64, which has none and is UTC"
        )
    times = _integers(found, name, numpy.dtype(numpy.int64))
    known = times[times != 0]
    if len(known) and known.max() < _LEAST_NS:
        raise ConfigError(f"column {name!r} ran to {known.max()}, expected ns since 1970, or 0 for no time")
    return times


def _timestamps(values: pyarrow.ChunkedArray, name: str, unit: str) -> pyarrow.ChunkedArray:
    """Return timestamps as int64 in a unit; other columns unchanged."""
    import pyarrow

    if not pyarrow.types.is_timestamp(values.type):
        return values
    try:
        return values.cast(pyarrow.timestamp(unit, values.type.tz)).cast(pyarrow.int64())
    except pyarrow.ArrowException as error:
        raise ConfigError(f"column {name!r} held a time that does not fit {unit}: {error}") from None


def _since_epoch(times: NDArray[Any], name: str, unit: str) -> NDArray[numpy.int64]:
    """Return numpy times as int64 in a unit. Raises ConfigError for a time that does not fit."""
    try:
        found = times.astype(f"datetime64[{unit}]")
    except OverflowError:
        if len(times) > 1:  # so that the error names the time
            for part in (times[: len(times) // 2], times[len(times) // 2 :]):
                _since_epoch(part, name, unit)
        raise ConfigError(f"column {name!r} held a time that does not fit {unit}: {times[0]}") from None
    # Before numpy 2.5 such a time wraps around.
    if (wrong := times[(found.astype(times.dtype) != times) & ~numpy.isnat(times)]).size:
        raise ConfigError(f"column {name!r} held a time that does not fit {unit}: {wrong[0]}")
    return found.view(numpy.int64)


def _integers(values: NDArray[Any], name: str, dtype: numpy.dtype[Any]) -> NDArray[Any]:
    try:
        return as_integers(values, dtype.newbyteorder("=").type, name)
    except ValueError as error:
        raise ConfigError(f"column {error}") from None


def _texts(values: Any, name: str) -> tuple[list[bytes], NDArray[numpy.int32]]:
    """Return the distinct texts, and the index of each value among them."""
    if _is_arrow(values):
        if values.null_count:
            raise ConfigError(f"column {name!r} had {values.null_count} nulls, expected none")
        encoded = _bytes_in_one(values, name).dictionary_encode()
        return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(numpy.int32)
    if isinstance(values, numpy.ndarray) and values.dtype.kind in "SU":
        distinct, places = numpy.unique(values, return_inverse=True)
        return [_bytes_of(text, name) for text in distinct.tolist()], places.reshape(-1).astype(numpy.int32)
    numbers: dict[Any, int] = {}
    try:
        index = numpy.fromiter((numbers.setdefault(text, len(numbers)) for text in values), numpy.int32, len(values))
    except TypeError:  # a list is not hashable
        for value in values:
            _bytes_of(value, name)
        raise
    return [_bytes_of(text, name) for text in numbers], index


def _bytes_of(text: Any, name: str, encoding: str = "utf-8") -> bytes:
    if isinstance(text, str):
        try:
            return text.encode(encoding)
        except UnicodeEncodeError:
            raise ConfigError(f"column {name!r} held {text!r:.80}, expected text in {encoding}") from None
    if not isinstance(text, bytes):
        raise ConfigError(f"column {name!r} held {text!r:.80}, expected text or bytes")
    return text


def _payloads(values: Any) -> _Payloads:
    """Return the bytes of payloads, their offsets, and a mask of those with a value."""
    if _is_arrow(values):
        return _arrow_payloads(values)
    if isinstance(values, numpy.ndarray) and values.dtype.names:
        values = numpy.ascontiguousarray(values).view(numpy.uint8).reshape(len(values), values.dtype.itemsize)
    if isinstance(values, numpy.ndarray) and values.ndim == 2:
        return values, None, None
    parts = [value if value is None else _bytes_of(value, _PAYLOAD) for value in values]
    offsets = numpy.zeros(len(parts) + 1, numpy.int64)
    numpy.cumsum([len(part or b"") for part in parts], out=offsets[1:])
    data = numpy.frombuffer(b"".join(part or b"" for part in parts) or b"\0", numpy.uint8)
    return data, offsets, numpy.array([part is not None for part in parts], bool)


def _arrow_payloads(values: pyarrow.ChunkedArray) -> _Payloads:
    flat = _bytes_in_one(values, _PAYLOAD)
    _, offsets, data = flat.buffers()
    places = numpy.frombuffer(offsets, numpy.int64)[flat.offset : flat.offset + len(flat) + 1]
    text = numpy.frombuffer(data if data is not None and data.size else b"\0", numpy.uint8)
    return text, places, flat.is_valid().to_numpy(zero_copy_only=False)


def _bytes_in_one(values: pyarrow.ChunkedArray, name: str) -> pyarrow.LargeBinaryArray:
    """Return texts or bytes of any Arrow type as one array of bytes."""
    import pyarrow

    kind = pyarrow.large_binary()
    try:
        if pyarrow.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        return pyarrow.chunked_array([*values.cast(kind).chunks, pyarrow.array([], kind)]).combine_chunks()
    except pyarrow.ArrowException as error:
        raise ConfigError(f"column {name!r} was of {values.type}, expected bytes or text: {error}") from None


def _field(values: Any, name: str, dtype: numpy.dtype[Any]) -> NDArray[Any]:
    """Return one field's values as stored, with the schema's absent integer for nulls."""
    told: Mapping[str, Any] = dtype.metadata or {}
    base, shape = dtype.base, dtype.shape
    missing = _nulls(values) if base.kind in "iu" and not shape else None
    if missing is not None and missing.any():
        if (absent := told.get(ABSENT)) is None:
            raise ConfigError(
                f"column {name!r} had {missing.sum()} nulls, expected none: the schema has no {ABSENT!r} value for them"
            )
        stored = numpy.full(len(missing), absent, base)
        stored[~missing] = _field(_without(values, missing), name, dtype)
        return stored
    if base.kind == "S" and not shape:
        texts = [_bytes_of(value, name, "latin-1") for value in _objects(values)]
        return _padded(texts, name, base.itemsize).view(base)
    if UTC in told:
        return _instants(values, name, told[UTC], base)
    if DECIMALS in told and not shape and (money := _money(values)) is not None:
        return _units(money, name, told[DECIMALS], base)
    found = _array(values, name)
    if SINCE_MIDNIGHT in told and shape:  # an integer of a width that numpy lacks: big-endian bytes
        octets = _integers(found, name, numpy.dtype(numpy.int64)).astype(">i8").view(numpy.uint8).reshape(len(found), 8)
        if octets[:, : 8 - shape[0]].any():
            raise ConfigError(f"column {name!r} ran to {found.max()}, expected 0 to {256 ** shape[0] - 1}")
        return octets[:, 8 - shape[0] :]
    if found.dtype.kind in "OS":
        return _padded(found.tolist(), name, dtype.itemsize, dtype.itemsize).view(base).reshape(len(found), *shape)
    if base.kind in "iu":
        found = _integers(found, name, base)
    return found.astype(base).reshape(len(found), *shape)


def _nulls(values: Any) -> NDArray[numpy.bool_]:
    """Return a mask of values that are null, NaN or not a time."""
    if _is_arrow(values):
        nulls: NDArray[numpy.bool_] = values.is_null(nan_is_null=True).to_numpy()
        return nulls
    found = numpy.asarray(values)
    if found.dtype.kind == "O":
        return numpy.array([each is None or each != each for each in found.tolist()], bool)
    return found != found if found.dtype.kind in "fM" else numpy.zeros(len(found), bool)


def _without(values: Any, nulls: NDArray[numpy.bool_]) -> Any:
    if _is_arrow(values):
        return values.filter(~nulls)
    found = numpy.asarray(values)[~nulls]
    return numpy.array(found.tolist()) if found.dtype.kind == "O" else found


def _money(values: Any) -> NDArray[Any] | None:
    """Return prices as floats or objects; None: they are the venue's integers."""
    if _is_arrow(values):
        import pyarrow

        return None if pyarrow.types.is_integer(values.type) else values.to_numpy()
    found = numpy.asarray(values)
    return found if found.dtype.kind in "fO" else None


def _units(money: NDArray[Any], name: str, decimals: int, base: numpy.dtype[Any]) -> NDArray[Any]:
    """Return prices as the integers that the venue sends: see `blackbox.feed.schema.prices`."""
    if money.dtype.kind == "O":
        exact = [_units_or_none(value, decimals) for value in money.tolist()]
        wrong = [value for value, units in zip(money.tolist(), exact, strict=True) if units is None]
        units = numpy.array([] if wrong else exact, numpy.int64)
    else:
        with numpy.errstate(over="ignore", invalid="ignore"):  # an infinite price is rejected below
            scaled = money.astype(numpy.float64) * 10.0**decimals
            near = numpy.rint(scaled)
            is_whole = (numpy.abs(scaled) < END_OF_INT64) & (
                numpy.abs(scaled - near) <= NEAR * numpy.maximum(1.0, numpy.abs(scaled))
            )
        wrong = money[~is_whole].tolist()
        units = near.astype(numpy.int64) if not wrong else numpy.empty(0, numpy.int64)
    if wrong:
        raise ConfigError(
            f"column {name!r} held {wrong[0]!r}, expected a price with at most {decimals} decimals that fits int64"
        )
    told: Mapping[str, Any] = base.metadata or {}
    absent = told.get(ABSENT)
    if absent is not None and (units == absent).any():
        raise ConfigError(
            f"column {name!r} held a price of {absent} units, expected null for no price: that is the schema's value "
            "for it"
        )
    return _integers(units, name, base).astype(base)


def _units_or_none(price: object, decimals: int) -> int | None:
    """Return a price's integer; None if it has more decimals or does not fit."""
    try:
        units = units_of(price.item() if isinstance(price, numpy.generic) else price, decimals)
    except ValueError:
        return None
    return units if abs(units) < END_OF_INT64 else None


def _instants(values: Any, name: str, unit: str, base: numpy.dtype[Any]) -> NDArray[Any]:
    """Return times since the epoch in a unit."""
    found = _array(_timestamps(values, name, unit) if _is_arrow(values) else values, name)
    return _integers(_since_epoch(found, name, unit) if found.dtype.kind == "M" else found, name, base)


def _objects(values: Any) -> list[Any]:
    found: list[Any] = values.to_pylist() if _is_arrow(values) else numpy.asarray(values).tolist()
    return found


def _padded(texts: list[Any], name: str, width: int, least: int = 0) -> NDArray[Any]:
    """Return texts padded with zeros to a width."""
    for text in texts:
        if not isinstance(text, bytes) or not least <= len(text) <= width:
            raise ConfigError(f"column {name!r} held {text!r:.80}, expected bytes, {least} to {width} of them")
    return numpy.frombuffer(b"".join(text.ljust(width, b"\0") for text in texts), f"V{width}")
