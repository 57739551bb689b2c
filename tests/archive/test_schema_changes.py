"""Days whose messages have other fields, read as one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
from polars.testing import assert_frame_equal

from blackbox import ConfigError, Feed, Recording, Schema
from blackbox.archive.recordings import Recordings
from blackbox.feed.schema.schema import price, utc_time

BEGIN = 1_767_623_400 * 10**9
DAY = 86_400 * 10**9
OLD = [("type", "S1"), ("size", "<u4"), ("price", price("<i4", 2)), ("venue", "S2"), ("time", utc_time("<i8", "s"))]
NEW = [("type", "S1"), ("flags", "u1"), ("price", price("<i8", 4)), ("size", "<u8"), ("time", utc_time("<i8", "ns"))]


def written(path: Path, number: int, fields: list[Any], columns: dict[str, Any], **more: Any) -> Recording:
    records = {"t": numpy.dtype(fields), **more}
    feed = Feed.local("own", schema=Schema("own", 1_001, records, names={"tick": "t"}))
    table = {"topic": ["A.t", "B.t"], "ts_event": [BEGIN + number * DAY, BEGIN + number * DAY + 1], **columns}
    return Recording.create(path, feed, table, message_type="tick")


@pytest.fixture
def days(tmp_path: Path) -> Recordings:
    old = {"size": [1, 2**32 - 1], "price": [1.25, 1.5], "venue": ["X", "YZ"], "time": [1_700_000_000, 0]}
    new = {"flags": [3, 4], "price": [1.2501, 1.5], "size": [5, 2**40], "time": [1_700_000_000 * 10**9 + 1, 0]}
    more = {"q": numpy.dtype([("type", "S1"), ("bid", "<i4")])}
    return Recordings([written(tmp_path, 0, OLD, old), written(tmp_path, 1, NEW, new, **more)])


def test_fields_are_widened_and_missing_ones_are_null(days: Recordings) -> None:
    frame = days.to_polars(message_type="tick")
    assert frame["size"].to_list() == [1, 2**32 - 1, 5, 2**40]
    assert frame["price"].to_list() == [1.25, 1.5, 1.2501, 1.5]
    assert frame["venue"].to_list() == ["X", "YZ", None, None]
    assert frame["flags"].to_list() == [None, None, 3, 4]
    assert frame["time"].dt.timestamp("ns").to_list() == [1_700_000_000 * 10**9, 0, 1_700_000_000 * 10**9 + 1, 0]
    assert frame["symbol"].to_list() == ["A", "B", "A", "B"]
    lazy = days.scan_polars(message_type="tick")
    assert_frame_equal(lazy.collect(), frame, categorical_as_str=True)
    chunks = list(days.arrow_chunks(message_type="tick", rows=1, prices="decimal"))
    assert [str(chunk.column("price")[0].as_py()) for chunk in chunks] == ["1.2500", "1.5000", "1.2501", "1.5000"]
    assert len(days.to_pandas(message_type=["tick", "q"])) == 4
    assert len(days.to_arrow(message_type="q")) == 0


def test_changes_are_reported(days: Recordings) -> None:
    changes = {each.field: (each.before, each.after) for each in days.schema_changes()}
    assert changes == {
        "type": ("", "|S1"), "bid": ("", "<i4"), "size": ("<u4", "<u8"), "price": ("<i4 decimals=2", "<i8 decimals=4"),
        "venue": ("|S2", ""), "time": ("<i8 utc=s", "<i8 utc=ns"), "flags": ("", "|u1"),
    }  # fmt: skip
    (venue,) = [each for each in days.schema_changes() if each.field == "venue"]
    assert str(venue) == f"{days[-1].path}: type 'tick', field 'venue': |S2 -> gone"
    assert days[:1].schema_changes() == []


def test_a_conflict_names_day_field_and_types(days: Recordings, tmp_path: Path) -> None:
    first, last = (str(day.path) for day in days)
    cases: list[tuple[Any, str, str]] = [
        ({"prices": "integer"}, "int32 of 2 decimals", "int64 of 4 decimals"),
        ({"times": "integer"}, "timestamp[s, tz=UTC]", "timestamp[ns, tz=UTC]"),
    ]
    for options, before, after in cases:
        with pytest.raises(ConfigError) as raised:
            days.to_arrow(message_type="tick", **options)
        assert f"was {after} on {last} and {before} on {first}, which have no common type" in str(raised.value)
    other = written(tmp_path / "other", 2, [("type", "S1"), ("venue", "<f8")], {"venue": [1.0, 2.0]})
    with pytest.raises(ConfigError, match=r"'venue' was double on .*2026-01-07 and string on .*2026-01-05, which"):
        Recordings([*days, other]).to_polars(message_type="tick")
    with pytest.raises(ConfigError, match="message type was 'x', expected one of: tick"):
        days.to_polars(message_type="x")
