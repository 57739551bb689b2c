"""Rows and columns that either engine reads from a recording."""

from __future__ import annotations

import datetime
import random
from collections import Counter
from pathlib import Path

import pyarrow
import pyarrow.compute
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from blackbox import ConfigError
from blackbox.analysis.spark.python_engine import DefaultSource
from tests.journals import Day, Put, Row, feed_of
from tests.spark.made_days import BEGIN, puts_of
from tests.spark.reading import BASE, load, refused, told_by


def test_rows_are_the_recorded_messages_in_the_order_of_their_slice(
    spark: SparkSession, written: Day, engine: str
) -> None:
    frame = load(spark, written.path, engine)
    assert dict(frame.dtypes) == BASE
    assert frame.columns == list(BASE)
    assert [field.name for field in frame.schema if field.nullable] == ["type", "event_time", "payload"]
    whole = frame.toArrow()
    of_slice_1 = whole.filter(pyarrow.compute.equal(whole["slice"], 1))["sequence"].to_pylist()
    assert of_slice_1 == [told.sequence for told in written.told() if told.slice_id == 1]
    for columns in (["payload", "topic"], ["type"], ["ts_out", "feed"], ["event_time"]):
        assert frame.select(*columns).toArrow() == whole.select(columns), columns


def test_the_connector_is_the_default_engine(spark: SparkSession, written: Day) -> None:
    def is_java(**options: str) -> bool:
        frame = spark.read.format("blackbox").options(**options).load(str(written.path))
        leaf = frame._jdf.queryExecution().executedPlan().collectLeaves().apply(0)
        return bool(leaf.metrics().contains("blocksRead"))

    assert is_java()
    assert is_java(engine="Java")
    assert not is_java(engine="python")


def test_derived_columns(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    topics = [b"AAPL.trade", b"BRK.B.quote", b"plain", b".x", b"x."]
    rows = tuple(Row(topic, b"", [BEGIN + 1_999, 0, -1, 5, 7_000][i]) for i, topic in enumerate(topics))
    Day(tmp_path / "day", feed_of()).put(0, Put(rows, ts_out=1_999, ts_recv=BEGIN, epoch=(1 << 63) - 2))
    found = load(spark, tmp_path / "day", engine).collect()
    pairs = ("AAPL", "trade"), ("BRK.B", "quote"), ("plain", None), ("", "x"), ("x", "")
    assert tuple((row.symbol, row.type) for row in found) == pairs
    utc = datetime.UTC
    epoch = datetime.datetime(1970, 1, 1, tzinfo=utc)
    micro = datetime.timedelta(microseconds=1)
    micros = [row.event_time and (row.event_time.astimezone(utc) - epoch) // micro for row in found]
    assert micros == [BEGIN // 1_000 + 1, None, -1, 0, 7]
    assert {row.epoch for row in found} == {(1 << 63) - 2}
    assert {(row.feed, row.date, row.slice) for row in found} == {("recorded", datetime.date(2026, 11, 20), 0)}
    assert {row.out_time.astimezone(utc) for row in found} == {epoch + datetime.timedelta(0, 0, 1)}


def test_topics_of_every_length(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    choice = random.Random(2)
    names = [bytes(choice.choices(b"ABCD", k=size)) for size in range(1, 40) for _ in range(40)]
    names += [b"X" * 300 + b"%d" % i for i in range(50)] + [b"A\0", b"A\0\0", b"A", b"ABCDEFGH\0", b"ABCDEFGH"]
    rows = tuple(Row(topic, b"%d" % i, i) for i, topic in enumerate(names))
    day = Day(tmp_path / "day", feed_of())
    day.put(0, Put(rows), Put(rows[::-1], sequence=len(rows)))
    frame = load(spark, day.path, engine)
    assert told_by(frame) == sorted(day.told())
    assert frame.where("topic = 'ABCDEFGH' OR topic LIKE 'XX%'").count() == 2 * (50 + names.count(b"ABCDEFGH"))


def test_a_given_schema_projects(spark: SparkSession, written: Day, engine: str) -> None:
    reader = spark.read.format("blackbox").option("engine", engine)
    frame = reader.schema("sequence bigint, topic string").load(str(written.path))
    assert [(field.name, field.nullable) for field in frame.schema] == [("sequence", True), ("topic", True)]
    assert frame.count() == len(written.told())
    other = reader.schema("Sequence bigint, TOPIC string").load(str(written.path))
    assert other.columns == ["Sequence", "TOPIC"]
    some = other.where("Sequence < 5 AND topic LIKE 'A%'")
    assert Counter(some.collect()) == Counter(frame.where("sequence < 5 AND topic LIKE 'A%'").collect())
    assert some.count() > 0
    for schema, text in (
        ("price double", "the schema had a column 'price', expected some of: feed, date, slice"),
        ("sequence int", "the schema had column 'sequence' as int, expected bigint"),
        ("type string NOT NULL", "the schema had column 'type' as not null, expected that it may be"),
    ):
        with refused(text):
            reader.schema(schema).load(str(written.path)).collect()
        with pytest.raises(ConfigError, match=text):
            DefaultSource({"path": str(written.path)}).reader(StructType.fromDDL(schema))  # type: ignore[arg-type]


def test_a_growing_recording_is_read_up_to_its_end(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    day = Day(tmp_path / "day", feed_of())
    segment = day.segment()
    puts = list(puts_of(random.Random(3), "A", 30, [1, 40], [0]))
    segment.append(*puts[:10])
    segment.write_index(1)
    frame = load(spark, day.path, engine)
    assert told_by(frame) == sorted(day.told())
    segment.append(*puts[10:20])
    assert told_by(frame) == sorted(day.told())
    whole = segment.path.read_bytes()
    segment.append(puts[20])
    torn = segment.path.read_bytes()
    segment.puts.pop()
    for size in (len(whole) + 97,) if engine == "python" else (len(whole) + 1, len(whole) + 97, len(torn) - 1):
        segment.path.write_bytes(torn[:size])
        assert told_by(frame) == sorted(day.told())
    (segment.path.parent / "000001.journal").write_bytes(whole[:0])
    assert told_by(frame) == sorted(day.told())


def test_times_are_instants_in_any_time_zone(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    Day(tmp_path, feed_of()).put(0, Put((Row(b"A.t", b"", 1_577_716_200_123_456_789), Row(b"A.t", b"", 0))))
    frame = load(spark, tmp_path, engine)
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        shown = [row["event_time"] for row in frame.selectExpr("string(event_time) AS event_time").collect()]
        assert shown == ["2019-12-30 09:30:00.123456", None]
        assert frame.where("event_time >= '2019-12-30 09:30:00.123456'").count() == 1
        assert frame.where("event_time > '2019-12-30 09:30:00.123456'").count() == 0
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_messages_without_a_value_and_with_explicit_numbers(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    day = Day(tmp_path / "day", feed_of())
    rows = tuple(
        Row(b"A.t", payload, i) for i, payload in enumerate([b"x", None, b"", None, b"long", b"y", b"z", b"", None])
    )
    numbers = (4, 5, 9, 10, 11, 100, 101, 102, 1_000)
    gone = (Row(b"A.t", None, 1), Row(b"B.t", None, 2))
    day.put(
        0,
        Put(rows, sequences=numbers),
        Put(rows, sequences=tuple(2_000 + number for number in numbers), first_row=4, codec=2),
        Put(gone, sequence=4_000),
        Put((Row(b"A.t", b""), Row(b"A.t", b"")), sequence=4_002),
        Put(rows * 100, sequence=5_000),
    )
    frame = load(spark, day.path, engine)
    told = sorted(((message.sequence, message.payload) for message in day.told()), key=lambda pair: pair[0])
    rows_read = frame.select("sequence", "payload").sort("sequence").collect()
    assert [(row[0], None if row[1] is None else bytes(row[1])) for row in rows_read] == told
    assert frame.where("payload IS NULL").count() == sum(payload is None for _, payload in told)
    for condition, wanted in (
        ("sequence = 1000", [1_000]),
        ("sequence > 1000 AND sequence < 4000", [2_011, 2_100, 2_101, 2_102, 3_000]),
        ("sequence IN (9, 12, 2100, 4001)", [9, 2_100, 4_001]),
    ):
        assert sorted(row.sequence for row in frame.where(condition).select("sequence").collect()) == wanted
