"""A day exported to Parquet: Spark reads the same table as through the data source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from blackbox import Recording
from tests.examples import first_of


@pytest.mark.parametrize("kind", first_of([None, "Q"]))
def test_parquet_equals_the_data_source(
    spark: SparkSession, tmp_path: Path, captured: Callable[[str], Path], kind: str | None
) -> None:
    feed = captured("tops")
    (day,) = feed.glob("*-*-*")
    Recording.open(day).to_parquet(tmp_path / "out", message_type=kind)
    reader = spark.read.format("blackbox")
    source = (reader if kind is None else reader.option("messageType", kind)).load(str(feed))
    parquet = spark.read.parquet(str(tmp_path / "out"))
    given = {field.name: field.dataType.simpleString() for field in source.schema}
    # Times in records keep their nanoseconds, for which Spark has no type.
    exact = {} if kind is None else {"timestamp": "bigint"}
    assert {field.name: field.dataType.simpleString() for field in parquet.schema} == given | exact
    columns = [name for name in source.columns if name not in exact]
    assert source.count() == parquet.count() == (57_674 if kind is None else 27_217)
    assert source.select(columns).exceptAll(parquet.select(columns)).count() == 0
