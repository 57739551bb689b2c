"""Both engines of the data source: what they read, what they pass over, and what they make of damage."""

from __future__ import annotations

import datetime
import decimal
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pyarrow
import pytest

from blackbox import Recording
from blackbox.schema import Schema, price, utc_time
from tests.journals import Day, Put, Row, Told, feed_of
from tests.spark.reading import (
    FAILURES,
    TOLD,
    Counted,
    by_python,
    load,
    refused,
    sorted_rows,
    spread,
    tell_schema,
    told_by,
    told_of,
    typed_day,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BEGIN = 1_700_000_000_000_000_000
SECOND = 10**9
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


def test_rows_are_those_that_were_recorded(spark: SparkSession, written: Day, engine: str) -> None:
    frame = load(spark, written.path, engine)
    assert dict(frame.dtypes) == BASE
    assert frame.columns == list(BASE)
    assert [field.name for field in frame.schema if field.nullable] == ["type", "event_time"]
    assert told_by(frame) == sorted(written.told())


def test_connector_is_what_reads_unless_python_is_asked_for(spark: SparkSession, written: Day) -> None:
    assert spark.read.format("blackbox").load(str(written.path)).count() == len(written.told())

    def metrics_of(**options: str) -> bool:
        frame = spark.read.format("blackbox").options(**options).load(str(written.path))
        return bool(
            frame._jdf.queryExecution().executedPlan().collectLeaves().apply(0).metrics().contains("blocksRead")
        )

    assert metrics_of()
    assert metrics_of(engine="Java")
    assert not metrics_of(engine="python")


def test_rows_stay_in_the_order_of_their_slice(spark: SparkSession, written: Day, engine: str) -> None:
    rows = load(spark, written.path, engine).where("slice = 1").select("sequence").collect()
    assert [row.sequence for row in rows] == [told.sequence for told in written.told() if told.slice_id == 1]


def test_every_query_of_a_frame_has_its_own_filters(spark: SparkSession, written: Day, engine: str) -> None:
    """Spark alone would plan a frame of a source in Python once, with the filters of its first query."""
    frame = load(spark, written.path, engine)
    counts = Counter(told.slice_id for told in written.told())
    assert frame.where("slice = 1").count() == counts[1]
    assert frame.count() == counts.total()


def test_derived_columns(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    topics = [b"AAPL.trade", b"BRK.B.quote", b"plain", b".x", b"x."]
    rows = tuple(Row(topic, b"", [BEGIN + 1_999, 0, -1, 5, 7_000][i]) for i, topic in enumerate(topics))
    Day(tmp_path / "day", feed_of()).put(0, Put(rows, ts_out=1_999, ts_recv=BEGIN, epoch=(1 << 64) - 2))
    found = load(spark, tmp_path / "day", engine).collect()
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


def test_topics_of_every_length(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    choice = random.Random(2)
    names = [bytes(choice.choices(b"ABCD", k=size)) for size in range(1, 40) for _ in range(40)]
    names += [b"X" * 300 + b"%d" % i for i in range(50)] + [b"A\0", b"A\0\0", b"A", b"ABCDEFGH\0", b"ABCDEFGH"]
    rows = tuple(Row(topic, b"%d" % i, i) for i, topic in enumerate(names))
    day = Day(tmp_path / "day", feed_of())
    day.put(0, Put(rows), Put(rows[::-1], sequence=len(rows)))
    frame = load(spark, day.path, engine)
    assert told_by(frame) == sorted(day.told())
    found = frame.where("topic = 'ABCDEFGH' OR topic LIKE 'XX%'").collect()
    assert len(found) == 2 * (50 + names.count(b"ABCDEFGH"))


@pytest.mark.parametrize("columns", [["sequence"], ["payload", "topic"], ["type"], ["ts_out", "feed"], ["event_time"]])
def test_each_column_alone_is_what_it_is_among_all(spark: SparkSession, written: Day, columns: list[str]) -> None:
    frame = load(spark, written.path, "java")
    whole = [tuple(row[name] for name in columns) for row in frame.collect()]
    assert [tuple(row) for row in frame.select(*columns).collect()] == whole


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


CONDITIONS: list[tuple[str, Callable[[Told], bool], bool]] = [
    ("topic = 'A7.trade'", lambda told: told.topic == b"A7.trade", False),
    ("symbol IN ('A7', 'B9', 'C1')", lambda told: told.topic.split(b".")[0] in (b"A7", b"B9", b"C1"), True),
    ("topic LIKE 'B1%'", lambda told: told.topic.startswith(b"B1"), False),
    ("type = 'quote' AND slice = 1", lambda told: told.topic.endswith(b".quote") and told.slice_id == 1, True),
    ("symbol = 'A7' OR slice = 1", lambda told: told.topic.startswith(b"A7.") or told.slice_id == 1, True),
    ("NOT symbol = 'A7'", lambda told: not told.topic.startswith(b"A7."), False),
    (f"ts_event >= {BEGIN + 5 * SECOND}", lambda told: told.ts_event >= BEGIN + 5 * SECOND, False),
    (f"ts_event < {BEGIN + 5 * SECOND}", lambda told: told.ts_event < BEGIN + 5 * SECOND, False),
    (f"{BEGIN + 5 * SECOND} >= ts_out", lambda told: told.ts_out <= BEGIN + 5 * SECOND, False),
    (
        "event_time BETWEEN timestamp'2023-11-14 22:13:25.000001' AND timestamp'2023-11-14 22:13:27'",
        lambda told: BEGIN + 5 * SECOND + 1_000 <= told.ts_event < BEGIN + 7 * SECOND + 1_000,
        True,
    ),
    ("out_time = timestamp'2023-11-14 22:13:25'", lambda told: told.ts_out == BEGIN + 5 * SECOND, False),
    ("sequence > 4000", lambda told: told.sequence > 4_000, False),
    ("epoch = 3", lambda told: told.epoch == 3, False),
    ("date = date'2026-11-21'", lambda told: False, False),
    ("feed = 'other'", lambda told: False, False),
    ("event_time IS NULL", lambda told: told.ts_event == 0, True),
]
"""What Spark is asked, what that means, and whether the engine in Python is asked too: `test_reading` asks it more."""


@pytest.mark.parametrize(
    ("engine", "condition", "wanted"),
    [(engine, *each[:2]) for each in CONDITIONS for engine in ("java", "python") if engine == "java" or each[2]],
)
def test_filters_choose_the_rows_that_they_mean(
    spark: SparkSession, written: Day, engine: str, condition: str, wanted: Callable[[Told], bool]
) -> None:
    found = told_by(load(spark, written.path, engine).where(condition))
    assert found == sorted(filter(wanted, written.told()))


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Day:
    return spread(tmp_path_factory.mktemp("wide") / "day", 40, BEGIN)


BLOCKS = [
    ("true", 80, True),
    ("slice = 1", 40, False),
    ("date < date'2026-01-01'", 0, False),
    (f"ts_event >= {BEGIN + 30 * SECOND}", 20, False),
    (f"ts_out < {BEGIN + SECOND}", 2, False),
    ("event_time = timestamp'2023-11-14 22:13:25'", 2, True),
    ("topic = 'A3.t'", 5, False),
    ("topic LIKE 'B%'", 40, True),
    ("symbol IN ('B5', 'A1')", 10, False),
    (f"symbol = 'B5' AND ts_event > {BEGIN + 20 * SECOND}", 3, True),
]
"""Conditions, the blocks that must be read for them, and whether the engine in Python is asked too."""


@pytest.mark.parametrize(
    ("engine", "condition", "blocks"),
    [(engine, *each[:2]) for each in BLOCKS for engine in ("java", "python") if engine == "java" or each[2]],
)
def test_what_index_and_slices_rule_out_is_not_read(
    spark: SparkSession, tmp_path: Path, wide: Day, engine: str, condition: str, blocks: int
) -> None:
    counted = Counted(spark, wide.path, engine, tmp_path)
    assert len(counted.frame.where(condition).select("sequence").collect()) == blocks
    task = counted.read("task")
    assert [task.get(name, 0) for name in ("blocks", "rows", "damaged")] == [blocks, blocks, 0]
    assert task.get("bytes", 0) // (70 << 10) == blocks
    plan = counted.read("plan")
    assert plan["chosen"] == blocks <= plan["entries"]


def test_connector_counts_for_the_page_of_a_query(spark: SparkSession, wide: Day) -> None:
    frame = load(spark, wide.path, "java").where("symbol = 'B5' OR symbol = 'A1'").select("sequence")
    frame.collect()
    metrics = frame._jdf.queryExecution().executedPlan().collectLeaves().apply(0).metrics()
    found = {name: metrics.apply(name).value() for name in ("blocksRead", "blocksSkipped", "damagedPlaces")}
    assert found == {"blocksRead": 10, "blocksSkipped": 70, "damagedPlaces": 0}


def test_size_of_payloads_is_what_they_have_on_disk(spark: SparkSession, wide: Day) -> None:
    def size_of(frame: DataFrame) -> int:
        return int(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes())

    frame = load(spark, wide.path, "java")
    stored = sum(segment.path.stat().st_size for segment in wide.segments)
    assert size_of(frame) > 0.99 * stored
    assert size_of(frame.select("sequence")) < stored / 100


def test_window_of_a_file_grows_by_doubling(spark: SparkSession, written: Day) -> None:
    jvm: Any = spark.sparkContext._jvm
    gateway: Any = spark.sparkContext._gateway

    def array(*values: Any) -> Any:
        made = gateway.new_array(jvm.Object, len(values))
        for i, value in enumerate(values):
            made[i] = value
        return made

    table = load(spark, written.path, "java")._jdf.queryExecution().analyzed().collectLeaves().apply(0).table()
    kind = table.getClass().getClassLoader().loadClass("blackbox.Bytes")
    methods = {method.getName(): method for method in kind.getDeclaredMethods()}
    opened = kind.getDeclaredConstructors()[0]
    for each in (opened, *methods.values()):
        each.setAccessible(True)
    small, settings = jvm.java.nio.ByteBuffer.allocateDirect(1_000), jvm.org.apache.hadoop.conf.Configuration()
    window = opened.newInstance(array(str(written.segments[0].path), 0, small, settings))
    sizes = []
    for size in (1_100, 1_200, 1_900, 2_100):
        methods["need"].invoke(window, array(0, size))
        sizes.append(methods["buffer"].invoke(window, array()).capacity())
    methods["close"].invoke(window, array())
    assert sizes == [2_000, 2_000, 2_000, 4_000]


def test_days_that_a_filter_rules_out_are_not_opened(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    for number in (1, 2, 3):
        make_day(tmp_path / f"2026-11-0{number}", seed=number, blocks=2, date=f"2026-11-0{number}")
    broken = next((tmp_path / "2026-11-01").rglob("*.journal"))
    broken.write_bytes(bytes(200))
    frame = load(spark, tmp_path, engine)
    assert {row.date.day for row in frame.where("date > date'2026-11-01'").select("date").collect()} == {2, 3}
    with pytest.raises(FAILURES, match=str(broken)):
        frame.collect()


def test_partitions_are_bounded(spark: SparkSession, wide: Day) -> None:
    whole = load(spark, wide.path, "java")
    parts = load(spark, wide.path, "java", partitionBytes="256KiB")
    assert whole.rdd.getNumPartitions() <= 2
    assert 20 <= parts.rdd.getNumPartitions() <= 40
    assert told_by(parts) == told_by(whole)


def test_paths_of_every_form_and_a_view(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    feed = tmp_path / "root" / "feed"
    days = [make_day(feed / f"2026-11-0{i}", seed=i, blocks=4, date=f"2026-11-0{i}") for i in (1, 2, 3)]
    other = make_day(tmp_path / "root" / "other" / "2026-11-01", seed=4, blocks=4, date="2026-11-01")
    counts = [len(day.told()) for day in days]
    first, _, third = (str(day.path) for day in days)
    forms: list[tuple[Any, int]] = [
        (tmp_path / "root", sum(counts) + len(other.told())),
        (feed, sum(counts)),
        (tmp_path / "ro?t" / "*" / "2026-11-0[23]", counts[1] + counts[2]),
        (f"file://{feed}", sum(counts)),
        ([first, third, first, f"file:{first}", f"{feed}/../feed/2026-11-01"], counts[0] + counts[2]),
    ]
    for paths, count in forms if engine == "java" else (forms[0], forms[-1]):  # others: `test_reading`
        assert load(spark, paths, engine).count() == count, paths
    literal = make_day(tmp_path / "per%20cent" / "2026-11-20", seed=5, blocks=4)
    assert load(spark, f"file:{literal.path}", engine).count() == len(literal.told())
    spark.sql(f"CREATE OR REPLACE TEMP VIEW seen USING blackbox OPTIONS (path '{feed}', engine '{engine}')")
    found = spark.sql("SELECT date, count(topic) AS n FROM seen GROUP BY date ORDER BY date").collect()
    assert [(row.date.day, row.n) for row in found] == [(i + 1, count) for i, count in enumerate(counts)]
    spark.catalog.dropTempView("seen")


def test_other_file_systems_are_read_through_hadoop(spark: SparkSession, written: Day, tmp_path: Path) -> None:
    settings = spark.sparkContext._jsc.hadoopConfiguration()  # type: ignore[attr-defined]
    settings.set("fs.viewfs.mounttable.tests.link./written", f"file://{written.path.parent}")
    settings.set("fs.viewfs.mounttable.tests.link./made", f"file://{tmp_path}")
    assert told_by(load(spark, ["viewfs://tests/written"], "java")) == sorted(written.told())
    day = make_day(tmp_path / "day", blocks=6)
    day.segments[1].path.with_suffix(".index").unlink()
    assert told_by(load(spark, ["viewfs://tests/made/*"], "java")) == sorted(day.told())
    with day.segments[0].path.open("r+b") as file:
        file.truncate(2_000)
    with refused("viewfs://tests/made/day/slice-00000/000000.journal: the segment ends before"):
        load(spark, ["viewfs://tests/made/day"], "java").collect()


def test_what_is_not_there_or_not_understood_is_named(
    spark: SparkSession, tmp_path: Path, written: Day, engine: str
) -> None:
    from pyspark.errors import AnalysisException

    typed = typed_day(tmp_path / "typed" / "2026-11-20", "itch50")
    mixed = typed_day(tmp_path / "mixed" / "2026-11-21", "iex_tops16", date="2026-11-21")
    typed_day(tmp_path / "mixed" / "2026-11-20", "itch50")
    changed = typed_day(tmp_path / "changed" / "2026-11-20", "itch50")
    manifest = changed.path / "manifest.json"
    manifest.write_text(manifest.read_text().replace("recorded", "rekorded"))
    (tmp_path / "empty").mkdir()
    names = "path, paths, engine, records, prices, onDamage, checksums, partitionBytes, metrics"
    for path, options, text in (
        (
            tmp_path / "no*thing",
            {},
            f"'{tmp_path}/no*thing' was not found, expected a day, or a feed or root with days",
        ),
        (tmp_path / "empty", {}, f"'{tmp_path}/empty' holds no recorded day, expected a day, or a feed or root with"),
        (written.path, {"onDamage": "Ignore"}, "option 'onDamage' was 'ignore', expected one of: error, skip"),
        (written.path, {"prices": "x"}, "option 'prices' was 'x', expected one of: decimal, long"),
        (written.path, {"metrics": ""}, "option 'metrics' was '', expected a directory"),
        (
            written.path,
            {"partitionBytes": "9" * 11 + "t"},
            "option 'partitionBytes' was '99999999999t', expected bytes",
        ),
        (written.path, {"partitionBytes": "many"}, "option 'partitionBytes' was 'many', expected bytes, such as 64m"),
        (written.path, {"recordz": "A"}, f"option was 'recordz', expected one of: {names}"),
        (written.path, {"recordz": "A"}, "(did you mean 'records'?)"),
        (written.path, {"records": "A"}, "schema 'raw': message type was 'A', expected one of: none: its payloads are"),
        (typed.path, {"records": "Ä"}, "schema 'itch50': message type was 'Ä', expected one of: S R H"),
        (
            mixed.path.parent,
            {"records": "S"},
            f"{mixed.path} has the schema 'iex_tops16' and {mixed.path.parent}/2026-11-20 has",
        ),
        (changed.path, {"records": "S"}, f"{manifest} is damaged, or was changed by hand: checksum was '"),
    ):
        with pytest.raises(AnalysisException) as caught:
            load(spark, path, engine, **options)
        assert text in str(caught.value)
    reader = spark.read.format("blackbox").option("engine", engine)
    with refused("there was no path, expected load(path), load([path, ...]) or OPTIONS (path '...')"):
        reader.load()
    with refused("option 'paths' was 'x', expected a JSON list of texts"):
        reader.option("paths", "x").load()


def test_a_recording_that_grows_is_read_as_far_as_it_goes(spark: SparkSession, tmp_path: Path, engine: str) -> None:
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


def skipped(spark: SparkSession, day: Day, engine: str, directory: Path) -> tuple[list[Told], tuple[int, int]]:
    """What is read of a damaged day, and how many parts and messages are told to be left out, by planner and tasks."""
    counted = Counted(spark, day.path, engine, directory, onDamage="skip")
    found = told_by(counted.frame)
    plan, task = counted.read("plan"), counted.read("task")
    return found, (plan["damaged"] + task.get("damaged", 0), task.get("lost", 0))


def test_a_damaged_block_is_named_or_left_out_and_counted(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    day = make_day(tmp_path / "day", blocks=6, codecs=(0, 1, 2))
    segment = day.segments[0]
    start, stop = segment.places[1]
    data = bytearray(segment.path.read_bytes())
    data[start + 100] ^= 8
    segment.path.write_bytes(data)
    lost = segment.puts[1].told(0)
    text = f"{segment.path}: body checksum did not match ({stop - start} bytes at {start}, {len(lost)} messages)"
    frame = load(spark, day.path, engine)
    for query in (frame.collect, frame.select("sequence").collect, frame.count):
        with refused(f"{text}; onDamage=skip reads the rest"):
            query()
    if engine == "java":
        assert load(spark, day.path, engine, checksums="false").count() == len(day.told())  # bodies are left unread
    found, counts = skipped(spark, day, engine, tmp_path)
    assert found == sorted(set(day.told()) - set(lost))
    assert counts == (1, len(lost))


def test_a_damaged_head_is_named_or_left_out_and_counted(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    day = make_day(tmp_path / "day", blocks=6)
    segment = day.segments[2]
    start, stop = segment.places[1]
    data = bytearray(segment.path.read_bytes())
    data[start + 50] ^= 1
    segment.path.write_bytes(data)
    with refused(f"{segment.path}: no good record begins here ({stop - start} bytes at {start})"):
        load(spark, day.path, engine).collect()
    found, (parts, _) = skipped(spark, day, engine, tmp_path)
    assert found == sorted(set(day.told()) - set(segment.puts[1].told(1)))
    assert parts == 1


def test_a_segment_that_was_cut_is_named_or_left_out(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    day = make_day(tmp_path / "day", blocks=8)
    segment = day.segments[0]
    start, stop = segment.places[2]
    segment.path.write_bytes(segment.path.read_bytes()[: (start + stop) // 2])
    with refused(f"{segment.path}: the segment ends before the last records that its index tells of"):
        load(spark, day.path, engine).collect()
    found, _ = skipped(spark, day, engine, tmp_path)
    assert found == sorted(set(day.told()) - {told for put in segment.puts[2:] for told in put.told(0)})


def test_a_segment_that_is_missing_is_named_or_left_out(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    day = Day(tmp_path / "day", feed_of(2))
    for part in range(3):
        day.put(0, Put((Row(b"A.t", b""),), sequence=part))
    day.put(1, Put((Row(b"B.t", b""),)))
    gone = day.segments.pop(1)
    gone.path.unlink()
    frame = load(spark, day.path, engine)
    with refused(f"{gone.path}: 1 segment missing, from this one on (0 bytes at 0); onDamage=skip reads the rest"):
        frame.count()
    assert frame.where("slice = 1").count() == 1
    assert skipped(spark, day, engine, tmp_path) == (sorted(day.told()), (1, 0))


def test_a_segment_that_is_cut_while_it_is_read_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    day = spread(tmp_path / "day", 40, BEGIN)
    frame = load(spark, day.path, "java", partitionBytes="300k")
    rows = frame.toLocalIterator()
    next(rows)
    with day.segments[1].path.open("r+b") as file:
        file.truncate(4096)
    with refused(f"{day.segments[1].path}: the file was cut while it was read"):
        list(rows)


def test_a_segment_that_is_deleted_while_it_is_read_is_an_error(
    spark: SparkSession, tmp_path: Path, engine: str
) -> None:
    day = spread(tmp_path / "day", 12, BEGIN)
    rows = load(spark, day.path, engine, partitionBytes="300k").toLocalIterator()
    next(rows)
    day.segments[1].path.unlink()
    with refused(f"segment {day.segments[1].path} cannot be read: No such file or directory"):
        list(rows)


@pytest.mark.parametrize("index", [b"", b"BBOXINDX", b"\0" * 400])
def test_a_missing_or_damaged_index_costs_nothing_but_time(spark: SparkSession, tmp_path: Path, index: bytes) -> None:
    day = make_day(tmp_path / "day", blocks=6)
    for segment in day.segments:
        path = segment.path.with_suffix(".index")
        path.unlink() if not index else path.write_bytes(index)
    for engine in ("java", "python") if index == b"BBOXINDX" else ("java",):
        assert told_by(load(spark, day.path, engine)) == sorted(day.told())


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
    frame = load(spark, tmp_path / "flipped", "java", onDamage="skip")
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
            rows = told_by(load(spark, day.path, "java"))
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
    counted = Counted(spark, tmp_path / "mixed", "java", tmp_path, onDamage="skip")
    by_day = Counter(row.date for row in counted.frame.collect() if row.topic.startswith("A"))
    assert counted.read("plan")["damaged"] + counted.read("task")["damaged"] > 10
    assert all(count >= 2 * 3 - 2 for count in by_day.values())


def record_around(header: bytes, body: bytes) -> bytes:
    """A record whose own checksums are right, around whatever block."""
    import struct

    from tests import journals, wire

    head = journals.RECORD.pack(BEGIN, len(body), 0, 0, wire.checksum(body)) + header
    record = b"BREC" + struct.pack("<I", wire.checksum(head)) + head + body
    return record + bytes(-len(record) % 32)


KINDS = {"itch": "SRHAXDUP", "deep": "SDT85", "tops": "QTX", "tape": "T", "dbn": ["mbo"], "binance": [None]}
"""Message types of each capture that are there and read; None: payloads as they are."""


@pytest.mark.parametrize("name", KINDS)
def test_both_engines_have_the_same_schema_and_rows(
    spark: SparkSession, captured: Callable[[str], Path], name: str
) -> None:
    """Payloads, and records, of one type with prices of either form."""
    kinds = [kind for kind in KINDS[name] if kind is not None]
    options = [{}, *({"records": kind} for kind in kinds), *({"records": kind, "prices": "long"} for kind in kinds[:1])]
    found = 0
    for told in options:
        frame = load(spark, captured(name), "java", **told)
        schema, rows = by_python(captured(name), **told)
        assert frame.schema == schema, told
        assert sorted_rows(frame.toArrow()) == sorted_rows(rows), told
        found += rows.num_rows > 0
    assert found > len(kinds) // 2


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
        return [v - (v >> 63 << 64) for v in values.to_pylist()]
    return list(values.to_pylist())


@pytest.mark.parametrize("name", ["itch", "tops"])
def test_records_are_those_of_the_schema(spark: SparkSession, captured: Callable[[str], Path], name: str) -> None:
    (day,) = captured(name).glob("*-*-*")
    recording = Recording.open(day)
    for kind in filter(None, KINDS[name]):
        table = recording.to_arrow(kind=kind).sort_by([("slice", "ascending"), ("sequence", "ascending")])
        found = load(spark, day, "java", records=kind).toArrow()
        found = found.sort_by([("slice", "ascending"), ("sequence", "ascending")])
        assert found["sequence"].to_pylist() == table["sequence"].to_pylist()
        arrow = recording.schema.arrow(kind)
        assert found.num_columns == 14 + len(arrow)
        for place, field in enumerate(arrow):
            column = found.column(14 + place)
            assert found.column_names[14 + place] == (f"record_{field.name}" if field.name in BASE else field.name)
            told = column.cast(pyarrow.int64()) if pyarrow.types.is_timestamp(column.type) else column
            assert told.to_pylist() == expected(table.column(7 + place), field, "decimal"), (kind, field.name)


def test_a_schema_of_every_kind_of_field(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
            ("Payload", "i1"),
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
    schema = Schema("made", 77, {"Z": kind}, type_offset=1, names={"zed": "Z"})
    day = Day(tmp_path / "days" / "2026-11-20", feed_of(schema="made"))
    tell_schema(day, schema)
    rows = tuple(Row(b"A.b", record.tobytes(), i + 1) for i, record in enumerate(records))
    day.put(0, *(Put(rows[i : i + 50], sequence=i) for i in range(0, 500, 50)))
    monkeypatch.setattr("blackbox.spark.days.load_schema", lambda name: schema)
    wanted = records[records["kind"] == b"Z"]
    for prices in ("decimal", "long"):
        frame = load(spark, day.path, "java", records="zed", prices=prices)
        told, table = by_python(day.path, records="Z", prices=prices)
        assert frame.schema == told
        found = frame.toArrow()
        assert sorted_rows(found) == sorted_rows(table)
        names = ["record_topic" if name == "topic" else "record_Payload" if name == "Payload" else name
                 for name in kind.names or ()]  # fmt: skip
        assert found.column_names[14:] == names
        from blackbox.arrow import record_columns

        for field, name, column in zip(schema.arrow("Z"), names, record_columns(schema, "Z", wanted), strict=True):
            own = found[name]
            own = own.cast(pyarrow.int64()) if pyarrow.types.is_timestamp(own.type) else own
            assert own.to_pylist() == expected(column, field, prices), name
        if prices == "decimal":
            marks = [abs(int(mark)) >= 10**18 for mark in wanted["mark"]]
            assert found["mark"].null_count == sum(marks) > 0
    other = Day(tmp_path / "days" / "2026-11-21", feed_of(schema="made"), date="2026-11-21")
    tell_schema(other, Schema("made", 77, {"Z": kind}))
    text = f"{other.path} has other fields in its messages of type 'Z' than {day.path}"
    with refused(f"{text}, expected the same in all"):
        load(spark, tmp_path / "days", "java", records="Z")
    from blackbox.errors import ConfigError

    with pytest.raises(ConfigError, match=f"{text}, expected the same in all"):
        by_python(tmp_path / "days", records="Z")
    with pytest.raises(ConfigError, match="in its messages of type 'Z' than the schema 'made' that is registered here"):
        by_python(other.path, records="Z")


def test_names_of_types_go_before_characters(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = {kind: numpy.dtype([("kind", "S1"), (f"of_{kind}", "u1")]) for kind in "AB"}
    schema = Schema("made", 77, kinds, names={"B": "A"})
    day = Day(tmp_path / "day", feed_of(schema="made"))
    tell_schema(day, schema)
    day.put(0, Put((Row(b"x", b"A\1"), Row(b"x", b"B\2"), Row(b"x", b"B\3"))))
    monkeypatch.setattr("blackbox.spark.days.load_schema", lambda name: schema)
    for asked in ("A", "B"):
        frame = load(spark, day.path, "java", records=asked)
        assert frame.columns[-1] == by_python(day.path, records=asked)[0].names[-1] == "of_A"
        assert frame.count() == 1


def test_types_of_a_day_without_their_names_are_told(spark: SparkSession, tmp_path: Path) -> None:
    kind = numpy.dtype([("kind", "S1")])
    day = Day(tmp_path / "day", feed_of(schema="dbn"))
    tell_schema(day, Schema("dbn", 77, {"\0": kind, "\u00a0": kind, "Z": kind}))
    day.put(0, Put((Row(b"x", b"\xa0"),)))
    with refused(
        "schema 'dbn': message type was 'mbo', expected one of: \\u0000 \\u00a0 Z "
        f"({day.path} tells no names of types: give the character, or engine=python)"
    ):
        load(spark, day.path, "java", records="mbo")
    assert load(spark, day.path, "java", records="\u00a0").count() == 1


def test_a_record_of_a_wrong_length_is_named_or_left_out(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    day = typed_day(tmp_path / "day", "itch50")
    good = b"D" + bytes(18)
    segment = day.put(0, Put((Row(b"X", good), Row(b"X", good + b"!"), Row(b"X", b""), Row(b"X", b"A"))))
    start, stop = segment.places[0]
    with refused(
        f"{segment.path}: a message of type 'D' had 20 bytes, expected 19 ({stop - start} bytes at {start}, 1 messages)"
    ):
        load(spark, day.path, engine, records="D").collect()
    counted = Counted(spark, day.path, engine, tmp_path, records="D", onDamage="skip")
    assert len(counted.frame.collect()) == 1
    task = counted.read("task")
    assert (task["rows"], task["damaged"], task["lost"]) == (1, 1, 1)


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


def test_streams_are_the_engine_in_pythons(spark: SparkSession, written: Day) -> None:
    def rows_of(name: str) -> list[Told]:
        stream = spark.readStream.format("blackbox").load(str(written.path))
        query = stream.writeStream.format("memory").queryName(name).trigger(availableNow=True).start()
        try:
            query.awaitTermination(120)
            if (error := query.exception()) is not None:
                raise error
            return told_by(spark.table(name))
        finally:
            query.stop()

    assert rows_of("streamed") == sorted(written.told())
