"""Paths and options of a load: valid forms, file systems, and errors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from blackbox import BlackBoxError, ConfigError, Recordings
from blackbox.analysis.spark.python_engine import DefaultSource
from blackbox.errors import JournalError
from tests.journals import Day, feed_of
from tests.spark.made_days import make_day
from tests.spark.reading import by_python, load, refused, told_by
from tests.wire import checksum


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
    for paths, count in forms:
        assert load(spark, paths, "java").count() == count, paths
        assert by_python(paths)[1].num_rows == count, paths
    chosen = Recordings.open(feed, first="2026-11-02")
    assert load(spark, chosen.paths, engine).count() == counts[1] + counts[2]
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


def test_missing_paths_and_wrong_options_are_named(spark: SparkSession, tmp_path: Path, written: Day) -> None:
    typed = Day(tmp_path / "typed" / "2026-11-20", feed_of(schema="itch50"))
    mixed = Day(tmp_path / "mixed" / "2026-11-21", feed_of(schema="iex_tops16"), date="2026-11-21")
    Day(tmp_path / "mixed" / "2026-11-20", feed_of(schema="itch50"))
    feed = mixed.path.parent
    changed = Day(tmp_path / "changed" / "2026-11-20", feed_of(schema="itch50"))
    manifest = changed.path / "manifest.json"
    manifest.write_text(manifest.read_text().replace("recorded", "rekorded"))
    (tmp_path / "empty").mkdir()
    names = "path, paths, engine, messageType, prices, onDamage, checksums, partitionBytes, metrics"
    options: dict[str, str]
    for path, options, text in (
        (tmp_path / "no*thing", {}, f"'{tmp_path}/no*thing' was not found, expected a day, or a feed or root with da"),
        (tmp_path / "empty", {}, f"'{tmp_path}/empty' holds no recorded day, expected a day, or a feed or root with"),
        (written.path, {"onDamage": "Ignore"}, "option 'onDamage' was 'ignore', expected one of: error, skip"),
        (written.path, {"prices": "x"}, "option 'prices' was 'x', expected one of: decimal, float, integer"),
        (written.path, {"metrics": ""}, "option 'metrics' was '', expected a directory"),
        (written.path, {"partitionBytes": "99999999999t"}, "option 'partitionBytes' was '99999999999t', expected byt"),
        (written.path, {"partitionBytes": "many"}, "option 'partitionBytes' was 'many', expected bytes, such as 64m"),
        (written.path, {"partitionBytes": "64q"}, "option 'partitionBytes' was '64q', expected bytes, such as 64m"),
        (written.path, {"partitionBytes": "\u00b2"}, "option 'partitionBytes' was '\u00b2', expected bytes"),
        (written.path, {"partitionBytes": "0"}, "option 'partitionBytes' was '0', expected bytes"),
        (written.path, {"recordz": "A"}, f"option was 'recordz', expected one of: {names}"),
        (written.path, {"messageTypes": "A"}, "(did you mean 'messageType'?)"),
        (written.path, {"messageType": "A"}, "schema 'raw': message type was 'A', expected one of: none: its payload"),
        (typed.path, {"messageType": "Ä"}, "schema 'itch50': message type was 'Ä', expected one of: S R H"),
        (feed, {"messageType": "S"}, f"{mixed.path} has the schema 'iex_tops16' and {feed}/2026-11-20 has"),
        (changed.path, {"messageType": "S"}, f"{manifest} is damaged, or was changed by hand: checksum was '"),
    ):
        with pytest.raises(AnalysisException) as in_java:
            load(spark, path, "java", **options)
        with pytest.raises(BlackBoxError) as in_python:
            DefaultSource({"path": str(path), **options}).schema()
        assert text in str(in_java.value)
        assert text in str(in_python.value)
    wrong: dict[str, str]
    for wrong, text in (
        ({}, "there was no path, expected load(path), load([path, ...]) or OPTIONS (path '...')"),
        ({"paths": "x"}, "option 'paths' was 'x', expected a JSON list of texts"),
    ):
        with refused(text):
            spark.read.format("blackbox").options(**wrong).load()
        with pytest.raises(ConfigError, match=re.escape(text)):
            DefaultSource(wrong).schema()
    with pytest.raises(JournalError, match="path was 's3a://bucket/day', expected one of a local or mounted file"):
        DefaultSource({"path": "s3a://bucket/day"}).schema()


def test_a_recording_of_another_version_is_refused(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    day = make_day(tmp_path / "day", blocks=2)
    path = day.segments[0].path
    head = bytearray(path.read_bytes())
    for name, place, other in (("version", 8, 77), ("slice", 10, 1), ("segment", 12, 5)):
        was = head[place]
        changed = head.copy()
        changed[place] = other
        changed[60:64] = checksum(bytes(changed[:60])).to_bytes(4, "little")
        path.write_bytes(changed)
        with refused(f"{path}: {name} was {other}, expected {was}"):
            load(spark, day.path, engine).collect()
    manifest = day.path / "manifest.json"
    text = manifest.read_text()
    format_text = re.search(r'"format":\s*(\d+)', text)
    assert format_text is not None
    manifest.write_text(text.replace(format_text[0], '"format": 77'))
    with refused(f"{manifest}: format was 77, expected {format_text[1]}"):
        load(spark, day.path, engine).collect()
