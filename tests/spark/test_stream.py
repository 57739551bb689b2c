"""Streams over a growing recording: every message once, for any batches, restarts and days."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from blackbox import ConfigError
from blackbox.analysis.spark.python_engine import DefaultSource
from blackbox.analysis.spark.stream import StreamReader
from blackbox.errors import JournalError
from blackbox.testing import wait_until
from tests.examples import first_of
from tests.journals import Day, Put, Row, Segment, feed_of

NOTHING = {"done": "", "days": {}}


class Growing:
    """A feed's directory with growing days, and the number of its messages."""

    def __init__(self, path: Path, slices: int = 2) -> None:
        self.path = path
        self.slices = slices
        self.count = 0
        self._open: dict[tuple[str, int], Segment] = {}
        self._days: dict[str, Day] = {}

    def grow(self, date: str, slice_id: int, blocks: int = 1, rows: int = 3, roll: bool = False) -> None:
        """Append blocks to a slice of a day. `roll`: begin a new segment."""
        day = self._days.get(date)
        if day is None:
            day = self._days[date] = Day(self.path / date, feed_of(self.slices), date=date)
        if roll or (date, slice_id) not in self._open:
            self._open[date, slice_id] = day.segment(slice_id)
        topic = bytes([65 + slice_id]) + b".t"
        for _ in range(blocks):
            payloads = range(self.count, self.count + rows)
            put = Put(tuple(Row(topic, b"%09d" % k, k) for k in payloads), sequence=self.count, ts_out=self.count)
            self._open[date, slice_id].append(put)
            self.count += rows

    def index(self, date: str, slice_id: int) -> None:
        """Write the index up to the last closed entry."""
        segment = self._open[date, slice_id]
        segment.write_index(max(0, len(segment.entries()) - 1))


def reader_of(path: Path, **options: str) -> StreamReader:
    source = DefaultSource({"path": str(path), **options})
    reader = source.streamReader(source.schema())  # type: ignore[arg-type]
    assert isinstance(reader, StreamReader)
    return reader


def messages(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """Return the numbers of the messages between two offsets, after a round trip through JSON as in Spark."""
    start, end = json.loads(json.dumps(start)), json.loads(json.dumps(end))
    return [
        int(payload)
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for payload in batch["payload"].to_pylist()
    ]


def test_without_new_messages_the_offset_stays(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    growing.grow("2026-11-20", 0)
    reader = reader_of(tmp_path)
    assert reader.initialOffset() == NOTHING
    first = reader.latestOffset(NOTHING, ReadAllAvailable())
    assert first == {"done": "", "days": {"2026-11-20": {"0": f"0:{growing._open['2026-11-20', 0].places[-1][1]}"}}}
    assert json.dumps(reader.latestOffset(json.loads(json.dumps(first)), ReadAllAvailable())) == json.dumps(first)
    assert messages(reader, first, first) == []
    assert messages(reader, NOTHING, first) == [0, 1, 2]


@pytest.mark.parametrize("seed", first_of(range(12), keep=2))
def test_every_message_is_read_once_for_any_batches_and_restarts(tmp_path: Path, seed: int) -> None:
    """Test random growth, batches of random size, restarts at any time, and batches that are planned again."""
    choice = random.Random(seed)
    growing = Growing(tmp_path)
    dates = ["2026-11-18"]
    growing.grow(dates[0], 0)
    reader = reader_of(tmp_path)
    offset: dict[str, Any] = reader.initialOffset()
    found: list[int] = []
    for step in range(60):
        if choice.random() < 0.7:
            date, slice_id = choice.choice(dates[-2:]), choice.randrange(2)
            growing.grow(
                date, slice_id, choice.choice([1, 1, 5, 40]), choice.choice([1, 3, 400]), choice.random() < 0.2
            )
            if choice.random() < 0.4:
                growing.index(date, slice_id)
        if choice.random() < 0.1:
            dates.append(f"2026-11-{18 + len(dates)}")
            growing.grow(dates[-1], 0)
        if choice.random() < 0.3:
            reader = reader_of(tmp_path, partitionBytes=choice.choice(["1", "100k", "64m"]))
        if choice.random() < 0.6 or step == 59:
            most = choice.choice([1, 70_000, 10**6])
            limit = ReadAllAvailable() if step == 59 or choice.random() < 0.3 else ReadMaxBytes(most)
            end = reader.latestOffset(json.loads(json.dumps(offset)), limit)
            batch = messages(reader, offset, end)
            if choice.random() < 0.3:
                growing.grow(dates[-1], 1)
                assert messages(reader_of(tmp_path), offset, end) == batch
            found += batch
            offset = end
    end = reader.latestOffset(offset, ReadAllAvailable())
    found += messages(reader, offset, end)
    assert len(found) == len(set(found)) == growing.count
    assert len(end["days"]) <= 2


def test_batches_are_bounded_and_follow_time_over_all_slices(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    for _ in range(20):
        for slice_id in range(2):
            growing.grow("2026-11-20", slice_id, blocks=8, rows=400)
    reader = reader_of(tmp_path, maxBytesPerTrigger="300k")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxBytes(300 << 10)
    offset: dict[str, Any] = NOTHING
    sizes, last = [], -1
    while (end := reader.latestOffset(offset, limit)) != offset:
        batch = messages(reader, offset, end)
        sizes.append(len(batch) * 21)
        # Entries are 64 kB, and the slices are never more than a few entries apart.
        assert min(batch) > last - 4 * 3_200
        last, offset = max(batch), end
    assert max(sizes) <= 300 << 10
    assert len(sizes) >= 8


def test_latest_begins_at_the_end_and_available_now_stops_there(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    growing.grow("2026-11-20", 0)
    latest, available = reader_of(tmp_path, startingOffsets="latest"), reader_of(tmp_path)
    start = latest.initialOffset()
    available.prepareForTriggerAvailableNow()
    growing.grow("2026-11-20", 1)
    growing.grow("2026-11-21", 0)
    assert messages(latest, start, latest.latestOffset(start, ReadAllAvailable())) == [3, 4, 5, 6, 7, 8]
    end = available.latestOffset(NOTHING, ReadAllAvailable())
    assert messages(available, NOTHING, end) == [0, 1, 2]
    assert available.latestOffset(end, ReadAllAvailable()) == end


def test_torn_tail_is_read_once_it_is_complete(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    growing.grow("2026-11-20", 0)
    segment = growing._open["2026-11-20", 0]
    whole = segment.path.read_bytes()
    growing.grow("2026-11-20", 0)
    grown = segment.path.read_bytes()
    segment.path.write_bytes(grown[:-40])
    reader = reader_of(tmp_path)
    first = reader.latestOffset(NOTHING, ReadAllAvailable())
    assert first["days"]["2026-11-20"]["0"] == f"0:{len(whole)}"
    segment.path.write_bytes(grown)
    second = reader.latestOffset(first, ReadAllAvailable())
    assert messages(reader, NOTHING, first) + messages(reader, first, second) == [0, 1, 2, 3, 4, 5]


def test_lost_records_are_reported(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    growing.grow("2026-11-20", 0, blocks=2)
    end = reader_of(tmp_path).latestOffset(NOTHING, ReadAllAvailable())
    segment = growing._open["2026-11-20", 0]
    with segment.path.open("r+b") as file:
        file.truncate(segment.places[0][1])
    told = r"slice-00000/000000.journal ends before byte \d+, up to which a stream had read: it has lost records"
    with pytest.raises(JournalError, match=told):
        reader_of(tmp_path).partitions(NOTHING, end)
    growing.grow("2026-11-21", 0)
    (tmp_path / "2026-11-20").rename(tmp_path.parent / "elsewhere")
    with pytest.raises(JournalError, match="has lost the day '2026-11-20', which a stream is reading"):
        reader_of(tmp_path).partitions(NOTHING, end)


def test_stream_of_several_feeds_is_refused(tmp_path: Path) -> None:
    Growing(tmp_path / "one").grow("2026-11-20", 0)
    with pytest.raises(ConfigError, match="a stream had path '.*', expected a recorded day or a feed with days"):
        reader_of(tmp_path)
    with pytest.raises(ConfigError, match="a stream had 2 paths, expected one day or feed"):
        reader_of(tmp_path / "one", paths=json.dumps([str(tmp_path / "one")]))


def test_stream_continues_from_its_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    """Stop a query in the middle of small batches, add later days to the feed, and continue with another query."""
    growing = Growing(tmp_path / "feed")
    growing.grow("2026-11-20", 0, blocks=40, rows=400)
    growing.grow("2026-11-20", 1, blocks=40, rows=400)
    stream = spark.readStream.format("blackbox").option("maxBytesPerTrigger", "500k").load(str(tmp_path / "feed"))
    writer = stream.select("payload").writeStream.format("parquet").option("path", str(tmp_path / "out"))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        wait_until(lambda: query.lastProgress and query.lastProgress["batchId"] >= 0, 200)
    finally:
        query.stop()
    growing.grow("2026-11-20", 1, blocks=2)
    growing.grow("2026-11-21", 0, blocks=2, rows=400)
    growing.grow("2026-11-22", 0, blocks=1)
    again = writer.trigger(availableNow=True).start()
    try:
        assert again.awaitTermination(200)
        assert again.exception() is None
    finally:
        again.stop()
    rows = spark.read.parquet(str(tmp_path / "out")).selectExpr("int(string(payload)) AS number").collect()
    assert sorted(row["number"] for row in rows) == list(range(growing.count))


_SLOW_PYTHON = """#!/bin/sh
case "$*" in *python_streaming_source_runner*) mkdir "{begun}" && sleep 11;; esac
exec {python} "$@"
"""
_COUNT_STREAM = """
import sys
import blackbox.analysis.spark
spark = blackbox.analysis.spark.session("local[1]", conf={"spark.ui.enabled": False})
writer = spark.readStream.format("blackbox").load(sys.argv[1]).writeStream.format("memory").queryName("rows")
writer.trigger(availableNow=True).start().awaitTermination()
print(spark.table("rows").count())
"""


@pytest.mark.long
def test_a_stream_begins_although_its_first_process_starts_too_slowly(tmp_path: Path) -> None:
    """Spark gives it ten seconds, and ends the query."""
    growing = Growing(tmp_path / "feed")
    growing.grow("2026-11-20", 0, blocks=2)
    python, begun = tmp_path / "python", tmp_path / "begun"
    python.write_text(_SLOW_PYTHON.format(begun=begun, python=sys.executable))
    python.chmod(0o755)
    environment = os.environ | {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
    command = [sys.executable, "-c", _COUNT_STREAM, str(growing.path)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.stdout.strip() == str(growing.count), ended.stderr
    assert begun.is_dir()
