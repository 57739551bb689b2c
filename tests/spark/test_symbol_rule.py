"""The symbol rule of a feed in either engine: columns, filters, and skipped slices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from blackbox import Feed
from blackbox.feed.slice import Slice
from tests.journals import Day, Put, Row
from tests.spark.reading import load

SPLITS: list[tuple[dict[str, Any], list[tuple[str, str | None]]]] = [
    ({}, [("AB.C", "x"), ("AB", "y/z"), ("A/B", "x"), ("AB", None)]),
    ({"symbol": "before_first"}, [("AB", "C.x"), ("AB", "y/z"), ("A/B", "x"), ("AB", None)]),
    ({"symbol": "whole"}, [("AB.C.x", None), ("AB.y/z", None), ("A/B.x", None), ("AB", None)]),
    ({"separator": "/"}, [("AB.C.x", None), ("AB.y", "z"), ("A", "B.x"), ("AB", None)]),
]
"""Feed settings, each with symbol and type of the same four topics."""


@pytest.fixture(scope="module")
def ruled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a feed's days, each with another rule, which also routes the messages, so that slices can be skipped."""
    path = tmp_path_factory.mktemp("ruled")
    for number, (settings, _) in enumerate(SPLITS):
        parts = tuple(Slice(endpoints=(f"inproc://ruled-{i}",), share=(i, 3)) for i in range(3))
        feed = Feed(name="recorded", slices=parts, **settings)
        day = Day(path / f"2026-11-2{number}", feed, date=f"2026-11-2{number}")
        for place, topic in enumerate((b"AB.C.x", b"AB.y/z", b"A/B.x", b"AB")):
            day.put(feed.slice_of(topic), Put((Row(topic, b"%d" % place),)))
    return path


def test_symbols_and_their_filters_follow_the_rule_of_each_day(spark: SparkSession, ruled: Path, engine: str) -> None:
    """Slices are chosen by the root `AB`, so a filter by symbol must look for `AB.C` in the slice of `AB`."""
    frame = load(spark, ruled, engine)
    rows = frame.select("symbol", "type").orderBy("date", "payload").collect()
    assert [tuple(row) for row in rows] == [pair for _, pairs in SPLITS for pair in pairs]
    names = sorted(name for _, pairs in SPLITS for name, _ in pairs)
    for symbol in ("AB", "AB.C", "AB.C.x", "A"):
        exact = frame.where(f"symbol = '{symbol}'").select("symbol").collect()
        assert [row.symbol for row in exact] == [name for name in names if name == symbol]
        begun = frame.where(f"symbol LIKE '{symbol}%'").select("symbol").collect()
        assert sorted(row.symbol for row in begun) == [name for name in names if name.startswith(symbol)]
    begun = frame.where("topic LIKE 'AB.C.%'").collect()
    assert sorted(row.topic for row in begun) == ["AB.C.x"] * 4
