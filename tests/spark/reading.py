"""Read recordings with either engine, and convert the rows to a form for comparison."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from blackbox.analysis.spark.metrics import read_metrics
from blackbox.analysis.spark.python_engine import DefaultSource
from tests.journals import Day, Put, Row, Told, feed_of

FAILURES = (PySparkException, Py4JJavaError)
"""Exceptions that PySpark raises when a plan or a task fails."""
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
"""Columns of every message, and their types."""
TOLD = ["slice", "epoch", "sequence", "ts_out", "ts_recv", "topic", "payload", "ts_event"]


def load(spark: SparkSession, path: Path | str | list[str], engine: str, **options: str) -> DataFrame:
    """Load a recording with the given engine."""
    target = str(path) if isinstance(path, Path) else path
    return spark.read.format("blackbox").option("engine", engine).options(**options).load(target)


def told_by(frame: DataFrame) -> list[Told]:
    """Return the messages of a data frame, sorted."""
    columns = (column.to_pylist() for column in frame.select(*TOLD).toArrow().columns)
    return sorted(Told(*row)._replace(topic=row[5].encode()) for row in zip(*columns, strict=True))


def sorted_rows(table: pyarrow.Table) -> dict[str, list[Any]]:
    """Return the columns of a table, sorted by slice, epoch and sequence; times are in µs."""
    table = table.sort_by([(name, "ascending") for name in ("slice", "epoch", "sequence")])
    return {
        name: (column.cast(pyarrow.int64()) if pyarrow.types.is_timestamp(column.type) else column).to_pylist()
        for name, column in zip(table.column_names, table.columns, strict=True)
    }


def by_python(path: Path | str | list[str], **options: str) -> tuple[Any, pyarrow.Table]:
    """Return the schema and rows that the Python engine reads from recordings, without Spark."""
    place = {"paths": json.dumps(path)} if isinstance(path, list) else {"path": str(path)}
    source = DefaultSource(place | options)
    reader = source.reader(source.schema())
    batches: list[Any] = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    schema = source.schema()
    return schema, pyarrow.Table.from_batches(batches, schema=to_arrow_schema(schema, timezone="UTC"))


class Counted:
    """A frame of a recording, and the metrics of its reads."""

    def __init__(self, spark: SparkSession, path: Path, engine: str, directory: Path, **options: str) -> None:
        self._directory = directory / f"metrics-{uuid.uuid4().hex}"
        self.frame = load(spark, path, engine, metrics=str(self._directory), **options)

    def read(self, what: str) -> dict[str, int]:
        """Return the summed metrics of `plan` or `task` since the frame was created."""
        return read_metrics(str(self._directory), what)


@contextmanager
def refused(text: str) -> Iterator[None]:
    """Assert that the body fails with this text, for either engine."""
    with pytest.raises(FAILURES, match=re.escape(text)):
        yield


def spread(path: Path, seconds: int, begin: int = 0) -> Day:
    """Write a day of many index entries: one 70 KiB block per second in each of two slices, topics `A0.t` to `B7.t`."""
    day = Day(path, feed_of(2, 2))
    for slice_id in range(2):
        puts = []
        for number in range(seconds):
            time = begin + number * 10**9
            row = Row(b"%c%d.t" % (65 + slice_id, number % 8), bytes(70 << 10), time)
            puts.append(Put((row,), sequence=number, ts_out=time, ts_recv=time))
        day.put(slice_id, *puts)
    return day
