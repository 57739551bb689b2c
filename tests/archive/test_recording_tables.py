"""Recordings as records and tables, and the formats of times."""

from __future__ import annotations

import datetime
import sys
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pytest

from blackbox import ConfigError, Recording
from tests.archive.written_days import ns, told
from tests.journals import Day, Put, Row, feed_of


def test_records_and_times_of_a_recorded_batch(tmp_path: Path) -> None:
    from blackbox_feeds.itch50 import SCHEMA

    event = numpy.zeros(2, SCHEMA.dtype("S"))
    event["message_type"], event["event_code"], event["tracking_number"] = b"S", b"O", (1, 2)
    rows = tuple(Row(b"S", row.tobytes(), i) for i, row in enumerate(event))
    Day(tmp_path, feed_of(schema="itch50")).put(0, Put(rows, 5, ts_out=7, ts_recv=9))
    (batch,) = Recording.open(tmp_path).batches()
    assert (batch.ts_out, batch.ts_recv, batch.sequence.tolist()) == (7, 9, [5, 6])
    assert batch.records("S")["tracking_number"].tolist() == [1, 2]
    assert [message.record.event_code for message in batch] == [b"O", b"O"]
    with pytest.raises(ValueError, match="topics have no numbers"):
        _ = batch.topic_numbers
    table = Recording.open(tmp_path).to_arrow(message_type="S")
    assert table.schema.names[9:] == list(SCHEMA.arrow("S").names)
    assert table.schema.field("event_code") == SCHEMA.arrow("S").field("event_code")
    assert table.column("event_code").to_pylist() == ["O", "O"]
    with pytest.raises(ConfigError, match="message type was '!'"):
        Recording.open(tmp_path).to_arrow(message_type="!")


def test_every_type_of_every_schema_becomes_columns(tmp_path: Path) -> None:
    from blackbox_feeds.iex import DEEP10, TOPS16
    from blackbox_feeds.itch50 import SCHEMA, timestamps_ns

    from blackbox.block.columns.arrow import record_column

    draw = numpy.random.default_rng(1)
    for schema in (DEEP10, TOPS16, SCHEMA):
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
            if schema is SCHEMA:
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
