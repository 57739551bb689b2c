"""Spread, mid and imbalance of real quotes, and of quotes without two sides."""

from __future__ import annotations

from decimal import Decimal

from pyspark.sql import SparkSession

from blackbox.analysis import with_both_sides, with_spread
from tests.analysis.tape import from_spark


def test_absent_sides_sizes_and_decimals(spark: SparkSession) -> None:
    rows = spark.sql(
        "select * from values (1, 10.25BD, 10.5BD, 3, 1), (2, 10.5BD, 10.5BD, 0, 0), (3, 11BD, 10.5BD, 1, 1), "
        "(4, 0BD, 10.5BD, 0, 1), (5, 10BD, null, 1, null), (6, -1BD, 2BD, 1, 1), (7, -2BD, -1.5BD, 3, 1), "
        "(8, null, null, 1, 1), (9, -1BD, 0BD, 1, 1) "
        "as q(n, bid_price, ask_price, bid_size, ask_size)"
    )
    found = from_spark(with_spread(rows), "n")
    assert found["spread"].to_list() == [
        Decimal("0.25"), 0, Decimal("-0.5"), Decimal("10.5"), None, 3, Decimal("0.5"), None, 1,
    ]  # fmt: skip
    assert found["mid"].to_list() == [10.375, 10.5, 10.75, 5.25, None, 0.5, -1.75, None, -0.5]
    assert found["imbalance"].to_list() == [0.5, None, 0.0, -1.0, None, 0.0, 0.5, None, 0.0]


def test_sides_at_or_below_zero_are_carried(spark: SparkSession) -> None:
    rows = spark.sql(
        "select * from values (1L, 'A', 0, 7, null, 0), (2L, 'A', null, 0, -5, 8), (3L, 'A', null, 0, null, 9), "
        "(4L, 'B', null, 1, 3, 1) as q(ts_event, symbol, bid_price, bid_size, ask_price, ask_size)"
    )
    found = from_spark(with_both_sides(rows), "ts_event")
    assert found.select("bid_price", "bid_size", "ask_price", "ask_size").rows() == [
        (0, 7, None, None), (0, 7, -5, 8), (0, 7, -5, 8), (None, None, 3, 1),
    ]  # fmt: skip
