"""Filters: the rows that they select, and the blocks, slices and days that they skip."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from blackbox import Feed, Recording
from blackbox.analysis.spark.metrics import read_metrics
from blackbox.analysis.spark.session import PUSHDOWN
from tests.journals import Day, Told, key_bit
from tests.spark.made_days import BEGIN, SECOND, make_day
from tests.spark.reading import FAILURES, Counted, load, spread, told_by

CONDITIONS: list[tuple[str, Callable[[Told], bool]]] = [
    ("symbol IN ('A7', 'B9', 'C1')", lambda told: told.topic.split(b".")[0] in (b"A7", b"B9", b"C1")),
    ("topic LIKE 'B1%'", lambda told: told.topic.startswith(b"B1")),
    ("type = 'quote' AND slice = 1", lambda told: told.topic.endswith(b".quote") and told.slice_id == 1),
    ("symbol = 'A7' OR slice = 1", lambda told: told.topic.startswith(b"A7.") or told.slice_id == 1),
    (f"ts_event >= {BEGIN + 5 * SECOND}", lambda told: told.ts_event >= BEGIN + 5 * SECOND),
    (f"{BEGIN + 5 * SECOND} >= ts_out", lambda told: told.ts_out <= BEGIN + 5 * SECOND),
    (
        "event_time BETWEEN timestamp'2023-11-14 22:13:25.000001' AND timestamp'2023-11-14 22:13:27'",
        lambda told: BEGIN + 5 * SECOND + 1_000 <= told.ts_event < BEGIN + 7 * SECOND + 1_000,
    ),
    ("sequence > 1000", lambda told: told.sequence > 1_000),
    ("event_time IS NULL", lambda told: told.ts_event == 0),
    ("topic = 'A7.trade'", lambda told: told.topic == b"A7.trade"),
    ("NOT symbol = 'A7'", lambda told: not told.topic.startswith(b"A7.")),
    (f"ts_event < {BEGIN + 5 * SECOND}", lambda told: told.ts_event < BEGIN + 5 * SECOND),
    ("out_time = timestamp'2023-11-14 22:13:25'", lambda told: told.ts_out == BEGIN + 5 * SECOND),
    ("epoch = 3", lambda told: told.epoch == 3),
    ("date = date'2026-11-21'", lambda told: False),
    ("feed = 'other'", lambda told: False),
    ("true", lambda told: True),
]
"""Conditions, and their meaning in Python."""


def test_filters_select_the_rows_that_they_mean(spark: SparkSession, written: Day, engine: str) -> None:
    """On its own, Spark would plan a frame of a Python source once, with the filters of its first query."""
    frame, messages = load(spark, written.path, engine), sorted(written.told())
    for condition, wanted in CONDITIONS:
        assert told_by(frame.where(condition)) == [told for told in messages if wanted(told)], condition


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Day:
    return spread(tmp_path_factory.mktemp("wide") / "day", 40, BEGIN)


BLOCKS = [
    ("true", 80),
    ("date < date'2026-01-01'", 0),
    (f"ts_event >= {BEGIN + 30 * SECOND}", 20),
    ("topic LIKE 'B%'", 40),
    (f"symbol = 'B5' AND ts_event > {BEGIN + 20 * SECOND}", 3),
    ("slice = 1", 40),
    (f"ts_out < {BEGIN + SECOND}", 2),
    ("event_time = timestamp'2023-11-14 22:13:25'", 2),
    ("topic = 'A3.t'", 5),
    ("symbol IN ('B5', 'A1')", 10),
]
"""Conditions, and the number of blocks that must be read for them."""


def test_blocks_ruled_out_by_index_or_slice_are_not_read(
    spark: SparkSession, tmp_path: Path, wide: Day, engine: str
) -> None:
    for condition, blocks in BLOCKS:
        counted = Counted(spark, wide.path, engine, tmp_path)
        assert len(counted.frame.where(condition).select("sequence").collect()) == blocks, condition
        task = counted.read("task")
        assert [task.get(name, 0) for name in ("blocks", "rows", "damaged")] == [blocks, blocks, 0], condition
        assert task.get("bytes", 0) // (70 << 10) == blocks
        plan = counted.read("plan")
        assert plan["chosen"] == blocks <= plan["entries"]


def test_connector_counts_for_the_page_of_a_query_and_estimates_sizes(spark: SparkSession, wide: Day) -> None:
    frame = load(spark, wide.path, "java").where("symbol = 'B5' OR symbol = 'A1'").select("sequence")
    frame.collect()
    metrics = frame._jdf.queryExecution().executedPlan().collectLeaves().apply(0).metrics()
    found = {name: metrics.apply(name).value() for name in ("blocksRead", "blocksSkipped", "damagedPlaces")}
    assert found == {"blocksRead": 10, "blocksSkipped": 70, "damagedPlaces": 0}

    def size_of(frame: DataFrame) -> int:
        return int(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes())

    whole = load(spark, wide.path, "java")
    stored = sum(segment.path.stat().st_size for segment in wide.segments)
    assert size_of(whole) > 0.99 * stored
    assert size_of(whole.select("sequence")) < stored / 100
    assert whole.rdd.getNumPartitions() <= 2
    parts = load(spark, wide.path, "java", partitionBytes="256KiB")
    assert 20 <= parts.rdd.getNumPartitions() <= 40
    assert told_by(parts) == sorted(wide.told())


def test_days_that_a_filter_rules_out_are_not_opened(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    for number in (1, 2, 3):
        make_day(tmp_path / f"2026-11-0{number}", seed=number, blocks=2, date=f"2026-11-0{number}")
    broken = next((tmp_path / "2026-11-01").rglob("*.journal"))
    broken.write_bytes(bytes(200))
    frame = load(spark, tmp_path, engine)
    assert {row.date.day for row in frame.where("date > date'2026-11-01'").select("date").collect()} == {2, 3}
    with pytest.raises(FAILURES, match=str(broken)):
        frame.collect()


def test_only_the_channels_of_the_symbols_are_read(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    topics = [b"S%02d.t" % (number % 40) for number in range(400)]
    feed = Feed.local("channels", slices=1, channels=8)
    of_7, of_8 = (key_bit(feed.key_of(topic)) for topic in (b"S07.t", b"S08.t"))
    columns = {"topic": topics, "ts_event": [BEGIN] * 400, "payload": [bytes(4 << 10)] * 400}
    day = Recording.create(tmp_path, feed, columns, date=datetime.date(2023, 11, 14))
    blocks = [key_bit(batch.block.key) for batch in day.batches()]
    assert sum(bit & (of_7 | of_8) > 0 for bit in blocks) < len(blocks) == 8
    for condition, rows, bits in (
        ("symbol IN ('S07', 'S08')", 20, of_7 | of_8),
        ("topic LIKE 'S08.%'", 10, of_8),
        ("topic LIKE 'S07%'", 10, -1),
    ):
        counted = Counted(spark, day.path, engine, tmp_path)
        assert counted.frame.where(condition).count() == rows
        task = counted.read("task")
        assert (task["blocks"], task.get("damaged", 0)) == (sum(bit & bits != 0 for bit in blocks), 0)


@pytest.mark.long
def test_session_with_pushdown_off_reads_everything(spark: SparkSession, written: Day, tmp_path: Path) -> None:
    spark.conf.set(PUSHDOWN, "false")
    try:
        assert load(spark, written.path, "python", metrics=str(tmp_path)).where("symbol = 'none'").count() == 0
    finally:
        spark.conf.set(PUSHDOWN, "true")
    plan = read_metrics(str(tmp_path), "plan")
    assert plan["chosen"] == plan["entries"] > 0
