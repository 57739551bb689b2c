"""Rows that a reader returns from random recordings under random filters, compared with plain Python; without a JVM."""

from __future__ import annotations

import datetime
import operator
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringEndsWith,
    StringStartsWith,
)

from blackbox.analysis.spark import options
from blackbox.analysis.spark.columns import table_schema
from blackbox.analysis.spark.metrics import read_metrics
from blackbox.analysis.spark.python_engine import OF_ONE_SCAN, DefaultSource, Reader
from blackbox.feed.routing.symbol import RULES
from tests.archive.written_days import days, made
from tests.examples import examples
from tests.journals import Day, Put, Row, Told, feed_of
from tests.spark.reading import spread

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
DATE = datetime.date(2026, 11, 20)
COMPARE: dict[Any, Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: lambda left, right: left in right,
    StringStartsWith: lambda left, right: str(left).startswith(right),
    StringEndsWith: lambda left, right: str(left).endswith(right),
}


def reader_of(path: Path, **options: str) -> Reader:
    source = DefaultSource({"path": str(path), OF_ONE_SCAN: "true", **options})
    reader = source.reader(source.schema())
    assert isinstance(reader, Reader)
    return reader


def rows_of(reader: Reader) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for partition in reader.partitions():
        for batch in reader.read(partition):
            batch.validate(full=True)
            rows += batch.to_pylist()
    return rows


def micros(ns: int) -> datetime.datetime:
    return EPOCH + datetime.timedelta(microseconds=ns // 1_000)


def expected(told: list[Told], rule: str = "before_last") -> Iterator[dict[str, Any]]:
    """Yield the rows of messages in reading order, slice by slice."""
    for message in sorted(told, key=lambda message: message.slice_id):
        topic = message.topic.decode()
        symbol, dot, kind = {
            "before_last": topic.rpartition("."),
            "before_first": topic.partition(".") if "." in topic else ("", "", topic),
            "whole": ("", "", topic),
        }[rule]
        yield {
            "feed": "recorded",
            "date": DATE,
            "slice": message.slice_id,
            "topic": message.topic.decode(),
            "symbol": symbol if dot else kind,
            "type": kind if dot else None,
            "ts_event": message.ts_event,
            "ts_out": message.ts_out,
            "ts_recv": message.ts_recv,
            "event_time": micros(message.ts_event) if message.ts_event else None,
            "out_time": micros(message.ts_out),
            "recv_time": micros(message.ts_recv),
            "epoch": message.epoch,
            "sequence": message.sequence,
            "payload": message.payload,
        }


def holds(filters: list[Filter], row: dict[str, Any]) -> bool:
    """Return True if a row passes Spark's filters."""
    for each in filters:
        if isinstance(each, IsNotNull):
            good = row[each.attribute[0]] is not None
        elif isinstance(each, Not):
            good = not holds([each.child], row)
        else:
            assert isinstance(each, tuple(COMPARE))
            value, wanted = row[each.attribute[0]], each.value  # type: ignore[attr-defined]
            good = value is not None and wanted is not None and COMPARE[type(each)](value, wanted)
        if not good:
            return False
    return True


orderings = st.sampled_from([EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual])
texts = st.sampled_from(
    ["A", "B", "AX", "AXYZ", "AXYZ.q", "AY.trade.of.more", "AY.trade.of", "more", "q", "", "é", "\0"]
)
times = st.integers(-1, 9_000).map(lambda us: EPOCH + datetime.timedelta(microseconds=us))


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    name = draw(st.sampled_from(["topic", "symbol", "type", "slice", "date", "sequence", "ts_event", "ts_out",
                                 "ts_recv", "event_time", "out_time", "recv_time"]))  # fmt: skip
    values: st.SearchStrategy[Any]
    values = st.integers(-1, 9)
    if name in ("topic", "symbol", "type"):
        values = texts
        if draw(st.booleans()):
            return draw(st.sampled_from([StringStartsWith, StringEndsWith]))((name,), draw(values))
    elif name == "date":
        values = st.sampled_from([DATE, DATE + datetime.timedelta(1), DATE - datetime.timedelta(1)])
    elif name.endswith("_time"):
        values = times
    way = draw(st.integers(0, 9))
    if way == 0:
        return IsNotNull((name,))
    if way == 1:
        return Not(EqualTo((name,), draw(values)))
    if way <= 4:
        return In((name,), tuple(draw(st.lists(values, min_size=1, max_size=3))))
    return draw(orderings)((name,), draw(values))


@settings(max_examples=examples(80))
@given(days(), st.lists(filters(), max_size=3), st.sampled_from(RULES))
def test_any_recording_under_any_filters(day: Any, chosen: list[Filter], rule: str) -> None:
    with TemporaryDirectory() as directory:
        written = made(directory, day, symbol=rule)
        reader = reader_of(written.path)
        told = list(expected(sorted(written.told(), key=lambda message: message.slice_id), rule))
        in_place = [row for segment in sorted(written.segments, key=lambda each: each.slice_id)
                    for put in segment.puts for row in expected(put.told(segment.slice_id), rule)]  # fmt: skip
        assert rows_of(reader) == in_place
        assert sorted(map(repr, told)) == sorted(map(repr, in_place))
        assert list(reader.pushFilters(chosen)) == chosen
        assert [row for row in rows_of(reader) if holds(chosen, row)] == [row for row in in_place if holds(chosen, row)]


@pytest.mark.parametrize("count", [2, 98_304, 98_305])
def test_large_blocks_are_cut_into_batches(tmp_path: Path, count: int) -> None:
    rows = tuple(Row(b"A.%d" % (i % 7), b"%06d" % i, i) for i in range(count))
    third = count // 3
    Day(tmp_path, feed_of()).put(0, Put(rows[: third + 1]), Put(rows[third + 1 :], codec=2))
    reader = reader_of(tmp_path)
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    assert max(batch.num_rows for batch in batches) <= 65_536
    table = pyarrow.Table.from_batches(batches)
    found = zip(table["topic"].to_pylist(), table["payload"].to_pylist(), table["type"].to_pylist(), strict=True)
    assert list(found) == [(row.topic.decode(), row.payload, row.topic.decode()[2:]) for row in rows]


def test_batches_are_bounded_by_bytes_too(tmp_path: Path) -> None:
    payloads = [bytes([i]) * (3 << 20) for i in range(12)] + [b"z" * (17 << 20)]
    small = Put(tuple(Row(b"A", payload) for payload in payloads[:-1]))
    Day(tmp_path, feed_of()).put(0, small, Put((Row(b"A", payloads[-1]),)))
    reader = reader_of(tmp_path)
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    assert [value for batch in batches for value in batch["payload"].to_pylist()] == payloads
    assert [batch.num_rows for batch in batches] == [5, 5, 2, 1]


def test_topics_are_bytes_unchanged(tmp_path: Path) -> None:
    Day(tmp_path, feed_of()).put(
        0, Put((Row(b"\xff\xfe.\x80", b""), Row(b".x", b""), Row(b"y.", b""), Row(b"..", b"")))
    )
    reader = reader_of(tmp_path)
    (batch,) = reader.read(reader.partitions()[0])
    topic, symbol, kind = (batch[name].cast("binary").to_pylist() for name in ("topic", "symbol", "type"))
    assert topic == [b"\xff\xfe.\x80", b".x", b"y.", b".."]
    assert symbol == [b"\xff\xfe", b"", b"y", b"."]
    assert kind == [b"\x80", b"x", b"", b""]


def test_filters_skip_blocks_that_cannot_match(tmp_path: Path) -> None:
    second = 10**9
    spread(tmp_path / "day", 40, second)
    cases: list[tuple[Filter, int]] = [
        (EqualTo(("slice",), 1), 40),
        (GreaterThanOrEqual(("ts_event",), 30 * second), 22),
        (LessThan(("ts_event",), 3 * second), 4),
        (GreaterThan(("event_time",), EPOCH + datetime.timedelta(seconds=38)), 4),
        (LessThanOrEqual(("ts_out",), 2 * second), 4),
        (EqualTo(("recv_time",), EPOCH + datetime.timedelta(seconds=2)), 2),
        (In(("topic",), ("A3.t", "B1.t")), 10),
        (StringStartsWith(("topic",), "A"), 40),
        (EqualTo(("symbol",), "A2"), 5),
        (EqualTo(("type",), "t"), 80),
        (EqualTo(("date",), DATE), 80),
        (EqualTo(("date",), datetime.date(2026, 11, 21)), 0),
        (EqualTo(("symbol",), "C2"), 0),
    ]
    for number, (chosen, blocks) in enumerate(cases):
        metrics = str(tmp_path / f"metrics-{number}")
        reader = reader_of(tmp_path / "day", metrics=metrics)
        reader.pushFilters([chosen])
        assert len(rows_of(reader)) == blocks
        assert read_metrics(metrics, "task").get("blocks", 0) == read_metrics(metrics, "plan")["chosen"] == blocks, (
            chosen
        )
    reader.pushFilters([EqualTo(("type",), "none")])
    assert rows_of(reader) == [], "rows of a block that is read are filtered, too"


def test_partitions_are_bounded_and_hold_each_record_once_as_planned(tmp_path: Path) -> None:
    day = spread(tmp_path / "day", 20)
    assert len(reader_of(day.path).partitions()) == 2  # a small day is not cut further
    reader = reader_of(day.path, partitionBytes="200KiB")
    partitions = reader.partitions()
    assert len(partitions) == 2 * 10  # two entries of 70 KiB each
    before = len(day.told())
    assert len(rows_of(reader)) == before
    day.segments[-1].append(Put((Row(b"B0.t", b"later"),)))
    assert sum(batch.num_rows for partition in partitions for batch in reader.read(partition)) == before


def test_schema_projects(tmp_path: Path) -> None:
    Day(tmp_path, feed_of()).put(0, Put((Row(b"A.t", b"x", 7),), epoch=5))
    source = DefaultSource({"path": str(tmp_path)})
    names = ["sequence", "type", "feed"]
    whole = {field.name: field for field in table_schema(None)}
    reader = source.reader(types.StructType([whole[name] for name in names]))
    (batch,) = reader.read(reader.partitions()[0])
    assert isinstance(batch, pyarrow.RecordBatch)
    assert batch.to_pydict() == {"sequence": [0], "type": ["t"], "feed": ["recorded"]}


def test_document_has_every_column_and_option() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "spark.md").read_text()
    names = [field.name for field in table_schema(None)] + list(options.NAMES)
    assert [name for name in names if f"`{name}`" not in text] == []
