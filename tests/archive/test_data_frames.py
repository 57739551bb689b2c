"""Frames and times against a slow reference, which decodes each message with `struct`, `decimal` and `datetime`."""

from __future__ import annotations

import datetime
import struct
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy
import pandas
import polars
import pyarrow
import pytest
from blackbox_feeds.iex import DEEP10, TOPS16
from blackbox_feeds.itch50 import SCHEMA as ITCH50
from blackbox_feeds.itch50 import timestamps_ns
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blackbox import ConfigError, Recording, Schema
from blackbox.archive.recordings import Recordings
from blackbox.block.columns.arrow import record_column
from blackbox.feed.schema.schema import SINCE_MIDNIGHT, price
from tests.archive.written_days import ns, told
from tests.examples import examples
from tests.journals import Day, Put, Row, feed_of

NEW_YORK = "America/New_York"
TRADE = numpy.dtype(
    [
        ("kind", "S1"),
        ("price", price("<i8", 4, absent=2**63 - 1)),
        ("venue", "S3"),
        ("clock", numpy.dtype(("u1", (6,)), metadata={SINCE_MIDNIGHT: NEW_YORK})),
        ("rate", "<f8"),
        ("good", "?"),
        ("topic", "<i2"),
    ]
)
TRADE_STRUCT = struct.Struct("<cq3s6sd?h")
QUOTE = numpy.dtype([("kind", "S1"), ("size", "<u4"), ("price", price("<i4", 2)), ("maker", "S2")])
QUOTE_STRUCT = struct.Struct("<cIi2s")
MADE = Schema("made", 1_002, {"T": TRADE, "Q": QUOTE}, names={"quote": "Q"})
BASE = ["slice", "topic", "symbol", "type", "ts_event", "ts_out", "ts_recv", "epoch", "sequence"]
UNITS = st.sampled_from([0, 1, -1, 12_345, 10**18 - 1, 10**18, -(10**18), 2**63 - 1, -(2**63)])
TIMES = st.sampled_from([0, 1, 1_700_000_000_123_456_789, -(10**18), 2**62])
TRADES = st.builds(
    lambda units, venue, clock, *rest: TRADE_STRUCT.pack(b"T", units, venue, clock.to_bytes(6, "big"), *rest),
    UNITS, st.sampled_from([b"X", b"AB ", b"\xe9\n", b""]), st.integers(0, 86_400 * 10**9),
    st.floats(allow_nan=False), st.booleans(), st.integers(-9, 9),
)  # fmt: skip
QUOTES = st.builds(
    lambda size, units, maker: QUOTE_STRUCT.pack(b"Q", size, units, maker),
    st.integers(0, 2**32 - 1), st.integers(-(2**31), 2**31 - 1), st.sampled_from([b"M1", b"M "]),
)  # fmt: skip
TOPICS = st.sampled_from([b"AA.T", b"AA.Q", b"A.B.T", b"AZ", b"A\xff.T"])
ROWS = st.builds(Row, TOPICS, st.one_of(TRADES, QUOTES), TIMES)
BLOCKS = st.lists(st.lists(ROWS, min_size=1, max_size=8), max_size=5)


def instant(ns: int, form: dict[str, Any]) -> Any:
    """Return a time in the frame's format."""
    return ns if form.get("times") == "integer" else pandas.Timestamp(ns, tz="UTC")


def money(units: int, decimals: int, form: dict[str, Any]) -> Any:
    prices = form.get("prices", "float")
    if units == 2**63 - 1 or (prices == "decimal" and abs(units) >= 10**18):
        return None
    if prices == "integer":
        return units
    exact = Decimal(units).scaleb(-decimals)
    return exact if prices == "decimal" else float(exact)


def text(value: bytes) -> str:
    return value.decode("latin-1").rstrip("\0 \t\n\v\f\r")


def decoded(payload: bytes, form: dict[str, Any]) -> dict[str, Any]:
    if payload[:1] == b"Q":
        kind, size, units, maker = QUOTE_STRUCT.unpack(payload)
        return {"kind": text(kind), "size": size, "price": money(units, 2, form), "maker": text(maker)}
    kind, units, venue, clock, rate, good, number = TRADE_STRUCT.unpack(payload)
    return {
        "kind": text(kind),
        "price": money(units, 4, form),
        "venue": text(venue),
        "clock": int.from_bytes(clock, "big"),
        "rate": rate,
        "good": good,
        "record_topic": number,
    }


def reference(day: Day, kinds: str, form: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the expected rows of a frame of these types."""
    rows = []
    for message in day.told():
        if kinds and message.payload[:1].decode() not in kinds:
            continue
        symbol, dot, kind = message.topic.rpartition(b".")
        names = [each.decode(errors="backslashreplace") for each in (message.topic, symbol if dot else kind, kind)]
        event = None if message.ts_event == 0 and form.get("times") != "integer" else instant(message.ts_event, form)
        base = {
            "slice": message.slice_id,
            "topic": names[0],
            "symbol": names[1],
            "type": names[2] if dot else None,
            "ts_event": event,
            "ts_out": instant(message.ts_out, form),
            "ts_recv": instant(message.ts_recv, form),
            "epoch": message.epoch,
            "sequence": message.sequence,
        }
        rows.append(base | (decoded(message.payload, form) if kinds else {"payload": message.payload}))
    return rows


def rows_of(table: pyarrow.Table | pyarrow.RecordBatch) -> list[dict[str, Any]]:
    """Return plain values, times in UTC with all nanoseconds."""
    plain = {}
    for name in table.schema.names:
        column = table.column(name)
        if pyarrow.types.is_timestamp(column.type) and column.type.unit == "ns":
            numbers = column.cast(pyarrow.int64()).to_pylist()
            plain[name] = [None if ns is None else pandas.Timestamp(ns, tz="UTC") for ns in numbers]
        else:
            plain[name] = column.to_pylist()
    return [dict(zip(plain, row, strict=True)) for row in zip(*plain.values(), strict=True)]


def made_day(path: Path, blocks: list[list[Row]]) -> Day:
    day = Day(path, feed_of(schema="made", time_zone=NEW_YORK))
    day.write_manifest(MADE)
    first = 0
    puts = []
    for number, rows in enumerate(blocks):
        puts.append(Put(tuple(rows), first, ts_out=10**9 + number, ts_recv=2 * 10**9 + number, epoch=7))
        first += len(rows)
    if puts:
        day.put(0, *puts)
    return day


few = settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
FORMS = st.fixed_dictionaries(
    {},
    optional={
        "prices": st.sampled_from(["float", "decimal", "integer"]),
        "times": st.sampled_from(["timestamp", "integer"]),
        "zone": st.sampled_from(["UTC", NEW_YORK, "Asia/Kolkata"]),
    },
)


@few
@given(BLOCKS, FORMS)
def test_a_frame_of_one_type_has_the_fields_of_each_message(blocks: list[list[Row]], form: dict[str, Any]) -> None:
    with TemporaryDirectory() as path:
        day = made_day(Path(path), blocks)
        recording = Recording.open(path)
        for kind, named in (("T", "T"), ("Q", "quote")):
            table = recording.to_arrow(message_type=named, **form)
            table.validate(full=True)
            assert rows_of(table) == reference(day, kind, form)
        assert rows_of(recording.to_arrow(**form)) == reference(day, "", form)


@few
@given(BLOCKS, FORMS, st.integers(1, 9))
def test_several_types_keep_their_order_in_chunks(blocks: list[list[Row]], form: dict[str, Any], rows: int) -> None:
    if form.get("prices") == "decimal":
        form = {**form, "prices": "float"}
    with TemporaryDirectory() as path:
        day = made_day(Path(path), blocks)
        recording = Recording.open(path)
        kinds = ["quote", "T"]
        chunks = list(recording.arrow_chunks(rows=rows, message_type=kinds, **form))
        assert all(0 < len(chunk) <= rows for chunk in chunks)
        found = [row for chunk in chunks for row in rows_of(chunk)]
        names = recording.to_arrow(message_type=kinds, **form).column_names
        assert names[:12] == [*BASE, "message_type", "kind", "size"]
        told = []
        for row in reference(day, "TQ", form):
            row["message_type"] = {"Q": "quote", "T": "T"}[row["kind"]]
            told.append({name: row.get(name) for name in names})
        assert found == told


def test_frames_of_pandas_and_polars_are_typed(tmp_path: Path) -> None:
    trade = TRADE_STRUCT.pack(b"T", 2**63 - 1, b"X", bytes(6), 1.5, True, 3)
    quote = QUOTE_STRUCT.pack(b"Q", 2**32 - 1, 1_050, b"M1")
    made_day(tmp_path, [[Row(b"AA.T", trade, 5), Row(b"AA.Q", quote, 1_700_000_000_000_000_001)]])
    recording = Recording.open(tmp_path)
    frame = recording.to_pandas(message_type=["T", "Q"])
    kinds = {name: str(kind) for name, kind in frame.dtypes.items()}
    zone = f"datetime64[ns, {NEW_YORK}]"
    assert [kinds[name] for name in (*BASE, "message_type")] == [
        "uint16", "object", "object", "object", zone, zone, zone, "int64", "int64", "object",
    ]  # fmt: skip
    assert [kinds[name] for name in ("price", "size")] == ["float64", "UInt32"]
    assert frame["ts_event"][1] == pandas.Timestamp("2023-11-14 17:13:20.000000001", tz=NEW_YORK)
    assert frame["price"].isna().tolist() == [True, False]
    assert frame["price"][1] == 10.5
    assert frame["record_topic"].tolist() == [3, pandas.NA]
    assert recording.to_pandas(message_type="T", prices="integer")["price"].tolist() == [pandas.NA]
    lean = recording.to_polars(message_type=["T", "Q"], zone="Asia/Tokyo")
    schema = lean.schema
    assert (schema["topic"], schema["message_type"]) == (polars.Categorical, polars.Categorical)
    assert schema["ts_event"] == polars.Datetime("ns", "Asia/Tokyo")
    assert lean["price"].to_list() == [None, 10.5]
    assert lean["symbol"].to_list() == ["AA", "AA"]
    for chunks in (
        recording.pandas_chunks(rows=1, message_type="Q"),
        recording.polars_chunks(rows=1, message_type="Q"),
    ):
        (chunk,) = chunks
        assert (list(chunk["price"]), list(chunk["topic"])) == ([10.5], ["AA.Q"])


def test_an_empty_selection_gives_empty_frames_with_columns(tmp_path: Path) -> None:
    made_day(tmp_path, [])
    recording = Recording.open(tmp_path)
    for options in ({}, {"message_type": "T"}, {"message_type": ["T", "Q"]}):
        names = recording.to_arrow(**options).column_names
        assert names[:9] == BASE
        assert list(recording.to_pandas(**options).columns) == recording.to_polars(**options).columns == names
        assert list(recording.arrow_chunks(**options)) == []


def test_several_days_are_one_frame_if_their_messages_have_the_same_fields(tmp_path: Path) -> None:
    quote, paths = QUOTE_STRUCT.pack(b"Q", 1, 1_050, b"M1"), [tmp_path / f"2026-11-{number}" for number in (20, 21)]
    for number, path in enumerate(paths, 20):
        made_day(path, [[Row(b"AA.Q", quote, number), Row(b"B%d.Q" % number, quote, number)]])
    days = Recordings([Recording.open(path) for path in paths])
    assert days.to_polars(message_type="Q")["topic"].to_list() == ["AA.Q", "B20.Q", "AA.Q", "B21.Q"]
    assert days.to_pandas(message_type="Q")["topic"].tolist() == ["AA.Q", "B20.Q", "AA.Q", "B21.Q"]
    assert [len(chunk) for chunk in days.arrow_chunks(message_type="Q", rows=3)] == [3, 1]


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"prices": "cents"}, ConfigError, "prices was 'cents', expected one of: integer, float, decimal"),
        ({"times": "ns"}, ConfigError, "times was 'ns', expected one of: timestamp, integer"),
        ({"zone": "New York"}, ConfigError, "time zone was 'New York', expected a name such as 'America/New_York'"),
        ({"message_type": "X"}, ConfigError, "schema 'made': message type was 'X', expected one of: quote"),
        ({"message_type": []}, ConfigError, "message_type was [], expected a message type, or a list of several"),
        ({"message_type": ["T", "T"]}, ConfigError, "message_type was ['T', 'T'], expected a message type, or a list"),
        ({"rows": 0}, ValueError, "rows were 0, expected at least 1"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, options: dict[str, Any], error: type[Exception], told: str) -> None:
    made_day(tmp_path, [[Row(b"A.T", b"")]])
    with pytest.raises(error) as raised:
        next(Recording.open(tmp_path).arrow_chunks(**options))
    assert told in str(raised.value)


def test_fields_of_one_name_without_a_common_type_are_rejected(tmp_path: Path) -> None:
    kinds = {"A": numpy.dtype([("kind", "S1"), ("x", "V2")]), "B": numpy.dtype([("kind", "S1"), ("x", "<f8")])}
    day = Day(tmp_path, feed_of(schema="apart"))
    day.write_manifest(Schema("apart", 1_003, kinds))
    recording = Recording.open(tmp_path)
    with pytest.raises(ConfigError, match=r"'x' was fixed_size_binary\[2\] and double, with no .*: read .* separately"):
        recording.to_arrow(message_type=["A", "B"])
    assert [recording.to_arrow(message_type=kind).num_rows for kind in "AB"] == [0, 0]


def test_a_message_with_the_wrong_length_for_its_type_is_an_error(tmp_path: Path) -> None:
    made_day(tmp_path, [[Row(b"A.T", b"Q1"), Row(b"A.T", b"Q")]])
    recording = Recording.open(tmp_path)
    reads: list[Callable[..., object]] = [recording.to_arrow, lambda **each: recording.scan_polars(**each).collect()]
    for read in reads:
        with pytest.raises(ValueError, match="is of type 'quote' but has 2 bytes, expected 11"):
            read(message_type="quote")


@pytest.mark.parametrize("method", ["to_arrow", "to_pandas", "to_polars", "arrow_chunks", "pandas_chunks", "batches"])
def test_a_misspelt_option_is_an_error(tmp_path: Path, method: str) -> None:
    made_day(tmp_path, [])
    with pytest.raises(TypeError, match="option was 'stpo', expected one of: .*start, stop"):
        getattr(Recording.open(tmp_path), method)(stpo="14:31")


def test_records_and_times_of_a_recorded_batch(tmp_path: Path) -> None:
    event = numpy.zeros(2, ITCH50.dtype("S"))
    event["message_type"], event["event_code"], event["tracking_number"] = b"S", b"O", (1, 2)
    rows = tuple(Row(b"S", row.tobytes(), i) for i, row in enumerate(event))
    Day(tmp_path, feed_of(schema="itch50")).put(0, Put(rows, 5, ts_out=7, ts_recv=9))
    (batch,) = Recording.open(tmp_path).batches()
    assert (batch.ts_out, batch.ts_recv, batch.sequence.tolist()) == (7, 9, [5, 6])
    assert batch.records("S")["tracking_number"].tolist() == [1, 2]
    assert [message.record.event_code for message in batch] == [b"O", b"O"]
    with pytest.raises(ValueError, match="topics have no numbers"):
        _ = batch.topic_numbers


def test_every_type_of_every_schema_becomes_columns() -> None:
    draw = numpy.random.default_rng(1)
    for schema in (DEEP10, TOPS16, ITCH50):
        for kind, dtype in schema.records.items():
            records = draw.integers(0, 128, (50, dtype.itemsize), numpy.uint8).view(dtype).reshape(-1)
            arrow = schema.arrow(kind)
            columns = [record_column(records[field.name], field) for field in arrow]
            assert [column.type for column in columns] == arrow.types
            for name, column in zip(arrow.names, columns, strict=True):
                if records[name].dtype.kind in "iu" and records[name].ndim == 1:
                    absent = (records[name].dtype.metadata or {}).get("absent")
                    expected = [None if each == absent else each for each in records[name].tolist()]
                    assert column.cast(pyarrow.int64()).to_pylist() == expected
            if schema is ITCH50:
                assert columns[3].to_pylist() == timestamps_ns(records["timestamp"]).tolist()


@pytest.mark.parametrize(("library", "extra"), [("pyarrow", "arrow"), ("pandas", "pandas"), ("polars", "polars")])
def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, extra: str) -> None:
    Day(tmp_path, feed_of())
    recording = Recording.open(tmp_path)
    monkeypatch.setitem(sys.modules, library, None)
    for module in ("columns", "table", "ticks"):
        monkeypatch.delitem(sys.modules, f"blackbox.archive.export.{module}", raising=False)
    monkeypatch.delitem(sys.modules, "blackbox.block.columns.arrow", raising=False)
    make = {"pyarrow": recording.to_arrow, "pandas": recording.to_pandas, "polars": recording.to_polars}[library]
    with pytest.raises(ImportError, match=rf"this needs {library}: pip install 'blackbox-md\[{extra}\]'"):
        make()


def test_a_schema_without_types_leaves_plain_bytes(tmp_path: Path) -> None:
    Day(tmp_path, feed_of(schema="elsewhere")).put(0, Put((Row(b"A", b"x"),)))
    recording = Recording.open(tmp_path)
    (batch,) = recording.batches()
    assert (recording.schema.name, batch.schema, batch.payload(0)) == ("elsewhere", None, b"x")


def test_a_time_has_several_formats(tmp_path: Path) -> None:
    Day(tmp_path, feed_of(time_zone="America/New_York", day_start="18:00"))
    recording = Recording.open(tmp_path)
    expected: dict[Any, int] = {
        17: 17,
        numpy.int64(18): 18,
        "09:30": ns("2026-11-20T09:30-05:00"),
        "09:30:01": ns("2026-11-20T09:30:01-05:00"),
        "09:30:01.5": ns("2026-11-20T09:30:01.5-05:00"),
        "09:30:01.000000007": ns("2026-11-20T09:30:01-05:00") + 7,
        "09:30Z": ns("2026-11-20T09:30+00:00"),
        "2026-11-20": ns("2026-11-20T00:00-05:00"),
        "1763000000000000001": 1_763_000_000_000_000_001,
        "20:00": ns("2026-11-19T20:00-05:00"),  # the session began at 18:00 on the previous day
        "2026-11-20T09:30": ns("2026-11-20T09:30-05:00"),
        "2026-11-20 09:30:00Z": ns("2026-11-20T09:30+00:00"),
        "2026-11-20T09:30:00.25+01:00": ns("2026-11-20T09:30:00.25+01:00"),
        datetime.datetime(2026, 11, 20, 9, tzinfo=datetime.UTC): ns("2026-11-20T09:00+00:00"),
    }
    assert {time: recording.time(time) for time in expected} == expected
    wrong: list[Any] = ["noon", "25:00", "09:30.5", "2026-13-01T00:00", datetime.datetime(2026, 11, 20), 1.5, True]  # noqa: DTZ001
    for time in wrong:
        with pytest.raises(ValueError if isinstance(time, str | datetime.datetime) else TypeError, match="time was"):
            recording.batches(start=time)


def test_a_time_of_day_is_on_the_day_of_the_messages(tmp_path: Path) -> None:
    market = ns("2017-04-25T14:30-04:00")
    feed = feed_of(time_zone="America/New_York")
    rows = tuple(Row(b"A", b"%d" % minute, market + minute * 60 * 10**9) for minute in range(60))
    sent = ns("2026-11-20T20:00-05:00")
    Day(tmp_path, feed).put(0, Put(rows, 0, sent, sent))
    recording = Recording.open(tmp_path)
    found = [message.payload for message in told(recording.batches(start="15:00", stop="15:02"))]
    assert found == [b"30", b"31"]
    assert recording.time("20:00", "ts_out") == sent
    assert recording.time("2026-11-20T20:00") == sent
