"""Recordings as records, Arrow tables and data frames, with and without a schema."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy
import pyarrow
import pytest

from blackbox import ConfigError, Recording
from tests.archive.written_days import many
from tests.journals import Day, Put, Row, feed_of
from tests.recorded import AS_SENT


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

    from blackbox.block.arrow import record_column

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


def test_pandas_and_polars_frames_are_equal(tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of(2))
    day.put(0, *many(50))
    day.put(1, *many(50, 1), index=False)
    recording = Recording.open(tmp_path)
    table = recording.to_arrow(**AS_SENT)
    assert table.column("ts_out").to_pylist() == [message.ts_out for message in day.told()]
    pandas, polars = recording.to_pandas(**AS_SENT), recording.to_polars(**AS_SENT)
    for name in table.schema.names:
        told = pandas[name].astype(object)
        assert told.where(told.notna(), None).tolist() == polars[name].to_list() == table.column(name).to_pylist()
    assert len(recording.to_pandas(start=10, stop=20)) == len(recording.to_polars(start=10, stop=20)) == 20
    assert str(pandas["topic"].dtype) == "object"


@pytest.mark.parametrize(("library", "extra"), [("pyarrow", "arrow"), ("pandas", "pandas"), ("polars", "polars")])
def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, extra: str) -> None:
    Day(tmp_path, feed_of())
    recording = Recording.open(tmp_path)
    monkeypatch.setitem(sys.modules, library, None)
    for module in ("columns", "table", "ticks"):
        monkeypatch.delitem(sys.modules, f"blackbox.archive.export.{module}", raising=False)
    monkeypatch.delitem(sys.modules, "blackbox.block.arrow", raising=False)
    make = {"pyarrow": recording.to_arrow, "pandas": recording.to_pandas, "polars": recording.to_polars}[library]
    with pytest.raises(ImportError, match=rf"this needs {library}: pip install 'blackbox-md\[{extra}\]'"):
        make()


def test_a_schema_without_types_leaves_plain_bytes(tmp_path: Path) -> None:
    Day(tmp_path, feed_of(schema="elsewhere")).put(0, Put((Row(b"A", b"x"),)))
    recording = Recording.open(tmp_path)
    (batch,) = recording.batches()
    assert (recording.schema.name, batch.schema, batch.payload(0)) == ("elsewhere", None, b"x")
