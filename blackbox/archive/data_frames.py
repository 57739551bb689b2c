"""Recorded messages, trades and quotes as Arrow tables and data frames, whole or in chunks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, Unpack, cast

from blackbox.archive.read.filter import Selection, Time, check_options
from blackbox.arguments import as_bytes, message_types_of
from blackbox.errors import ConfigError

if TYPE_CHECKING:
    import duckdb
    import pandas
    import polars
    import pyarrow

    from blackbox.archive.export.columns import Columns
    from blackbox.archive.export.pushed import Pushed
    from blackbox.archive.export.ticks import LeftOut
    from blackbox.archive.recording import Recording
    from blackbox.block.batch.batch import Batch
    from blackbox.feed.feed import Feed
    from blackbox.feed.schema.prices import Prices
    from blackbox.feed.schema.schema import Schema

Times = Literal["timestamp", "integer"]

ROWS: Final = 1 << 20
_FORM: Final = ("message_type", "prices", "times", "zone", "broken")


class FrameOptions(Selection, total=False):
    """Columns and value types of a frame, and the selection of messages."""

    message_type: str | Sequence[str] | None
    """The message type, whose fields become columns instead of the payload. With several types, the frame has all
    their messages in order. Column `message_type` holds the type; fields that a type lacks are null."""
    prices: Prices
    """"float" (the default): float64. "decimal": exact; Python objects in pandas. "integer": as sent by the venue. A
    missing price is null; so is a decimal of more than 18 digits."""
    times: Times
    """"timestamp" (the default): with nanoseconds. "integer": int64 since 1970, in ns; a record's field that the schema
    has in seconds stays in seconds. Missing times are null; with "integer", a message's missing `ts_event` is 0."""
    zone: str | None
    """Time zone of the timestamps, such as "America/New_York"; by default the feed's."""
    broken: bool
    """For trades only. True includes trades that the venue cancelled; by default they are left out."""


class Frames(ABC):
    """Messages that can be read as a table or data frame.

    Columns: `slice`, `topic`, `symbol`, `type` (of the topic; these three are dictionary-encoded in Arrow, categories
    in polars, and strings in pandas), `ts_event`, `ts_out`, `ts_recv`, `epoch`, `sequence`, and either `payload` or the
    fields of the requested types. A field with the name of another column gets the prefix `record_`.

    All methods raise as `Recording.batches`; ConfigError for invalid options or a type that the schema lacks;
    ValueError if a message's length differs from its type's; ImportError naming the missing package.
    """

    feed: Feed
    schema: Schema

    @abstractmethod
    def batches(self, prefix: str | bytes = b"", **selection: Unpack[Selection]) -> Iterator[Batch]:
        """Yield the messages of the `Selection` whose topic starts with `prefix`, block by block."""

    def to_arrow(self, prefix: str | bytes = b"", **options: Unpack[FrameOptions]) -> pyarrow.Table:
        """Return the messages of `batches` as one table in memory. See `FrameOptions`."""
        columns, selection = self._asked(options, prefix)
        return _arrow().table_of(columns, self.batches(prefix, **selection), ROWS)

    def to_pandas(self, prefix: str | bytes = b"", **options: Unpack[FrameOptions]) -> pandas.DataFrame:
        """Return `to_arrow` as a pandas data frame."""
        needs("pandas", "pandas")
        return cast("pandas.DataFrame", _arrow().to_pandas(self.to_arrow(prefix, **options)))

    def to_polars(self, prefix: str | bytes = b"", **options: Unpack[FrameOptions]) -> polars.DataFrame:
        """Return `to_arrow` as a polars data frame."""
        needs("polars", "polars")
        return cast("polars.DataFrame", _arrow().to_polars(self.to_arrow(prefix, **options)))

    def scan_polars(self, prefix: str | bytes = b"", **options: Unpack[FrameOptions]) -> polars.LazyFrame:
        """Return the rows of `to_polars` as a LazyFrame, which reads the recording when it is collected.

        A query decodes only the columns that it needs. Conditions on times, `sequence`, `epoch`, `slice`, `topic`,
        `symbol` and `type` skip parts of the recording: comparisons with constants, `is_between` and `is_in`.
        """
        schema = self._frame_schema(prefix, options)
        read = partial(self._scanned, as_bytes("prefix", prefix), options)
        return cast(
            "polars.LazyFrame", needs("polars", "polars", "blackbox.archive.export.scan").lazy_frame(schema, read)
        )

    def to_duckdb(
        self,
        connection: duckdb.DuckDBPyConnection | None = None,
        prefix: str | bytes = b"",
        **options: Unpack[FrameOptions],
    ) -> duckdb.DuckDBPyRelation:
        """Return the rows of `to_arrow` as a DuckDB relation, which reads the recording when it is queried.

        As `scan_polars`, with the conditions that DuckDB passes on. `connection`: by default DuckDB's own. Times are
        integers by default, because DuckDB does not pass on conditions on timestamps of ns.
        """
        duck, dataset = needs("duckdb", "duckdb"), needs("pyarrow", "arrow", "blackbox.archive.export.dataset")
        options = {"times": "integer", **options}
        read = partial(self._scanned, as_bytes("prefix", prefix), options)
        found = dataset.Messages(self._frame_schema(prefix, options), read)
        return cast("duckdb.DuckDBPyRelation", (connection or duck).from_arrow(found))

    def arrow_chunks(
        self, prefix: str | bytes = b"", rows: int = ROWS, **options: Unpack[FrameOptions]
    ) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows of `to_arrow`, at most `rows` at a time. Memory does not grow with the recording."""
        columns, selection = self._asked(options, prefix)
        chunks: Iterator[pyarrow.RecordBatch] = columns.chunks(self.batches(prefix, **selection), rows)
        return chunks

    def pandas_chunks(
        self, prefix: str | bytes = b"", rows: int = ROWS, **options: Unpack[FrameOptions]
    ) -> Iterator[pandas.DataFrame]:
        """Yield `arrow_chunks` as pandas data frames."""
        needs("pandas", "pandas")
        return map(_arrow().to_pandas, self.arrow_chunks(prefix, rows, **options))

    def polars_chunks(
        self, prefix: str | bytes = b"", rows: int = ROWS, **options: Unpack[FrameOptions]
    ) -> Iterator[polars.DataFrame]:
        """Yield `arrow_chunks` as polars data frames."""
        needs("polars", "polars")
        return map(_arrow().to_polars, self.arrow_chunks(prefix, rows, **options))

    def _frame_schema(self, prefix: str | bytes, options: FrameOptions) -> pyarrow.Schema:
        """Return the columns of a frame. Reads no messages."""
        return self._asked(options, prefix)[0].schema

    def _scanned(
        self, prefix: bytes, options: FrameOptions, names: list[str] | None, pushed: Pushed
    ) -> Iterator[pyarrow.RecordBatch]:
        """Yield some columns (None: all) of the rows of `to_arrow` that may meet the conditions."""
        for chunk in self.arrow_chunks(prefix, **pushed.selected(self.feed, prefix, options)):
            yield chunk if names is None else chunk.select(names)

    def _asked(self, options: FrameOptions, prefix: str | bytes) -> tuple[Columns, Selection]:
        """Split the options into columns and selection."""
        check_options(options, FrameOptions.__optional_keys__)
        given: dict[str, Any] = dict(options)
        form: dict[str, Any] = {name: given.pop(name) for name in _FORM if name in given}
        selection = cast("Selection", given)
        return self._columns(form, as_bytes("prefix", prefix), selection), selection

    def _columns(self, form: dict[str, Any], prefix: bytes, selection: Selection) -> Columns:  # noqa: ARG002
        """Return the columns: of payloads, or of message types. `Ticks` also uses the other arguments."""
        message_type = form.pop("message_type", None)
        if form.pop("broken", False):
            raise ConfigError("broken was given for messages, it applies only to recording.trades")
        if message_type is None:
            return cast("Columns", _arrow().Columns(self.feed, None, **form))
        wanted = message_types_of(message_type)
        table = needs("pyarrow", "arrow", "blackbox.archive.export.table")
        picks = tuple(table.Pick.of_type(self.schema, each) for each in wanted)
        columns: Columns = _arrow().Columns(self.feed, picks, **form, told_apart=not isinstance(message_type, str))
        return columns


class InstrumentOptions(TypedDict, total=False):
    """Value types of a table of instruments, and the messages that it is made of."""

    prices: Prices
    times: Times
    zone: str | None
    start: Time | None
    stop: Time | None
    symbols: Sequence[str | bytes] | None


class Instruments:
    """The instruments of a day of any feed whose schema declares them: one row for each symbol, venue and id.

    Columns, null if unknown: `symbol` as in frames; `venue`; `publisher_id`; `instrument_id` (the locate in ITCH);
    `name` at the venue; `instrument_class`; `lot_size`; `tick_size`; `price_decimals` of the feed's integer prices;
    `contract_size`; `currency`; `strike_price`; `underlying`; `activation`, `expiration`; `status` of trading,
    "deleted" if the venue has deleted the instrument; `mapped_from` and `mapped_until`, between which the symbol means
    this id; `messages`, the number of definitions, and `ts_first`, `ts_last`, the times of the first and the last;
    `source`, the schema and the message type.

    A row has the values of the newest definition and the newest status. With `stop` it has what was known before that
    time. An instrument without a definition that has a symbol mapping is a row too. Options are those of
    `FrameOptions`. The day is read once.

    All methods raise ConfigError if the schema declares no instruments, JournalError if the recording has none, and as
    `Frames`.
    """

    def __init__(self, recording: Recording) -> None:
        """Wrap a recording. Reads nothing."""
        self._days: Sequence[Recording] = [recording]

    def to_arrow(self, **options: Unpack[InstrumentOptions]) -> pyarrow.Table:
        """Return the instruments as a table, sorted by symbol."""
        return self._tables(options)[0]

    def to_pandas(self, **options: Unpack[InstrumentOptions]) -> pandas.DataFrame:
        """Return `to_arrow` as a pandas data frame."""
        needs("pandas", "pandas")
        return cast("pandas.DataFrame", _arrow().to_pandas(self.to_arrow(**options)))

    def to_polars(self, **options: Unpack[InstrumentOptions]) -> polars.DataFrame:
        """Return `to_arrow` as a polars data frame."""
        needs("polars", "polars")
        return cast("polars.DataFrame", _arrow().to_polars(self.to_arrow(**options)))

    def _tables(self, options: InstrumentOptions) -> list[pyarrow.Table]:
        """Return the instruments of each day."""
        check_options(options, InstrumentOptions.__optional_keys__)
        given: dict[str, Any] = dict(options)
        form = {name: given.pop(name) for name in _FORM if name in given}
        found: list[pyarrow.Table] = needs("pyarrow", "arrow", "blackbox.archive.export.instruments").instruments_of(
            self._days, form, given
        )
        return found


class InstrumentsOfDays(Instruments):
    """The instruments of several days: the rows of each day's `Instruments`, day by day.

    The columns are `feed` and `date`, then those of `Instruments`; an instrument has one row for each day. Types and
    `prices="integer"` are as in `TicksOfDays`. A day that has none in the selection has no rows: JournalError is raised
    if all days have none, ConfigError if no schema declares any.
    """

    def __init__(self, days: Sequence[Recording]) -> None:
        """Wrap recordings. Reads nothing."""
        self._days = [day for day in days if day.schema.instruments] or days
        self._zone = days[-1].feed.time_zone

    def to_arrow(self, **options: Unpack[InstrumentOptions]) -> pyarrow.Table:
        """Return the instruments as a table, day by day, each sorted by symbol."""
        zone = options.get("zone")
        tables = self._tables({**options, "zone": self._zone if zone is None else zone})
        schema = _arrow().schema_of_days([table.schema for table in tables])
        chunks = [
            _arrow().of_day(chunk, day.feed.name, day.date, schema)
            for day, table in zip(self._days, tables, strict=True)
            for chunk in table.to_batches()
        ]
        return needs("pyarrow", "arrow").Table.from_batches(chunks, schema=schema).unify_dictionaries()


class Ticks(Frames):
    """The trades or quotes of a day of any feed whose schema declares them.

    Columns: as `Frames`, with `price`, `size` and `trade_id` instead of payloads, or with `bid_price`, `bid_size`,
    `ask_price`, `ask_size`.

    Trades: `trade_id` is the venue's id, null if it has none. Frames leave out, and `left_out` counts, records of a
    wrong size, trades without a size or price, trades that the venue cancelled (unless `broken=True`), and repetitions:
    trades with the same symbol, id, price and size as an earlier one of the day. A trade that names only the order that
    it filled has that order's price; null if the order was entered before the recording began. If several types report
    the same trades or quotes, each symbol has those of its lowest rank of the day (`TradeFields.rank`).

    Quotes: a missing side is null. If a feed sends one side at a time, the other side is that of the symbol's last
    quote that had it, in recording order, even if that quote is not selected.

    The whole day is scanned first where it decides which trades count, so that a selection has the same trades as the
    day. This needs about 24 bytes of memory for each trade with an id, about 270 for each trade whose id occurs more
    than once, and the symbols' orders.
    """

    def __init__(self, source: Frames, what: Literal["trades", "quotes"]) -> None:
        """Wrap a recording. Raises ConfigError if its schema declares none."""
        self.feed, self.schema = source.feed, source.schema
        self._source, self._what = source, what
        if not getattr(self.schema, what):
            raise ConfigError(f"schema {self.schema.name!r} declares no {what}, expected some in Schema.{what}")

    def batches(self, prefix: str | bytes = b"", **selection: Unpack[Selection]) -> Iterator[Batch]:
        """Yield all messages; frames select the trades or quotes."""
        return self._source.batches(prefix, **selection)

    def left_out(self, prefix: str | bytes = b"", **selection: Unpack[Selection]) -> LeftOut:
        """Return how many messages of the declared types are left out of the selection, by reason."""
        found: LeftOut = _ticks().left_out_of(self._source, self._what, as_bytes("prefix", prefix), selection)
        return found

    def _columns(self, form: dict[str, Any], prefix: bytes, selection: Selection) -> Columns:
        broken = form.pop("broken", False)
        if form.pop("message_type", None) is not None:
            raise ConfigError(f"message_type was given for {self._what}, the schema defines their types")
        if broken and self._what == "quotes":
            raise ConfigError("broken was given for quotes, it applies only to trades")
        picks = _ticks().picks_of(self._source, self._what, prefix, selection, broken)
        columns: Columns = _arrow().Columns(self.feed, picks, **form)
        return columns


class TicksOfDays(Frames):
    """The trades or quotes of several days: the rows of each day's `Ticks`, day by day.

    The columns are `feed` and `date`, then those of `Ticks`. Days are independent: orders, ranks, ids, cancelled
    trades and sides of quotes are those of one day.

    If the schemas differ, a column's type holds the values of all days, and a day whose schema declares no trades (or
    quotes) has no rows. `prices="integer"` requires prices of equal decimals.
    """

    def __init__(self, days: Sequence[Recording], what: Literal["trades", "quotes"]) -> None:
        """Wrap recordings. Raises ConfigError if no schema declares any."""
        self.feed, self.schema = days[-1].feed, days[-1].schema
        declaring = [day for day in days if getattr(day.schema, what)]
        self._days = [(day, Ticks(day, what)) for day in declaring or days]

    def batches(self, prefix: str | bytes = b"", **selection: Unpack[Selection]) -> Iterator[Batch]:
        """Yield all messages, day by day; frames select the trades or quotes."""
        for _, ticks in self._days:
            yield from ticks.batches(prefix, **selection)

    def left_out(self, prefix: str | bytes = b"", **selection: Unpack[Selection]) -> LeftOut:
        """Return how many messages of all days are left out: see `Ticks.left_out`."""
        return sum((ticks.left_out(prefix, **selection) for _, ticks in self._days), _ticks().LeftOut())

    def to_arrow(self, prefix: str | bytes = b"", **options: Unpack[FrameOptions]) -> pyarrow.Table:
        """Return the rows of all days as one table in memory. See `FrameOptions`."""
        schema = self._schema_of(options)
        chunks = self.arrow_chunks(prefix, **options)
        return needs("pyarrow", "arrow").Table.from_batches(chunks, schema=schema).unify_dictionaries()

    def arrow_chunks(
        self, prefix: str | bytes = b"", rows: int = ROWS, **options: Unpack[FrameOptions]
    ) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows of `to_arrow`, at most `rows` of one day at a time."""
        schema = self._schema_of(options)
        options = self._in_one_zone(options)
        return (
            _arrow().of_day(chunk, day.feed.name, day.date, schema)
            for day, ticks in self._days
            for chunk in ticks.arrow_chunks(prefix, rows, **options)
        )

    def _frame_schema(self, prefix: str | bytes, options: FrameOptions) -> pyarrow.Schema:  # noqa: ARG002
        return self._schema_of(options)

    def _schema_of(self, options: FrameOptions) -> pyarrow.Schema:
        """Return the columns of all days. Reads no messages."""
        options = self._in_one_zone(options)
        return _arrow().schema_of_days([ticks._asked(options, b"")[0].schema for _, ticks in self._days])

    def _in_one_zone(self, options: FrameOptions) -> FrameOptions:
        zone = options.get("zone")
        return {**options, "zone": self.feed.time_zone if zone is None else zone}


def needs(library: str, extra: str, module: str = "") -> Any:
    """Import a module that requires an optional library."""
    try:
        return import_module(module or library)
    except ImportError as error:
        raise ImportError(f"this needs {library}: pip install 'blackbox-md[{extra}]' ({error})") from error


def scanned(
    recording: Recording, columns: Columns, prefix: bytes, selection: Selection, pushed: Pushed
) -> Iterator[pyarrow.RecordBatch]:
    """Yield columns of a recording's messages that may meet the conditions."""
    gathered = needs("pyarrow", "arrow", "blackbox.archive.export.gathered").gathered
    found: Iterator[pyarrow.RecordBatch] = gathered(recording, columns, prefix, selection, pushed)
    return found


def _arrow() -> Any:
    return needs("pyarrow", "arrow", "blackbox.archive.export.columns")


def _ticks() -> Any:
    return needs("pyarrow", "arrow", "blackbox.archive.export.ticks")
