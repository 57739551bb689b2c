"""Real captures, and messages of one type with their fields as columns, with either engine."""

from __future__ import annotations

import decimal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pyarrow
import pytest
from blackbox_feeds.itch50 import Itch50
from pyspark.sql import SparkSession

from blackbox import Feed, Publisher, Recorder, Recording
from blackbox.block.columns.arrow import record_column
from blackbox.errors import ConfigError
from blackbox.feed.schema.prices import FORMS
from blackbox.feed.schema.schema import Schema, price, utc_time
from tests.journals import Day, Put, Row, feed_of
from tests.recorded import AS_SENT
from tests.spark.reading import Counted, by_python, load, refused, sorted_rows
from tests.ticks import TICK_ROWS, recorded_ticks

KINDS = {"itch": "SRHAXDUP", "deep": "SDT85", "tops": "QTX", "tape": "T", "dbn": ["mbo"], "binance": [None]}
"""Message types to read from each capture; None: raw payloads."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("itch", "tape") else pytest.mark.long) for name in KINDS]
)
def test_both_engines_have_the_same_schema_and_rows(
    spark: SparkSession, captured: Callable[[str], Path], name: str
) -> None:
    """Compare raw payloads, and records of one type with prices in each form."""
    kinds = [kind for kind in KINDS[name] if kind is not None]
    options = [
        {},
        *({"messageType": kind} for kind in kinds),
        *({"messageType": kind, "prices": prices} for kind in kinds[:1] for prices in FORMS),
    ]
    found = 0
    for told in options:
        frame = load(spark, captured(name), "java", **told)
        schema, rows = by_python(captured(name), **told)
        assert frame.schema == schema, told
        assert sorted_rows(frame.toArrow()) == sorted_rows(rows), told
        found += rows.num_rows > 0
    assert found > len(kinds) // 2


def test_every_column_matches_the_recording(spark: SparkSession, captured: Callable[[str], Path], engine: str) -> None:
    (day,) = captured("tops").glob("*-*-*")
    found = load(spark, day, engine).toArrow()
    recording = Recording.open(day)
    told = pyarrow.concat_tables([recording.to_arrow(slices=[part], **AS_SENT) for part in range(2)])
    assert found.num_rows == told.num_rows == 57_674
    for name in ("ts_event", "ts_out", "ts_recv", "sequence", "payload"):
        assert found[name].equals(told[name])
    topics = told["topic"].to_pylist()
    assert found["topic"].to_pylist() == topics
    assert found["symbol"].to_pylist() == [topic.rpartition(".")[0] for topic in topics]
    assert found["type"].to_pylist() == [topic.rpartition(".")[2] for topic in topics]
    assert found["slice"].to_pylist() == told["slice"].to_pylist()
    assert found["epoch"].to_pylist() == told["epoch"].to_pylist()
    for name, clock in (("event_time", "ts_event"), ("out_time", "ts_out"), ("recv_time", "ts_recv")):
        micros = found[name].cast(pyarrow.int64()).to_pylist()
        assert micros == [ns // 1_000 for ns in told[clock].to_pylist()]
    assert set(found["feed"].to_pylist()) == {"tops"}
    assert set(found["date"].to_pylist()) == {recording.date}


def test_day_of_a_running_recorder_is_read(spark: SparkSession, tmp_path: Path, shared_data: Path) -> None:
    feed = msgspec.structs.replace(Feed.local("live", 2), schema="itch50")
    recorder = Recorder(feed, tmp_path)
    with Publisher(feed, when_full="wait") as publisher:
        recorder.start()
        Itch50(shared_data / "itch50/runk_locate-13-10k.bin", "2020-01-30").publish(publisher)
        publisher.flush()
        until = time.monotonic() + 120
        counts: list[int] = []
        while not counts or counts[-1] < 10_000:
            counts.append(spark.read.format("blackbox").load(str(tmp_path / "live")).count())
            assert time.monotonic() < until, counts
    recorder.run(until_end=True, timeout=200)
    assert counts == sorted(counts)
    assert counts[-1] == 10_000


def expected(values: pyarrow.ChunkedArray, kind: Any, prices: str) -> list[Any]:
    """Convert a column of `Recording.to_arrow` to the values that Spark should return."""
    metadata = kind.metadata or {}
    told: list[Any] = (values.cast(pyarrow.int64()) if pyarrow.types.is_timestamp(kind.type) else values).to_pylist()

    def one(value: Any) -> Any:
        if value is None:
            return None
        if pyarrow.types.is_timestamp(kind.type):
            return value // 1_000 if kind.type.unit == "ns" else value * 1_000_000
        if b"decimals" in metadata and prices == "float":
            return float(value) / 10 ** int(metadata[b"decimals"])
        if b"decimals" in metadata and prices == "decimal":
            return decimal.Decimal(value).scaleb(-int(metadata[b"decimals"])) if abs(value) < 10**18 else None
        return value - (value >> 63 << 64) if pyarrow.types.is_uint64(kind.type) else value

    return list(map(one, told))


def test_a_schema_of_every_kind_of_field(spark: SparkSession, tmp_path: Path) -> None:
    plain = "flag:u1 kind:S1 i1:i1 i2:>i2 u2:<u2 i4:<i4 u4:>u4 i8:>i8 u8:<u8 f8:<f8 f4:>f4 truth:? text:S12 code:S3"
    fields: list[Any] = [tuple(each.split(":")) for each in f"{plain} topic:S2 Payload:i1".split()]
    prices_of = ("mark", price("<i8", 9)), ("level", price(">u8", 8)), ("short_price", price(">i2", 2))
    kind = numpy.dtype([*fields, ("sizes", "<u2", (3,)), *prices_of, ("seconds", utc_time("<u4", "s"))])
    random_bytes = numpy.random.default_rng(4).integers(0, 256, (500, kind.itemsize), numpy.uint8)
    records = random_bytes.view(kind).reshape(-1)
    records["kind"] = numpy.where(numpy.arange(500) % 3 == 0, b"Z", b"Y")
    for name in ("f8", "f4"):
        records[name] = numpy.random.default_rng(5).normal(size=500)  # random bytes may be NaN
    records["text"][::2] = b"AB \0 C \t\0 "
    records["text"][1] = b""
    records["code"] = [[b"", b"A", b"A  ", b" B\0", b"\xe9\n\n"][i % 5] for i in range(500)]
    records["mark"][::4] = (1 << 63) - 1
    records["level"][::2] = 123
    schema = Schema("made", 77, {"Z": kind}, type_offset=1, names={"zed": "Z"})
    day = Day(tmp_path / "days" / "2026-11-20", feed_of(schema="made"))
    day.write_manifest(schema)
    rows = tuple(Row(b"A.b", record.tobytes(), i + 1) for i, record in enumerate(records))
    day.put(0, *(Put(rows[i : i + 50], sequence=i) for i in range(0, 500, 50)))
    wanted = records[records["kind"] == b"Z"]
    for prices in ("decimal", "float", "integer"):
        frame = load(spark, day.path, "java", messageType="zed", prices=prices)
        told, table = by_python(day.path, messageType="Z", prices=prices)
        assert frame.schema == told
        found = frame.toArrow()
        assert sorted_rows(found) == sorted_rows(table)
        names = ["record_topic" if name == "topic" else "record_Payload" if name == "Payload" else name
                 for name in kind.names or ()]  # fmt: skip
        assert found.column_names[14:] == names
        for field, name in zip(schema.arrow("Z"), names, strict=True):
            own = found[name]
            own = own.cast(pyarrow.int64()) if pyarrow.types.is_timestamp(own.type) else own
            assert own.to_pylist() == expected(record_column(wanted[field.name], field), field, prices), name
        if prices == "decimal":
            marks = [abs(int(mark)) >= 10**18 for mark in wanted["mark"]]
            assert found["mark"].null_count == sum(marks) > 0
    other = Day(tmp_path / "days" / "2026-11-21", feed_of(schema="made"), date="2026-11-21")
    other.write_manifest(Schema("made", 77, {"Z": kind}))
    text = f"{other.path} has other fields in its messages of type 'Z' than {day.path}"
    with refused(f"{text}, expected the same in all"):
        load(spark, tmp_path / "days", "java", messageType="Z")
    with pytest.raises(ConfigError, match=f"{text}, expected the same in all"):
        by_python(tmp_path / "days", messageType="Z")


def test_a_schema_of_another_process_is_read_without_its_package(
    spark: SparkSession, tmp_path: Path, engine: str
) -> None:
    day = recorded_ticks(tmp_path)
    for path in (day, day.parent):
        frame = load(spark, path, engine, messageType="tick")
        assert dict(frame.dtypes[14:]) == {
            "record_type": "string",
            "price": "decimal(18,2)",
            "rate": "double",
            "sizes": "binary",
            "up": "boolean",
        }
        found = [tuple(row)[14:] for row in frame.sort("ts_event").collect()]
        assert found == [
            (kind.decode(), decimal.Decimal(units).scaleb(-2), rate, numpy.array(sizes, "<u2").tobytes(), up)
            for kind, units, rate, sizes, up in TICK_ROWS
        ]


def test_names_of_types_take_precedence_over_characters(spark: SparkSession, tmp_path: Path) -> None:
    kinds = {kind: numpy.dtype([("kind", "S1"), (f"of_{kind}", "u1")]) for kind in "AB"}
    schema = Schema("made", 77, kinds, names={"B": "A"})
    day = Day(tmp_path / "day", feed_of(schema="made"))
    day.write_manifest(schema)
    day.put(0, Put((Row(b"x", b"A\1"), Row(b"x", b"B\2"), Row(b"x", b"B\3"))))
    for asked in ("A", "B"):
        frame = load(spark, day.path, "java", messageType=asked)
        assert frame.columns[-1] == by_python(day.path, messageType=asked)[0].names[-1] == "of_A"
        assert frame.count() == 1


def test_a_name_of_another_type_in_a_later_day_is_an_error(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    kind = numpy.dtype([("kind", "S1")])
    paths = [tmp_path / "2026-11-20", tmp_path / "2026-11-21"]
    for path, (trade, other) in zip(paths, (("T", "P"), ("P", "T")), strict=True):
        day = Day(path, feed_of(schema="made"), date=path.name)
        day.write_manifest(Schema("made", 77, {trade: kind, other: kind}, names={"trade": trade, "other": other}))
        day.put(0, Put((Row(b"x", b"T"), Row(b"x", b"P"))))
    with refused(f"{paths[1]} has other fields in its messages of type 'trade' than {paths[0]}, expected the same"):
        load(spark, tmp_path, engine, messageType="trade").collect()


def test_types_of_a_day_without_names_are_listed_by_character(spark: SparkSession, tmp_path: Path) -> None:
    kind = numpy.dtype([("kind", "S1")])
    day = Day(tmp_path / "day", feed_of(schema="dbn"))
    day.write_manifest(Schema("dbn", 77, {"\0": kind, "\u00a0": kind, "Z": kind}))
    day.put(0, Put((Row(b"x", b"\xa0"),)))
    with refused(
        "schema 'dbn': message type was 'mbo', expected one of: \\u0000 \\u00a0 Z "
        f"({day.path} has no names of types: give the character)"
    ):
        load(spark, day.path, "java", messageType="mbo")
    assert load(spark, day.path, "java", messageType="\u00a0").count() == 1


def test_a_record_of_a_wrong_length_is_named_or_skipped(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    day = Day(tmp_path / "day", feed_of(schema="itch50"))
    good = b"D" + bytes(18)
    segment = day.put(0, Put((Row(b"X", good), Row(b"X", good + b"!"), Row(b"X", b""), Row(b"X", b"A"))))
    start, stop = segment.places[0]
    with refused(
        f"{segment.path}: a message of type 'D' had 20 bytes, expected 19 ({stop - start} bytes at {start}, 1 messages)"
    ):
        load(spark, day.path, engine, messageType="D").collect()
    counted = Counted(spark, day.path, engine, tmp_path, messageType="D", onDamage="skip")
    assert len(counted.frame.collect()) == 1
    task = counted.read("task")
    assert (task["rows"], task["damaged"], task["lost"]) == (1, 1, 1)
