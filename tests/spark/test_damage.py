"""Damaged recordings with either engine: errors that name the damage, or skipped and counted parts."""

from __future__ import annotations

import datetime
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests import damage, journals, wire
from tests.damaged import damage_body, damage_head
from tests.journals import Day, Segment, Told, feed_of
from tests.spark.made_days import BEGIN, make_day, puts_of
from tests.spark.reading import FAILURES, Counted, load, refused, spread, told_by

CUT = "the segment ends before the last records in its index"


def skipped(spark: SparkSession, day: Day, engine: str, directory: Path) -> tuple[list[Told], tuple[int, int]]:
    """Read a damaged day; return its messages, and the skipped parts and messages counted by planner and tasks."""
    counted = Counted(spark, day.path, engine, directory, onDamage="skip")
    found = told_by(counted.frame)
    plan, task = counted.read("plan"), counted.read("task")
    return found, (plan["damaged"] + task.get("damaged", 0), task.get("lost", 0))


def test_a_damaged_block_is_named_or_skipped_and_counted(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    day = make_day(tmp_path / "day", blocks=6, codecs=(0, 1, 2))
    segment = day.segments[0]
    start, stop = segment.places[1]
    damage_body(segment, 1)
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


def test_a_damaged_head_and_a_cut_or_missing_segment_are_named_or_skipped(
    spark: SparkSession, tmp_path: Path, engine: str
) -> None:
    day = make_day(tmp_path / "day", blocks=8)
    third, segment = day.segments[2], day.segments[0]
    start, stop = third.places[1]
    damage_head(third, 1)
    with refused(f"{third.path}: no good record begins here ({stop - start} bytes at {start})"):
        load(spark, day.path, engine).collect()
    left = set(day.told()) - set(third.puts[1].told(1))
    found, (parts, _) = skipped(spark, day, engine, tmp_path)
    assert (found, parts) == (sorted(left), 1)
    start, stop = segment.places[2]
    segment.path.write_bytes(segment.path.read_bytes()[: (start + stop) // 2])
    with refused(f"{segment.path}: the segment ends before the last records in its index"):
        load(spark, day.path, engine).collect()
    left -= {told for put in segment.puts[2:] for told in put.told(0)}
    assert skipped(spark, day, engine, tmp_path)[0] == sorted(left)
    segment.path.unlink()
    frame = load(spark, day.path, engine)
    with refused(f"{segment.path}: 1 segment missing, from this one on (0 bytes at 0); onDamage=skip reads the rest"):
        frame.where("slice = 0").count()
    left -= {told for put in segment.puts for told in put.told(0)}
    found, (parts, _) = skipped(spark, day, engine, tmp_path)
    assert (found, parts) == (sorted(left), 2)


def without_segment(segment: Segment) -> None:
    segment.path.unlink()


def without_segment_and_index(segment: Segment) -> None:
    segment.path.unlink()
    segment.path.with_suffix(".index").unlink()
    (segment.path.parents[1] / "closed.json").write_text('{"0": {"segments": 2}}')


def without_slice(segment: Segment) -> None:
    shutil.rmtree(segment.path.parent)


@pytest.mark.parametrize(
    ("lose", "text", "part"),
    [
        (without_segment, "{}: missing: only the indexes of 1 segments are left", slice(1, 2)),
        (without_segment_and_index, "{}: missing: 2 segments had been begun", slice(1, 2)),
        (lambda segment: os.truncate(segment.path, 0), f"{{}}: {CUT}", slice(1, 2)),
        (lambda segment: os.truncate(segment.path, 64), f"{{}}: {CUT}", slice(1, 2)),
        (without_slice, "{.parent}: missing: the manifest has such a slice", slice(2)),
    ],
)
def test_a_missing_slice_or_end_of_one_is_named_or_skipped(
    spark: SparkSession, tmp_path: Path, engine: str, lose: Callable[[Segment], None], text: str, part: slice
) -> None:
    day = make_day(tmp_path / "day", blocks=4)
    lose(day.segments[1])
    with refused(text.format(day.segments[1].path)):
        load(spark, day.path, engine).count()
    found, (parts, _) = skipped(spark, day, engine, tmp_path)
    left = [segment for segment in day.segments if segment not in day.segments[part]]
    assert found == sorted(told for segment in left for put in segment.puts for told in put.told(segment.slice_id))
    assert parts == 1


def test_a_segment_cut_or_deleted_while_it_is_read_is_an_error(
    spark: SparkSession, tmp_path: Path, engine: str
) -> None:
    day = spread(tmp_path / "day", 40, BEGIN)
    frame = load(spark, day.path, engine, partitionBytes="300k")
    path = day.segments[1].path
    rows, others = frame.toLocalIterator(), frame.toLocalIterator()
    next(rows)
    next(others)
    with path.open("r+b") as file:
        file.truncate(4096)
    what = {"java": ": the file was cut while it was read", "python": " had 4096 bytes, expected at least"}
    with refused(f"{path}{what[engine]}"):
        list(rows)
    path.unlink()
    with refused(f"segment {path} cannot be read: No such file or directory"):
        list(others)


def test_a_missing_or_damaged_index_costs_only_time(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    day = make_day(tmp_path / "day", blocks=8)
    for segment, index in zip(day.segments, (b"", b"BBOXINDX", b"\0" * 400, None), strict=True):
        path = segment.path.with_suffix(".index")
        path.unlink() if index is None else path.write_bytes(index)
    assert told_by(load(spark, day.path, engine)) == sorted(day.told())


@pytest.mark.long
def test_flipped_bits_are_errors_or_lose_only_their_block(spark: SparkSession, tmp_path: Path) -> None:
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
    lossy = 0
    for date, (day, may_lose) in days.items():
        whole, found = Counter(day.told()), Counter(told_by(frame.where(f"date = '{date}'")))
        assert not found - whole, f"{date} has rows that were never recorded"
        lost = set(whole - found)
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
    choice = random.Random(5)
    made = 0
    for frames in damage.cases(17, 400):
        key, header, body = frames
        fields = wire.unpack(header) if len(header) == wire.HEADER.size else None
        if fields is None or key or fields.flags & wire.CONTROL or made == 40:
            continue
        day = Day(tmp_path / "mixed" / f"d{made:02d}", feed_of(), date=f"2026-{made // 28 + 1:02d}-{made % 28 + 1:02d}")
        segment = day.segment()
        good = next(puts_of(choice, "A", 1, [3], [0]))
        segment.append(good)
        stored = wire.pack(fields._replace(slice_id=0)), body
        with segment.path.open("ab") as file:
            file.write(journals.stored_record(*stored, ts_recv=BEGIN))
        segment.append(good)
        made += 1
    assert made == 40
    counted = Counted(spark, tmp_path / "mixed", "java", tmp_path, onDamage="skip")
    by_day = Counter(row.date for row in counted.frame.collect() if row.topic.startswith("A"))
    assert counted.read("plan")["damaged"] + counted.read("task")["damaged"] > 10
    assert all(count >= 2 * 3 - 2 for count in by_day.values())
