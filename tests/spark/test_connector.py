"""The engine in Java: what it reads, what it passes over, and what it makes of damage."""

from __future__ import annotations

import datetime
import decimal
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pyarrow
import pytest
import xxhash

from blackbox import Feed, Publisher, Recorder, Recording, Source
from blackbox.errors import ConfigError
from blackbox.journal.day import described
from blackbox.schema import Schema, price, utc_time
from tests.journals import Day, Put, Row, Told, feed_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytest.importorskip("pyspark")
from py4j.protocol import Py4JJavaError

BEGIN = 1_700_000_000_000_000_000
SECOND = 10**9
FAILURES = Py4JJavaError
"""What PySpark raises when a task or a plan fails."""
BASE = {
    "feed": "string",
    "date": "date",
    "slice": "int",
    "topic": "string",
    "symbol": "string",
    "type": "string",
    "ts_event": "bigint",
    "ts_out": "bigint",
    "ts_recv": "bigint",
    "event_time": "timestamp",
    "out_time": "timestamp",
    "recv_time": "timestamp",
    "epoch": "bigint",
    "sequence": "bigint",
    "payload": "binary",
}
TOLD = ["slice", "epoch", "sequence", "ts_out", "ts_recv", "topic", "payload", "ts_event"]


def puts_of(choice: random.Random, letter: str, blocks: int, sizes: list[int], codecs: list[int]) -> Iterator[Put]:
    """Blocks of one slice, a second apart."""
    sequence = 0
    for number in range(blocks):
        count = choice.choice(sizes)
        long = [choice.randrange(40) for _ in range(count)] if number % 2 else [choice.choice([0, 9])] * count
        rows = tuple(
            Row(
                b"%s%d.%s" % (letter.encode(), choice.randrange(60), choice.choice([b"trade", b"quote"])),
                choice.randbytes(long[i]),
                choice.choice([0, BEGIN + number * SECOND + i]),
            )
            for i in range(count)
        )
        yield Put(
            rows,
            sequence=sequence,
            ts_out=BEGIN + number * SECOND,
            ts_recv=BEGIN + number * SECOND + 1_234_567,
            epoch=choice.choice([3, (1 << 63) + 5]),
            first_row=choice.choice([0, 0, count // 2]),
            codec=choice.choice(codecs),
            flags=choice.choice([0, 1]),
        )
        sequence += count


def make_day(
    path: Path,
    seed: int = 1,
    slices: int = 2,
    key_bytes: int = 1,
    blocks: int = 24,
    sizes: tuple[int, ...] = (1, 5, 700, 1_500),
    codecs: tuple[int, ...] = (0, 1, 2),
    **settings: Any,
) -> Day:
    choice = random.Random(seed)
    day = Day(path, feed_of(slices, key_bytes), **settings)
    for slice_id in range(slices):
        puts = list(puts_of(choice, chr(65 + slice_id), blocks, list(sizes), list(codecs)))
        day.put(slice_id, *puts[: blocks // 2])
        day.put(slice_id, *puts[blocks // 2 :])
    return day


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Day:
    return make_day(tmp_path_factory.mktemp("written") / "recorded" / "2026-11-20")


def load(spark: SparkSession, path: Path | list[str], **options: str) -> DataFrame:
    target = path if isinstance(path, list) else str(path)
    return spark.read.format("blackbox.connector").options(**options).load(target)


def told_of(row: Any) -> Told:
    return Told(row[0], row[1] % (1 << 64), row[2], row[3], row[4], row[5].encode(), bytes(row[6]), row[7])


def told_by(frame: DataFrame) -> list[Told]:
    """The messages of a data frame, sorted."""
    rows = frame.select(*TOLD).collect()
    return sorted(map(told_of, rows))


def counted(frame: DataFrame) -> dict[str, int]:
    """What a scan counted, when its rows are collected."""
    frame.collect()
    plan = frame._jdf.queryExecution().executedPlan()
    leaves = plan.collectLeaves()
    metrics = leaves.apply(0).metrics()
    names = ("blocksRead", "blocksSkipped", "damagedPlaces", "damagedMessages", "numOutputRows")
    return {name: metrics.apply(name).value() for name in names}


def test_rows_are_those_that_were_recorded(spark: SparkSession, written: Day) -> None:
    frame = load(spark, written.path)
    assert dict(frame.dtypes) == BASE
    assert frame.columns == list(BASE)
    assert told_by(frame) == sorted(written.told())
    assert frame.count() == len(written.told())


def test_rows_stay_in_the_order_of_their_slice(spark: SparkSession, written: Day) -> None:
    rows = load(spark, written.path).where("slice = 1").select("sequence").collect()
    assert [row.sequence for row in rows] == [told.sequence for told in written.told() if told.slice_id == 1]


def test_derived_columns(spark: SparkSession, tmp_path: Path) -> None:
    topics = [b"AAPL.trade", b"BRK.B.quote", b"plain", b".x", b"x."]
    rows = tuple(Row(topic, b"", [BEGIN + 1_999, 0, -1, 5, 7_000][i]) for i, topic in enumerate(topics))
    Day(tmp_path / "day", feed_of()).put(0, Put(rows, ts_out=1_999, ts_recv=BEGIN, epoch=(1 << 64) - 2))
    found = load(spark, tmp_path / "day").collect()
    assert [(row.symbol, row.type) for row in found] == [
        ("AAPL", "trade"),
        ("BRK.B", "quote"),
        ("plain", None),
        ("", "x"),
        ("x", ""),
    ]
    utc = datetime.UTC
    epoch = datetime.datetime(1970, 1, 1, tzinfo=utc)
    micros = [
        (row.event_time and (row.event_time.astimezone(utc) - epoch) // datetime.timedelta(0, 0, 1)) for row in found
    ]
    assert micros == [BEGIN // 1_000 + 1, None, -1, 0, 7]
    assert {row.epoch for row in found} == {-2}
    assert {(row.feed, row.date, row.slice) for row in found} == {("recorded", datetime.date(2026, 11, 20), 0)}
    assert {row.out_time.astimezone(utc) for row in found} == {epoch + datetime.timedelta(0, 0, 1)}


def test_topics_of_every_length(spark: SparkSession, tmp_path: Path) -> None:
    choice = random.Random(2)
    names = [bytes(choice.choices(b"ABCD", k=size)) for size in range(1, 40) for _ in range(40)]
    names += [b"X" * 300 + b"%d" % i for i in range(50)] + [b"A\0", b"A\0\0", b"A", b"ABCDEFGH\0", b"ABCDEFGH"]
    rows = tuple(Row(topic, b"%d" % i, i) for i, topic in enumerate(names))
    day = Day(tmp_path / "day", feed_of())
    day.put(0, Put(rows), Put(rows[::-1], sequence=len(rows)))
    frame = load(spark, day.path)
    assert told_by(frame) == sorted(day.told())
    found = frame.where("topic = 'ABCDEFGH' OR topic LIKE 'XX%'").collect()
    assert len(found) == 2 * (50 + names.count(b"ABCDEFGH"))


@pytest.mark.parametrize("columns", [["sequence"], ["payload", "topic"], ["type"], ["ts_out", "feed"], ["event_time"]])
def test_each_column_alone_is_what_it_is_among_all(spark: SparkSession, written: Day, columns: list[str]) -> None:
    frame = load(spark, written.path)
    whole = [tuple(row[name] for name in columns) for row in frame.collect()]
    assert [tuple(row) for row in frame.select(*columns).collect()] == whole


def test_a_given_schema_projects(spark: SparkSession, written: Day) -> None:
    reader = spark.read.format("blackbox.connector")
    frame = reader.schema("sequence bigint, topic string").load(str(written.path))
    assert frame.columns == ["sequence", "topic"]
    assert frame.count() == len(written.told())
    from pyspark.errors import IllegalArgumentException

    with pytest.raises(IllegalArgumentException, match="column 'price' is not one of a recording's: feed, date"):
        reader.schema("price double").load(str(written.path)).collect()
    with pytest.raises(IllegalArgumentException, match="'sequence' was asked for as INT, expected BIGINT"):
        reader.schema("sequence int").load(str(written.path)).collect()


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        ("topic = 'A7.trade'", lambda told: told.topic == b"A7.trade"),
        ("symbol IN ('A7', 'B9', 'C1')", lambda told: told.topic.split(b".")[0] in (b"A7", b"B9", b"C1")),
        ("topic LIKE 'B1%'", lambda told: told.topic.startswith(b"B1")),
        ("type = 'quote' AND slice = 1", lambda told: told.topic.endswith(b".quote") and told.slice_id == 1),
        ("symbol = 'A7' OR slice = 1", lambda told: told.topic.startswith(b"A7.") or told.slice_id == 1),
        ("NOT symbol = 'A7'", lambda told: not told.topic.startswith(b"A7.")),
        (f"ts_event >= {BEGIN + 5 * SECOND}", lambda told: told.ts_event >= BEGIN + 5 * SECOND),
        (f"ts_event < {BEGIN + 5 * SECOND}", lambda told: told.ts_event < BEGIN + 5 * SECOND),
        (f"{BEGIN + 5 * SECOND} >= ts_out", lambda told: told.ts_out <= BEGIN + 5 * SECOND),
        (
            "event_time BETWEEN timestamp'2023-11-14 22:13:25.000001' AND timestamp'2023-11-14 22:13:27'",
            lambda told: BEGIN + 5 * SECOND + 1_000 <= told.ts_event < BEGIN + 7 * SECOND + 1_000,
        ),
        ("out_time = timestamp'2023-11-14 22:13:25'", lambda told: told.ts_out == BEGIN + 5 * SECOND),
        ("sequence > 4000", lambda told: told.sequence > 4_000),
        ("epoch = 3", lambda told: told.epoch == 3),
        ("date = date'2026-11-21'", lambda told: False),
        ("feed = 'other'", lambda told: False),
        ("event_time IS NULL", lambda told: told.ts_event == 0),
    ],
)
def test_filters_choose_the_same_rows_as_python(spark: SparkSession, written: Day, condition: str, wanted: Any) -> None:
    found = told_by(load(spark, written.path).where(condition))
    assert found == sorted(filter(wanted, written.told()))


def spread(path: Path) -> Day:
    """A day of many index entries: 40 blocks of 64 KiB a slice, a second apart."""
    day = Day(path, feed_of(2, 2))
    for slice_id in range(2):
        puts = []
        for number in range(40):
            time = BEGIN + number * SECOND
            row = Row(b"%c%d.t" % (65 + slice_id, number % 8), bytes(70 << 10), time)
            puts.append(Put((row,), sequence=number, ts_out=time))
        day.put(slice_id, *puts)
    return day


@pytest.mark.parametrize(
    ("condition", "read"),
    [
        ("true", 80),
        ("slice = 1", 40),
        ("date < date'2026-01-01'", 0),
        (f"ts_event >= {BEGIN + 30 * SECOND}", 20),
        (f"ts_out < {BEGIN + SECOND}", 2),
        ("event_time = timestamp'2023-11-14 22:13:25'", 2),
        ("topic = 'A3.t'", 5),
        ("topic LIKE 'B%'", 40),
        ("symbol = 'B5' OR symbol = 'A1'", 10),
        (f"symbol = 'B5' AND ts_event > {BEGIN + 20 * SECOND}", 3),
    ],
)
def test_what_index_and_slices_rule_out_is_not_read(
    spark: SparkSession, tmp_path: Path, condition: str, read: int
) -> None:
    spread(tmp_path / "day")
    found = counted(load(spark, tmp_path / "day").where(condition).select("sequence"))
    assert (found["blocksRead"], found["damagedPlaces"]) == (read, 0)
    if read and "date" not in condition:
        assert found["numOutputRows"] == read


def test_days_that_a_filter_rules_out_are_not_opened(spark: SparkSession, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        make_day(tmp_path / f"2026-11-0{number}", seed=number, blocks=2, date=f"2026-11-0{number}")
    broken = next((tmp_path / "2026-11-01").rglob("*.journal"))
    broken.write_bytes(bytes(200))
    frame = load(spark, tmp_path)
    assert {row.date.day for row in frame.where("date > date'2026-11-01'").select("date").collect()} == {2, 3}
    with pytest.raises(FAILURES, match=str(broken)):
        frame.collect()


def test_partitions_are_bounded(spark: SparkSession, tmp_path: Path) -> None:
    spread(tmp_path / "day")
    whole = load(spark, tmp_path / "day")
    parts = load(spark, tmp_path / "day", partitionBytes="256k")
    assert whole.rdd.getNumPartitions() <= 2
    assert 20 <= parts.rdd.getNumPartitions() <= 40
    assert told_by(parts) == told_by(whole)


def test_several_paths_wildcards_and_a_view(spark: SparkSession, tmp_path: Path) -> None:
    days = [make_day(tmp_path / "feed" / f"2026-11-0{i}", seed=i, blocks=4, date=f"2026-11-0{i}") for i in (1, 2, 3)]
    counts = [len(day.told()) for day in days]
    assert load(spark, tmp_path / "feed").count() == sum(counts)
    assert load(spark, [str(days[0].path), str(days[2].path)]).count() == counts[0] + counts[2]
    assert load(spark, tmp_path / "feed" / "2026-11-0[23]").count() == counts[1] + counts[2]
    assert load(spark, [str(days[0].path), str(days[0].path)]).count() == counts[0]
    spark.sql(f"CREATE OR REPLACE TEMP VIEW seen USING blackbox.connector OPTIONS (path '{tmp_path / 'feed'}')")
    found = spark.sql("SELECT date, count(topic) AS n FROM seen GROUP BY date ORDER BY date").collect()
    assert [(row.date.day, row.n) for row in found] == [(i + 1, count) for i, count in enumerate(counts)]
    spark.catalog.dropTempView("seen")


def test_other_file_systems_are_read_through_hadoop(spark: SparkSession, written: Day, tmp_path: Path) -> None:
    settings = spark.sparkContext._jsc.hadoopConfiguration()  # type: ignore[attr-defined]
    settings.set("fs.viewfs.mounttable.tests.link./written", f"file://{written.path.parent}")
    settings.set("fs.viewfs.mounttable.tests.link./made", f"file://{tmp_path}")
    assert told_by(load(spark, ["viewfs://tests/written"])) == sorted(written.told())
    day = make_day(tmp_path / "day", blocks=6)
    day.segments[1].path.with_suffix(".index").unlink()
    assert told_by(load(spark, ["viewfs://tests/made/*"])) == sorted(day.told())
    with day.segments[0].path.open("r+b") as file:
        file.truncate(2_000)
    with pytest.raises(FAILURES, match="viewfs://tests/made/day/slice-00000/000000.journal: the segment ends before"):
        load(spark, ["viewfs://tests/made/day"]).collect()


def test_what_is_not_there_or_not_understood_is_named(spark: SparkSession, tmp_path: Path, written: Day) -> None:
    from pyspark.errors import AnalysisException, IllegalArgumentException

    with pytest.raises(AnalysisException, match="PATH_NOT_FOUND.*nothing"):
        load(spark, tmp_path / "nothing")
    with pytest.raises(IllegalArgumentException, match="is not a recording"):
        load(spark, tmp_path)
    for options, text in (
        ({"onDamage": "ignore"}, "onDamage was 'ignore', expected 'error' or 'skip'"),
        ({"prices": "x"}, "prices was 'x', expected 'decimal' or 'long'"),
        ({"partitionBytes": "many"}, "partitionBytes was 'many', expected bytes"),
        ({"recordz": "A"}, "option was 'recordz', expected one of: path, paths, records"),
        ({"records": "A"}, "records was 'A', expected a message type of schema raw .*: it has none"),
    ):
        with pytest.raises(IllegalArgumentException, match=text):
            load(spark, written.path, **options)


def test_a_recording_that_grows_is_read_as_far_as_it_goes(spark: SparkSession, tmp_path: Path) -> None:
    day = Day(tmp_path / "day", feed_of())
    segment = day.segment()
    puts = list(puts_of(random.Random(3), "A", 30, [1, 40], [0]))
    segment.append(*puts[:10])
    segment.write_index(1)
    frame = load(spark, day.path)
    assert told_by(frame) == sorted(day.told())
    segment.append(*puts[10:20])
    assert told_by(frame) == sorted(day.told())
    whole = segment.path.read_bytes()
    segment.append(puts[20])
    torn = segment.path.read_bytes()
    segment.puts.pop()
    for size in (len(whole) + 1, len(whole) + 97, len(torn) - 1):
        segment.path.write_bytes(torn[:size])
        assert told_by(frame) == sorted(day.told())
    (segment.path.parent / "000001.journal").write_bytes(whole[:0])
    assert told_by(frame) == sorted(day.told())


def test_a_damaged_block_is_named_or_left_out_and_counted(spark: SparkSession, tmp_path: Path) -> None:
    day = make_day(tmp_path / "day", blocks=6, codecs=(0, 1, 2))
    segment = day.segments[0]
    start, stop = segment.places[1]
    data = bytearray(segment.path.read_bytes())
    data[start + 100] ^= 8
    segment.path.write_bytes(data)
    with pytest.raises(
        Exception, match=rf"{segment.path}: body checksum did not match \({stop - start} bytes at {start}"
    ):
        load(spark, day.path).collect()
    lost = segment.puts[1].told(0)
    frame = load(spark, day.path, onDamage="skip")
    assert told_by(frame) == sorted(set(day.told()) - set(lost))
    found = counted(frame)
    assert (found["damagedPlaces"], found["damagedMessages"]) == (1, len(lost))
    assert frame.count() == len(day.told()) - len(lost)


def test_a_damaged_head_is_named_or_left_out_and_counted(spark: SparkSession, tmp_path: Path) -> None:
    day = make_day(tmp_path / "day", blocks=6)
    segment = day.segments[2]
    start, stop = segment.places[1]
    data = bytearray(segment.path.read_bytes())
    data[start + 50] ^= 1
    segment.path.write_bytes(data)
    said = rf"{segment.path}: no good record begins here \({stop - start} bytes at {start}\)"
    with pytest.raises(FAILURES, match=said):
        load(spark, day.path).collect()
    lost = segment.puts[1].told(1)
    frame = load(spark, day.path, onDamage="skip")
    assert told_by(frame) == sorted(set(day.told()) - set(lost))
    found = counted(frame)
    assert (found["damagedPlaces"], found["damagedMessages"]) == (1, len(lost))


def test_a_segment_that_was_cut_is_named_or_counted(spark: SparkSession, tmp_path: Path) -> None:
    day = make_day(tmp_path / "day", blocks=8)
    segment = day.segments[0]
    start, stop = segment.places[2]
    segment.path.write_bytes(segment.path.read_bytes()[: (start + stop) // 2])
    with pytest.raises(FAILURES, match=f"{segment.path}: the segment ends before the last records"):
        load(spark, day.path).collect()
    lost = [told for put in segment.puts[2:] for told in put.told(0)]
    frame = load(spark, day.path, onDamage="skip")
    assert told_by(frame) == sorted(set(day.told()) - set(lost))
    assert counted(frame)["damagedMessages"] == len(lost)


def test_a_segment_that_is_cut_while_it_is_read_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    day = spread(tmp_path / "day")
    frame = load(spark, day.path, partitionBytes="300k")
    rows = frame.toLocalIterator()
    next(rows)
    with day.segments[1].path.open("r+b") as file:
        file.truncate(4096)
    with pytest.raises(FAILURES, match=f"{day.segments[1].path}: the file was cut while it was read"):
        list(rows)


@pytest.mark.parametrize("index", [b"", b"BBOXINDX", b"\0" * 400])
def test_a_missing_or_damaged_index_costs_nothing_but_time(spark: SparkSession, tmp_path: Path, index: bytes) -> None:
    day = make_day(tmp_path / "day", blocks=6)
    for segment in day.segments:
        path = segment.path.with_suffix(".index")
        path.unlink() if not index else path.write_bytes(index)
    assert told_by(load(spark, day.path)) == sorted(day.told())


def test_flipped_bits_are_errors_or_lose_their_own_block_alone(spark: SparkSession, tmp_path: Path) -> None:
    choice = random.Random(11)
    days: dict[datetime.date, tuple[Day, set[Told]]] = {}
    for number in range(60):
        date = datetime.date(2026, 1, 1) + datetime.timedelta(number)
        day = make_day(tmp_path / "flipped" / str(date), number, blocks=6, sizes=(1, 9, 60), date=str(date))
        segment = choice.choice(day.segments)
        path = segment.path if number % 6 else segment.path.with_suffix(".index")
        data = bytearray(path.read_bytes())
        place = choice.randrange(len(data)) if number % 3 else choice.choice(segment.places)[0] + choice.randrange(140)
        place %= len(data)
        data[place] ^= 1 << choice.randrange(8)
        path.write_bytes(data)
        hit = [put for put, (start, stop) in zip(segment.puts, segment.places, strict=True) if start <= place < stop]
        days[date] = day, {told for put in hit if number % 6 for told in put.told(segment.slice_id)}
    frame = load(spark, tmp_path / "flipped", onDamage="skip")
    found: dict[datetime.date, list[Told]] = {date: [] for date in days}
    for row in frame.select("date", *TOLD).collect():
        told = told_of(row[1:])
        found[row.date].append(told)
    lossy = 0
    for date, (day, may_lose) in days.items():
        whole = Counter(day.told())
        assert not Counter(found[date]) - whole, f"{date} has rows that were never recorded"
        lost = set(whole - Counter(found[date]))
        assert lost <= may_lose, f"{date} lost rows of other blocks"
        lossy += bool(lost)
    assert lossy > 20
    for date in list(days)[:12]:
        day, may_lose = days[date]
        try:
            rows = told_by(load(spark, day.path))
        except FAILURES as error:
            assert str(day.path) in str(error)  # noqa: PT017 - either outcome is right
        else:
            assert rows == sorted(day.told())


def test_mixed_up_numbers_with_right_checksums_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    from tests import damage, wire

    choice = random.Random(5)
    made = 0
    for frames in damage.cases(17, 400):
        key, header, body = frames
        fields = wire.unpack(header) if len(header) == 64 else None
        if fields is None or key or fields.flags & wire.CONTROL or made == 40:
            continue
        day = Day(tmp_path / "mixed" / f"d{made:02d}", feed_of(), date=f"2026-{made // 28 + 1:02d}-{made % 28 + 1:02d}")
        segment = day.segment()
        good = next(puts_of(choice, "A", 1, [3], [0]))
        segment.append(good)
        stored = wire.pack(fields._replace(slice_id=0)), body
        with segment.path.open("ab") as file:
            file.write(record_around(*stored))
        segment.append(good)
        made += 1
    assert made == 40
    frame = load(spark, tmp_path / "mixed", onDamage="skip")
    found = counted(frame)
    assert found["damagedPlaces"] > 10
    by_day = Counter(row.date for row in frame.where("topic LIKE 'A%'").collect())
    assert all(count >= 2 * 3 - 2 for count in by_day.values())


def record_around(header: bytes, body: bytes) -> bytes:
    """A record whose own checksums are right, around whatever block."""
    import struct

    from tests import journals, wire

    head = journals.RECORD.pack(BEGIN, len(body), 0, 0, wire.checksum(body)) + header
    record = b"BREC" + struct.pack("<I", wire.checksum(head)) + head + body
    return record + bytes(-len(record) % 32)


def record_source(source: Source, schema: str, out: Path) -> Path:
    """Publish a capture, record it, and return the day's directory."""
    feed = Feed.local(f"spark-{schema}", slices=2, schema=schema)
    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, out, fsync="never") as recorder:
        source.publish(publisher)
        publisher.flush()
        count = publisher.statistics().messages
        deadline = time.monotonic() + 60
        while recorder.statistics().messages < count:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    (day,) = (path for path in recorder.directory.iterdir() if path.is_dir())
    return day


@pytest.fixture(scope="session")
def captured(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from feeds.iex import Iex
    from feeds.itch50 import Itch50

    out = tmp_path_factory.mktemp("captured")
    itch = Itch50(shared_data / "itch50" / "runk_locate-13-10k.bin", date="2020-01-30")
    deep = Iex(shared_data / "iex" / "goiex_DEEP10.pcap.gz")
    tops = Iex(shared_data / "iex" / "goiex_TOPS16.pcapng.gz")
    return {
        "itch50": record_source(itch, "itch50", out),
        "iex_deep10": record_source(deep, "iex_deep10", out),
        "iex_tops16": record_source(tops, "iex_tops16", out),
    }


@pytest.mark.parametrize("schema", ["itch50", "iex_deep10", "iex_tops16"])
def test_captures_have_all_messages(spark: SparkSession, captured: dict[str, Path], schema: str) -> None:
    table = Recording.open(captured[schema]).to_arrow()
    found = load(spark, captured[schema]).select("slice", "topic", "ts_event", "sequence", "payload").toArrow()
    order = [("slice", "ascending"), ("sequence", "ascending")]
    table, found = table.sort_by(order), found.sort_by(order)
    assert found.num_rows == table.num_rows > 1_000
    for name in ("ts_event", "sequence", "payload"):
        assert found[name].to_pylist() == table[name].to_pylist()
    assert found["topic"].to_pylist() == [topic.decode() for topic in table["topic"].to_pylist()]


def expected(values: pyarrow.ChunkedArray, kind: Any, prices: str) -> list[Any]:
    """A column of `Recording.to_arrow` as Spark should have it."""
    metadata = kind.metadata or {}
    if pyarrow.types.is_timestamp(kind.type):
        unit = kind.type.unit
        return [v // 1_000 if unit == "ns" else v * 1_000_000 for v in values.cast(pyarrow.int64()).to_pylist()]
    if b"decimals" in metadata and prices == "decimal":
        scale = -int(metadata[b"decimals"])
        return [decimal.Decimal(v).scaleb(scale) if abs(v) < 10**18 else None for v in values.to_pylist()]
    if pyarrow.types.is_uint64(kind.type):
        return [decimal.Decimal(v) for v in values.to_pylist()]
    return list(values.to_pylist())


@pytest.mark.parametrize("schema", ["itch50", "iex_deep10", "iex_tops16"])
@pytest.mark.parametrize("prices", ["decimal", "long"])
def test_records_are_those_of_the_schema(
    spark: SparkSession, captured: dict[str, Path], schema: str, prices: str
) -> None:
    recording = Recording.open(captured[schema])
    seen = 0
    for kind in recording.schema.records:
        table = recording.to_arrow(kind=kind)
        if not table.num_rows:
            continue
        seen += 1
        frame = load(spark, captured[schema], records=kind, prices=prices)
        found = frame.toArrow().sort_by([("slice", "ascending"), ("sequence", "ascending")])
        table = table.sort_by([("slice", "ascending"), ("sequence", "ascending")])
        assert found["sequence"].to_pylist() == table["sequence"].to_pylist()
        arrow = recording.schema.arrow(kind)
        assert found.num_columns == 14 + len(arrow)
        for place, field in enumerate(arrow):
            name = f"{field.name}_" if field.name in BASE else field.name
            assert found.column_names[14 + place] == name
            column = found[name]
            told = column.cast(pyarrow.int64()) if pyarrow.types.is_timestamp(column.type) else column
            assert told.to_pylist() == expected(table.column(7 + place), field, prices), (kind, name)
    assert seen >= 3


def test_types_of_records(spark: SparkSession, captured: dict[str, Path]) -> None:
    kinds = dict(load(spark, captured["itch50"], records="A").dtypes)
    assert kinds["price"] == "decimal(18,4)"
    assert kinds["shares"] == "bigint"
    assert kinds["stock_locate"] == "int"
    assert kinds["timestamp"] == "bigint"
    assert kinds["order_reference_number"] == "decimal(20,0)"
    assert kinds["stock"] == "string"
    assert dict(load(spark, captured["itch50"], records="A", prices="long").dtypes)["price"] == "bigint"
    assert dict(load(spark, captured["iex_deep10"], records="T").dtypes)["timestamp"] == "timestamp"


def tell_schema(day: Day, schema: Schema) -> None:
    """Write a day's manifest anew, with a schema."""
    path = day.path / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["schema"] = described(schema)
    manifest.pop("checksum")
    text = json.dumps(manifest, separators=(",", ":"), ensure_ascii=False)
    manifest["checksum"] = xxhash.xxh3_64_hexdigest(text.encode())
    path.write_text(json.dumps(manifest))


def test_a_schema_of_every_kind_of_field(spark: SparkSession, tmp_path: Path) -> None:

    kind = numpy.dtype(
        [
            ("flag", "u1"),
            ("kind", "S1"),
            ("i1", "i1"),
            ("i2", ">i2"),
            ("u2", "<u2"),
            ("i4", "<i4"),
            ("u4", ">u4"),
            ("i8", ">i8"),
            ("u8", "<u8"),
            ("f8", "<f8"),
            ("text", "S12"),
            ("code", "S3"),
            ("mark", price("<i8", 9)),
            ("level", price(">u8", 8)),
            ("short_price", price(">i2", 2)),
            ("seconds", utc_time("<u4", "s")),
            ("topic", "S2"),
        ]
    )
    random_bytes = numpy.random.default_rng(4).integers(0, 256, (500, kind.itemsize), numpy.uint8)
    records = random_bytes.view(kind).reshape(-1)
    records["kind"] = numpy.where(numpy.arange(500) % 3 == 0, b"Z", b"Y")
    records["text"][::2] = b"AB \0 C \t\0 "
    records["text"][1] = b""
    records["code"] = [[b"", b"A", b"A  ", b" B\0", b"\xe9\n\n"][i % 5] for i in range(500)]
    records["mark"][::4] = (1 << 63) - 1
    records["level"][::2] = 123
    schema = Schema("made", 77, {"Z": kind}, type_offset=1)
    day = Day(tmp_path / "days" / "2026-11-20", feed_of())
    tell_schema(day, schema)
    rows = tuple(Row(b"A.b", record.tobytes(), i + 1) for i, record in enumerate(records))
    day.put(0, *(Put(rows[i : i + 50], sequence=i) for i in range(0, 500, 50)))
    frame = load(spark, day.path, records="Z")
    assert dict(frame.dtypes)["topic_"] == "string"
    found = frame.toArrow()
    from blackbox.arrow import record_columns

    wanted = records[records["kind"] == b"Z"]
    for field, column in zip(schema.arrow("Z"), record_columns(schema, "Z", wanted), strict=True):
        name = "topic_" if field.name == "topic" else field.name
        told = found[name]
        told = told.cast(pyarrow.int64()) if pyarrow.types.is_timestamp(told.type) else told
        assert told.to_pylist() == expected(column, field, "decimal"), name
    other = Day(tmp_path / "days" / "2026-11-21", feed_of(), date="2026-11-21")
    tell_schema(other, Schema("made", 77, {"Z": kind}))
    from pyspark.errors import IllegalArgumentException

    with pytest.raises(
        IllegalArgumentException, match="2026-11-21: records of type Z have other fields than those of the days before"
    ):
        load(spark, tmp_path / "days", records="Z").collect()
    assert found["mark"].null_count == len(wanted[wanted["mark"] >= 10**18]) + len(wanted[wanted["mark"] <= -(10**18)])


def test_a_record_of_a_wrong_length_is_named_or_left_out(
    spark: SparkSession, captured: dict[str, Path], tmp_path: Path
) -> None:
    import shutil

    day = Day(tmp_path / "day", feed_of(schema="itch50"))
    shutil.copy(captured["itch50"] / "manifest.json", day.path / "manifest.json")
    good = b"D" + bytes(18)
    day.put(0, Put((Row(b"X", good), Row(b"X", good + b"!"), Row(b"X", b""), Row(b"X", b"A"))))
    with pytest.raises(FAILURES, match="messages of type 'D' had another size than 19 bytes"):
        load(spark, day.path, records="D").collect()
    frame = load(spark, day.path, records="D", onDamage="skip")
    found = counted(frame)
    assert (found["numOutputRows"], found["damagedMessages"]) == (1, 1)


def test_one_name_has_two_engines(spark: SparkSession, written: Day) -> None:
    pytest.importorskip("pyspark_blackbox")
    assert told_by(load(spark, written.path, engine="python")) == told_by(load(spark, written.path))
    stream = spark.readStream.format("blackbox.connector").load(str(written.path))
    query = stream.writeStream.format("memory").queryName("streamed").start()
    try:
        query.processAllAvailable()
        assert told_by(spark.table("streamed")) == sorted(written.told())
    finally:
        query.stop()


def test_a_session_of_others_gets_the_jar(spark: SparkSession, written: Day) -> None:
    from blackbox.spark.connector import connector_jar, install

    install(spark)
    assert any(connector_jar().name in row[0] for row in spark.sql("LIST JARS").collect())
    assert load(spark, written.path).count() == len(written.told())


def test_the_jar_is_made_once_by_two_at_a_time(tmp_path: Path) -> None:
    code = "import sys, pathlib\nfrom blackbox.spark.connector import connector_jar\n"
    code += "print(connector_jar(cache=pathlib.Path(sys.argv[1])))"
    makers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) for _ in range(2)]
    said = {maker.communicate(timeout=120)[0] for maker in makers}
    assert len(said) == 1
    jar = Path(said.pop().decode().strip())
    assert list(tmp_path.iterdir()) == [jar]
    made = jar.stat().st_mtime_ns
    from blackbox.spark.connector import connector_jar

    assert connector_jar(cache=tmp_path) == jar
    assert jar.stat().st_mtime_ns == made


def test_a_java_that_cannot_compile_it_is_named(tmp_path: Path) -> None:
    from blackbox.spark.connector import connector_jar

    java = tmp_path / "home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'no such luck' >&2\nexit 3\n")
    java.chmod(0o755)
    with pytest.raises(ConfigError, match=f"did not compile with {java}: no such luck"):
        connector_jar(tmp_path / "home", tmp_path / "cache")
