"""A field's integer that means "no value" is null in Spark, with either engine, also where filters skip blocks."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.absent import Form, columns, records, write_day
from tests.examples import first_of
from tests.spark.reading import by_python, load, sorted_rows


@pytest.mark.parametrize("prices", first_of(["decimal", "float", "integer"], keep=2))
def test_absent_values_are_null_in_spark(spark: SparkSession, tmp_path: Path, prices: str) -> None:
    made = records()
    day = write_day(tmp_path / "2026-11-20", made)
    expected = columns(made, Form(prices, seconds=10**6, nanoseconds=1_000, signed=True))
    schema, table = by_python(day.path, messageType="of all", prices=prices)
    assert {name: sorted_rows(table)[name] for name in expected} == expected
    frame = load(spark, day.path, "java", messageType="of all", prices=prices)
    assert frame.schema == schema
    assert sorted_rows(frame.toArrow()) == sorted_rows(table)
    for name, values in expected.items():
        assert schema[name].nullable or None not in values, name
    assert not schema["plain"].nullable
    assert schema["u1"].nullable


def test_filters_agree_with_nulls(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    made = records()
    day = write_day(tmp_path / "2026-11-20", made)
    load(spark, day.path, engine, messageType="of all").createOrReplaceTempView("rows_read")
    counts: dict[str, int] = {}
    for name, values in columns(made, Form("decimal", seconds=10**6, nanoseconds=1_000, signed=True)).items():
        if name not in ("i4", "u1", "price", "side", "time", "seconds", "i8"):
            continue
        there = sum(each is not None for each in values)
        counts |= {f"{name} is not null": there, f"{name} = {name}": there, f"not ({name} = {name})": 0}
        counts |= {f"{name} is null": len(values) - there, f"{name} <=> null": len(values) - there}
        if name not in ("time", "seconds"):
            above = sum(each is not None and each > 0 for each in values)
            counts |= {f"{name} > 0": above, f"not ({name} > 0)": there - above}
            counts[f"{name} in (0, null)"] = values.count(0)
    query = ", ".join(f"count_if({condition})" for condition in counts)
    (together,) = spark.sql(f"select {query} from rows_read").collect()
    assert dict(zip(counts, together, strict=True)) == counts
    for condition in ("price is null", "u1 is not null", "side in (0, null)", "time <=> null"):
        (found,) = spark.sql(f"select count(*) from rows_read where {condition}").collect()
        assert found[0] == counts[condition], condition
    unknown = spark.sql("select ts_event from rows_read where event_time is null").collect()
    assert [row["ts_event"] for row in unknown] == [0]
    assert spark.sql("select 1 from rows_read where event_time < timestamp'1971-01-01 00:00:00 UTC'").collect() == []
    negated = "select 1 from rows_read where not (event_time > timestamp'1971-01-01 00:00:00 UTC')"
    assert spark.sql(negated).collect() == []
