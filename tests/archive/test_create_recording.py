"""Recordings made from a user's columns: every input format is read back unchanged."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy
import pandas
import polars
import pyarrow
import pytest
from blackbox_feeds.dbn import Dbn
from blackbox_feeds.itch50 import Itch50
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox import ConfigError, Feed, Recording, Schema, Source
from blackbox.archive.importing.import_days import import_days
from blackbox.errors import JournalError
from blackbox.feed.schema.schema import price
from tests.examples import examples
from tests.ticks import TICK, TICK_ROWS, TICKS

NOON = 1_767_614_400 * 10**9
"""2026-01-05 12:00 UTC."""
TOPICS = [b"A.t", b"B.q", b"A.t", b"BRK.A.t"]
ROWS = [(topic, NOON + i, b"payload %d" % i if i != 2 else None) for i, topic in enumerate(TOPICS)]
COLUMNS = dict(zip(("topic", "ts_event", "payload"), map(list, zip(*ROWS, strict=True)), strict=True))


def rows_of(recording: Recording) -> list[tuple[bytes, int, bytes | None]]:
    return [(message.topic, message.ts_event, message.payload) for batch in recording.batches() for message in batch]


def feed_of(schema: str | Schema = "raw", slices: int = 1, **settings: Any) -> Feed:
    return Feed.local("own", slices=slices, schema=schema, **settings)


def as_form(columns: dict[str, list[Any]], form: str) -> Any:
    """Return columns as another kind of table."""
    if form == "lists":
        return columns
    if form == "numpy":
        texts = {name: numpy.array([*columns[name], None], object)[:-1] for name in ("topic", "payload")}
        return {**texts, "ts_event": numpy.array(columns["ts_event"])}
    types = (pyarrow.binary(), pyarrow.int64(), pyarrow.binary())
    table = pyarrow.table([pyarrow.array(*each) for each in zip(columns.values(), types, strict=True)], list(columns))
    if form == "chunks":
        return pyarrow.concat_tables([table.slice(0, len(table) // 2), table.slice(len(table) // 2)])
    return {"arrow": table, "pandas": table.to_pandas(), "polars": polars.from_arrow(table)}[form]


@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from([b"A.t", b"B.q", b"\xff\xfe.x", b"AAPL.trade", b"C"]),
            st.integers(0, 2),
            st.none() | st.binary(max_size=9),
        )
    ),
    slices=st.integers(1, 3),
    keys=st.sampled_from([{}, {"key_bytes": 1}, {"key_bytes": 3}, {"channels": 3}]),
    form=st.sampled_from(["lists", "numpy", "arrow", "chunks", "pandas", "polars"]),
    compression=st.sampled_from(["none", "lz4", "zstd"]),
)
@settings(max_examples=examples(60))
def test_columns_are_read_back_unchanged(rows: list[Any], slices: int, keys: Any, form: str, compression: Any) -> None:
    topics, times, payloads = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
    times = [NOON + time if time else 0 for time in times]
    columns = as_form({"topic": topics, "ts_event": times, "payload": payloads}, form)
    with TemporaryDirectory() as directory:
        feed = feed_of(slices=slices, **keys)
        date = datetime.date(2026, 1, 5)
        recording = Recording.create(directory, feed, columns, date=date, compression=compression)
        assert recording.verify() == []
        found: dict[tuple[int, bytes], list[Any]] = {}
        for batch in recording.batches():
            rows = [(message.topic, message.ts_event, message.payload) for message in batch]
            found.setdefault((batch.block.slice_id, batch.block.key), []).extend(rows)
        expected: dict[tuple[int, bytes], list[Any]] = {}
        for row in zip(topics, times, payloads, strict=True):
            expected.setdefault((feed.slice_of(row[0]), feed.key_of(row[0])), []).append(row)
        assert found == expected


@pytest.mark.parametrize("compact", [pandas.Categorical, pyarrow.DictionaryArray])
def test_topics_may_be_text_and_categorical(tmp_path: Path, compact: Any) -> None:
    names = [topic.decode() for topic, _, _ in ROWS]
    if compact is pandas.Categorical:
        table = pandas.DataFrame({**COLUMNS, "topic": pandas.Categorical(names)})
    else:
        parts = [names[:2], names[2:]]
        topics = pyarrow.chunked_array([pyarrow.array(part).dictionary_encode() for part in parts])
        table = pyarrow.table({**COLUMNS, "topic": topics})
    assert rows_of(Recording.create(tmp_path, feed_of(), table)) == ROWS


@pytest.mark.parametrize("form", ["numpy", "arrow", "pandas", "pandas with a zone", "polars"])
def test_times_may_be_timestamps_and_missing(tmp_path: Path, form: str) -> None:
    """Those without a zone are UTC in any feed."""
    whole = numpy.array([NOON, NOON + 1_000, 0, NOON + 3_000])
    stamps = whole.astype("datetime64[ns]")
    stamps[2] = "NaT"
    columns: Any = {**COLUMNS, "ts_event": stamps}
    if form == "arrow":
        columns["ts_event"] = pyarrow.array(stamps, pyarrow.timestamp("ns", "America/New_York"))
        columns = pyarrow.table(columns)
    elif form == "pandas":
        columns = pandas.DataFrame(columns)
    elif form == "pandas with a zone":
        columns["ts_event"] = pandas.Series(stamps).dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo")
        columns = pandas.DataFrame(columns)
    elif form == "polars":
        columns["ts_event"] = pyarrow.array(stamps.astype("datetime64[us]"))
        columns = polars.from_arrow(pyarrow.table(columns))
    feed = msgspec.structs.replace(feed_of(), time_zone="America/New_York")
    found = rows_of(Recording.create(tmp_path, feed, columns))
    assert [time for _, time, _ in found] == whole.tolist()


def test_payloads_may_be_rows_of_bytes_or_records(tmp_path: Path) -> None:
    records = numpy.array([(1, 2.5), (3, 4.5), (5, 0.0), (7, 8.5)], [("a", "<i4"), ("b", "<f8")])
    octets = records.view(numpy.uint8).reshape(4, -1)
    for name, payload in (("records", records), ("octets", octets)):
        recording = Recording.create(tmp_path / name, feed_of(), {**COLUMNS, "payload": payload})
        assert [row[2] for row in rows_of(recording)] == [row.tobytes() for row in octets]


@pytest.mark.parametrize(("name", "kinds", "form"), [("itch50", "RHYLAPDEXFU", "polars"), ("dbn", ["mbo"], "pandas")])
def test_typed_messages_of_a_venue_are_written_from_their_fields(
    shared_data: Path, tmp_path: Path, name: str, kinds: Any, form: str
) -> None:
    source: Source = Itch50(shared_data / "itch50/runk_locate-13-10k.bin", date="2020-01-30")
    if name == "dbn":
        source = Dbn(next((shared_data / "dbn").glob("esh4-*20231224.mbo.dbn.zst")))
    (day,) = import_days(feed_of(source.schema.name), tmp_path / "source", [source])
    recording = Recording.open(day.path)
    for kind in kinds:
        expected = recording.to_arrow(message_type=kind)
        assert expected.num_rows
        table = getattr(recording, f"to_{form}")(message_type=kind)
        again = Recording.create(tmp_path, recording.feed, table, message_type=kind, date=recording.date, replace=True)
        columns = [column for column in expected.column_names if column not in ("ts_out", "ts_recv", "sequence")]
        assert again.to_arrow(message_type=kind).select(columns).to_pydict() == expected.select(columns).to_pydict()
        assert again.schema == recording.schema


def test_a_custom_schema_may_have_every_kind_of_field(tmp_path: Path) -> None:
    records = numpy.array(TICK_ROWS, TICK)
    columns = {name: records[name] for name in TICK.names or () if name != "type"}
    columns |= {"topic": numpy.array(["A.tick"] * len(records)), "ts_event": numpy.arange(len(records)) + NOON}
    recording = Recording.create(tmp_path, feed_of(TICKS), columns, message_type="tick")
    found = numpy.concatenate([batch.records("tick") for batch in recording.batches()])
    assert found.tobytes() == records.tobytes()
    again = Recording.open(recording.path)
    table = again.to_arrow(message_type="tick")
    other = Recording.create(tmp_path / "other", feed_of(TICKS), table, message_type="tick")
    assert numpy.concatenate([batch.records("tick") for batch in other.batches()]).tobytes() == records.tobytes()
    document = json.loads((recording.path / "manifest.json").read_text())
    assert document["schema"]["name"] == "ticks"


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1), st.sampled_from(["float", "decimal", "integer"]))
@settings(max_examples=examples(60))
def test_prices_in_currency_become_the_same_units(units: list[int], prices: Any) -> None:
    columns: dict[str, Any] = {"topic": ["A"] * len(units), "ts_event": [NOON] * len(units), "price": units}
    columns |= {"rate": [0.5] * len(units), "up": [True] * len(units), "sizes": [(1, 2)] * len(units)}
    with TemporaryDirectory() as directory:
        one = Recording.create(Path(directory) / "one", feed_of(TICKS), columns, message_type="tick")
        table = one.to_arrow(message_type="tick", prices=prices)
        two = Recording.create(Path(directory) / "two", feed_of(TICKS), table, message_type="tick")
        assert numpy.concatenate([each.records("tick")["price"] for each in two.batches()]).tolist() == units


def test_a_missing_price_is_stored_as_the_absent_value(tmp_path: Path) -> None:
    sides = ("bid", price("<i8", 4, absent=2**63 - 1)), ("ask", price("<u8", 4, absent=2**64 - 1))
    quote = numpy.dtype([("type", "S1"), *sides])
    feed = feed_of(Schema("sides", 1_002, {"q": quote}, names={"quote": "q"}))
    columns = {"topic": ["A", "B"], "ts_event": [NOON, NOON], "bid": [None, 1.5], "ask": numpy.array([2.5, numpy.nan])}
    (batch,) = Recording.create(tmp_path, feed, columns, message_type="quote").batches()
    records = batch.records("quote")
    assert (records["bid"].tolist(), records["ask"].tolist()) == ([2**63 - 1, 15_000], [25_000, 2**64 - 1])


def without(name: str) -> dict[str, Any]:
    return {column: values for column, values in COLUMNS.items() if column != name}


FAR = numpy.array(["2026-01-05", "NaT", "9999-12-31", "2026-01-05"], "M8[D]")


@pytest.mark.parametrize(
    ("table", "settings", "error", "text"),
    [
        (without("payload"), {}, ConfigError, "lacked column 'payload', expected: topic, ts_event, payload"),
        (without("ts_event"), {}, ConfigError, "lacked column 'ts_event'"),
        ({**COLUMNS, "ts_evnet": [1] * 4}, {}, ConfigError, "'ts_evnet' .did you mean 'ts_event'"),
        ({**COLUMNS, "ts_event": [NOON]}, {}, ConfigError, "column 'ts_event' had 1 values, expected 4 as 'topic'"),
        ({**COLUMNS, "ts_event": [0.5] * 4}, {}, ConfigError, "column ts_event held float64, expected integers"),
        ({**COLUMNS, "ts_event": FAR}, {}, ConfigError, "'ts_event' held a time that does not fit ns: 9999-12-31"),
        (pyarrow.table({**COLUMNS, "ts_event": FAR.astype("M8[s]")}), {}, ConfigError, "'ts_event' held a time"),
        ({**COLUMNS, "ts_event": ["2026-01-05T12:00"] * 4}, {}, ConfigError, "held '2026-01-05T12:00', expected ns"),
        ({**COLUMNS, "ts_event": pyarrow.array(["12:00"] * 4)}, {}, ConfigError, "'ts_event' held '12:00', expected"),
        ({**COLUMNS, "ts_event": [datetime.date.min] * 4}, {}, ConfigError, r"held datetime.date\(1, 1, 1\), .* UTC"),
        ({**COLUMNS, "topic": [1, 2, 3, 4]}, {}, ConfigError, "column 'topic' held 1, expected text or bytes"),
        ({**COLUMNS, "topic": ["", "B", "C", "D"]}, {}, ConfigError, "topic was empty"),
        (pyarrow.table({**COLUMNS, "topic": ["A", None, "B", "C"]}), {}, ConfigError, "'topic' had 1 nulls"),
        (pyarrow.table({**COLUMNS, "payload": [1, 2, 3, 4]}), {}, ConfigError, "'payload' was of int64"),
        ({**COLUMNS, "ts_event": [NOON, NOON - 86_400 * 10**9, 0, 0]}, {}, ConfigError, "were of 2026-01-04 to"),
        ({**COLUMNS, "ts_event": [0] * 4}, {}, ConfigError, "no message had a time, expected a date"),
        ({**COLUMNS, "ts_event": [NOON // 10**9] * 4}, {}, ConfigError, "'ts_event' ran to 1767614400, expected ns"),
        ({**COLUMNS, "ts_event": [NOON // 1_000] * 4}, {}, ConfigError, "'ts_event' ran to 1767614400000000, expected"),
        ({**COLUMNS, "ts_event": [-5] * 4}, {}, ConfigError, "'ts_event' ran to -5, expected ns since 1970"),
        (COLUMNS, {"date": datetime.date(1970, 1, 1)}, ConfigError, "date was 1970-01-01, expected one that begins"),
        ({**COLUMNS, "price": [1] * 4}, {"message_type": "x"}, ConfigError, "schema 'ticks': message type was 'x'"),
        ([1, 2], {}, TypeError, r"table was \[1, 2\], expected a dict of columns, an Arrow table or a data frame"),
    ],
)  # fmt: skip
def test_an_invalid_column_is_named_and_nothing_is_written(
    tmp_path: Path, table: Any, settings: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Recording.create(tmp_path, feed_of(TICKS if "message_type" in settings else "raw"), table, **settings)
    assert list(tmp_path.rglob("manifest.json")) == []


@pytest.mark.parametrize(
    ("field", "values", "text"),
    [
        ("price", [1 << 40] * 4, "column price ran from 1099511627776 to 1099511627776, expected int32"),
        ("price", [1.505] * 4, "column 'price' held 1.505, expected a price with at most 2 decimals"),
        ("price", [float("nan")] * 4, "column 'price' had 4 nulls, expected none: the schema has no 'absent' value"),
        ("price", [Decimal("1.505")] * 4, "'price' held Decimal..1.505.., expected a price with at most 2 decimals"),
        ("price", [1e30] * 4, r"'price' held 1e\+30, expected a price with at most 2 decimals that fits int64"),
        ("price", [Decimal("1e30")] * 4, r"'price' held Decimal\('1E\+30'\), expected a price .* that fits int64"),
        ("price", [Decimal("Infinity")] * 4, "'price' held Decimal.'Infinity'., expected a price"),
        ("price", [None, 1.5, 1.5, 1.5], "column 'price' had 1 nulls, expected none: the schema has no 'absent' value"),
        ("price", [1e9] * 4, "column price ran from 100000000000 to 100000000000, expected int32"),
        ("sizes", [b"123"] * 4, "column 'sizes' held b'123', expected bytes, 4 to 4 of them"),
    ],
)
def test_an_invalid_field_value_is_named(tmp_path: Path, field: str, values: Any, text: str) -> None:
    columns = {"topic": ["A"] * 4, "ts_event": [NOON] * 4, "price": [1] * 4, "rate": [0.5] * 4, "up": [True] * 4}
    columns["sizes"] = [(1, 2)] * 4
    with pytest.raises(ConfigError, match=text):
        Recording.create(tmp_path, feed_of(TICKS), {**columns, field: values}, message_type="tick")


def test_an_existing_day_is_kept_unless_replace_is_given(tmp_path: Path) -> None:
    recording = Recording.create(tmp_path, feed_of(), COLUMNS)
    with pytest.raises(JournalError, match="2026-01-05 exists, expected a day that is not there yet"):
        Recording.create(tmp_path, feed_of(), COLUMNS)
    half = {name: values[:2] for name, values in COLUMNS.items()}
    assert rows_of(Recording.create(tmp_path, feed_of(), half, replace=True)) == ROWS[:2]
    assert recording.path.exists()


def test_a_date_may_be_text(tmp_path: Path) -> None:
    columns = {"topic": [b"A"], "ts_event": [10**18], "payload": [b"x"]}
    recording = Recording.create(tmp_path, feed_of("raw"), columns, date="2001-09-10")
    assert recording.date == datetime.date(2001, 9, 10)
    wrong: list[tuple[Any, type[Exception]]] = [("2026-02-30", ConfigError), (20260102, TypeError)]
    for date, error in wrong:
        with pytest.raises(error, match=rf"date was {date!r}, expected .*2019-12-30"):
            Recording.create(tmp_path, feed_of("raw"), columns, date=date)
