"""Read recordings by one engine or the other, and put the rows in a form in which they can be compared."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema

from blackbox.spark.metrics import read_metrics
from blackbox.spark.python_engine import DefaultSource
from tests.journals import Day, Put, Row, Told, feed_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FAILURES = (PySparkException, Py4JJavaError)
"""What PySpark raises when a plan or a task fails."""
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
    """A recording, by an engine that is told."""
    target = str(path) if isinstance(path, Path) else path
    return spark.read.format("blackbox").option("engine", engine).options(**options).load(target)


def told_of(row: Any) -> Told:
    return Told(
        row[0], row[1], row[2], row[3], row[4], row[5].encode(), None if row[6] is None else bytes(row[6]), row[7]
    )


def told_by(frame: DataFrame) -> list[Told]:
    """The messages of a data frame, sorted."""
    return sorted(map(told_of, frame.select(*TOLD).collect()))


def sorted_rows(table: pyarrow.Table) -> dict[str, list[Any]]:
    """The columns of a table, by slice, epoch and sequence; times as whole microseconds."""
    table = table.sort_by([(name, "ascending") for name in ("slice", "epoch", "sequence")])
    return {
        name: (column.cast(pyarrow.int64()) if pyarrow.types.is_timestamp(column.type) else column).to_pylist()
        for name, column in zip(table.column_names, table.columns, strict=True)
    }


def by_python(path: Path, **options: str) -> tuple[Any, pyarrow.Table]:
    """Schema and rows that the engine in Python gives of a recording; without Spark."""
    source = DefaultSource({"path": str(path), **options})
    reader = source.reader(source.schema())
    batches: list[Any] = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    schema = source.schema()
    return schema, pyarrow.Table.from_batches(batches, schema=to_arrow_schema(schema, timezone="UTC"))


class Counted:
    """A frame of a recording, and what is counted when it is read."""

    def __init__(self, spark: SparkSession, path: Path, engine: str, directory: Path, **options: str) -> None:
        self._directory = directory / f"metrics-{uuid.uuid4().hex}"
        self.frame = load(spark, path, engine, metrics=str(self._directory), **options)

    def read(self, what: str) -> dict[str, int]:
        """The sums of `plan` or `task` since this was made."""
        return read_metrics(str(self._directory), what)


@contextmanager
def refused(text: str) -> Iterator[None]:
    """What fails here says this, whichever engine it is of."""
    with pytest.raises(FAILURES, match=re.escape(text)):
        yield


def spread(path: Path, seconds: int, begin: int = 0) -> Day:
    """A day of many index entries: a block of 70 KiB a second in each of two slices, of topics `A0.t` to `B7.t`."""
    day = Day(path, feed_of(2, 2))
    for slice_id in range(2):
        puts = []
        for number in range(seconds):
            time = begin + number * 10**9
            row = Row(b"%c%d.t" % (65 + slice_id, number % 8), bytes(70 << 10), time)
            puts.append(Put((row,), sequence=number, ts_out=time))
        day.put(slice_id, *puts)
    return day
