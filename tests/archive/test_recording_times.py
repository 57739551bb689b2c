"""Formats of times, and the day of a time of day."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy
import pytest

from blackbox import Recording
from tests.archive.written_days import ns, told
from tests.journals import Day, Put, Row, feed_of


@pytest.mark.parametrize(
    ("given_time", "expected"),
    [
        (17, 17),
        (numpy.int64(17), 17),
        ("09:30", ns("2026-11-20T09:30-05:00")),
        ("09:30:01", ns("2026-11-20T09:30:01-05:00")),
        ("09:30:01.5", ns("2026-11-20T09:30:01.5-05:00")),
        ("09:30:01.000000007", ns("2026-11-20T09:30:01-05:00") + 7),
        ("09:30Z", ns("2026-11-20T09:30+00:00")),
        ("2026-11-20", ns("2026-11-20T00:00-05:00")),
        ("1763000000000000001", 1_763_000_000_000_000_001),
        ("20:00", ns("2026-11-19T20:00-05:00")),  # the session began at 18:00 on the previous day
        ("2026-11-20T09:30", ns("2026-11-20T09:30-05:00")),
        ("2026-11-20 09:30:00Z", ns("2026-11-20T09:30+00:00")),
        ("2026-11-20T09:30:00.25+01:00", ns("2026-11-20T09:30:00.25+01:00")),
        (datetime.datetime(2026, 11, 20, 9, tzinfo=datetime.UTC), ns("2026-11-20T09:00+00:00")),
    ],
)
def test_a_time_has_several_formats(tmp_path: Path, given_time: Any, expected: int) -> None:
    Day(tmp_path, feed_of(time_zone="America/New_York", day_start="18:00"))
    assert Recording.open(tmp_path).time(given_time) == expected


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ("noon", ValueError),
        ("25:00", ValueError),
        ("09:30.5", ValueError),
        ("2026-13-01T00:00", ValueError),
        (datetime.datetime(2026, 11, 20), ValueError),  # noqa: DTZ001
        (1.5, TypeError),
        (True, TypeError),
    ],
)
def test_an_invalid_time_is_rejected(tmp_path: Path, wrong: Any, error: type[Exception]) -> None:
    Day(tmp_path, feed_of())
    with pytest.raises(error, match="time was"):
        Recording.open(tmp_path).batches(start=wrong)


def test_a_time_of_day_is_on_the_day_of_the_messages(tmp_path: Path) -> None:
    market = ns("2017-04-25T14:30-04:00")
    feed = feed_of(time_zone="America/New_York")
    rows = tuple(Row(b"A", b"%d" % minute, market + minute * 60 * 10**9) for minute in range(60))
    sent = ns("2026-11-20T20:00-05:00")
    Day(tmp_path, feed).put(0, Put(rows, 0, sent, sent))
    recording = Recording.open(tmp_path)
    found = [message.payload for message in told(recording.batches(start="15:00", stop="15:02"))]
    assert found == [b"30", b"31"]
    assert recording.time("20:00", "ts_out") == sent
    assert recording.time("2026-11-20T20:00") == sent
