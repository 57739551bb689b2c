"""Sessions with half days and holidays: closes by date, and the calendars of exchanges."""

from __future__ import annotations

import datetime
import sys
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from pyspark.errors import PySparkException

from blackbox import ConfigError
from blackbox.analysis import Hours, time_bars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR = 3_600 * 10**9


def wall(text: str, zone: str = "America/New_York") -> int:
    return int(datetime.datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1e6) * 1_000


HALF_DAY = datetime.date(2013, 7, 3)
TIMES = {
    "2013-07-03T09:29:59": False,
    "2013-07-03T12:59:59": True,
    "2013-07-03T13:00:00": False,  # a half day
    "2013-07-04T10:00:00": False,  # a holiday
    "2013-07-05T15:59:59": True,
    "2013-07-05T16:00:00": False,
}


@pytest.mark.parametrize(
    "given",
    [
        {"close": {HALF_DAY: "13:00", "2013-07-04": None}},
        {"close": {"default": "16:00", "2013-07-03": "13:00", datetime.date(2013, 7, 4): None}},
        {"exchange": "XNYS"},
    ],
)
def test_half_days_and_holidays(spark: SparkSession, given: dict[str, Any]) -> None:
    hours = Hours(**given)
    rows = [("A", wall(text), 1.0, 1) for text in TIMES]
    trades = spark.createDataFrame(rows, "symbol string, ts_event bigint, price double, size bigint")
    found = time_bars(trades, "1ns", hours=hours).collect()
    assert sorted(row["start"] for row in found) == [wall(text) for text, is_open in TIMES.items() if is_open]
    assert sorted(row["session"] for row in found) == [HALF_DAY, datetime.date(2013, 7, 5)]
    filled = time_bars(trades, "30m", hours=hours, fill="previous").groupBy("session").count().collect()
    assert sorted(filled) == [(HALF_DAY, 7), (datetime.date(2013, 7, 5), 13)]


def test_sessions_of_an_exchange_over_midnight_and_a_weekend(spark: SparkSession) -> None:
    """The calendar opens at 17:00 in Chicago, for the session of the next date, until 17:00. Saturday is closed."""
    texts = ("2024-03-08T15:59", "2024-03-08T17:30", "2024-03-09T12:00", "2024-03-10T17:00", "2024-03-11T15:59")
    rows = [("A", wall(text, "America/Chicago"), 1.0, 1) for text in texts]
    trades = spark.createDataFrame(rows, "symbol string, ts_event bigint, price double, size bigint")
    found = time_bars(trades, "1h", hours=Hours(exchange="CMES")).orderBy("start").collect()
    assert [str(row["session"]) for row in found] == ["2024-03-08", "2024-03-11", "2024-03-11"]
    early = spark.createDataFrame([("A", 1, 1.0, 1)], trades.schema)
    with pytest.raises(PySparkException, match="expected one within the calendar of XNYS"):
        time_bars(early, "1h", hours=Hours(exchange="XNYS")).collect()


def test_calendar_of_an_exchange_has_old_sessions(spark: SparkSession) -> None:
    texts = ("1999-11-26T12:59", "1999-11-26T13:00")  # the day after Thanksgiving closes at 13:00
    rows = [("A", wall(text), 1.0, 1) for text in texts]
    trades = spark.createDataFrame(rows, "symbol string, ts_event bigint, price double, size bigint")
    (bar,) = time_bars(trades, "1h", hours=Hours(exchange="XNYS")).collect()
    assert (bar["session"], bar["trades"]) == (datetime.date(1999, 11, 26), 1)


def test_hours_with_closes_by_date_are_hashable() -> None:
    closes: dict[str | datetime.date, str | None] = {HALF_DAY: "13:00", "2013-07-04": None}
    hours = Hours(close=closes)
    same = Hours(close={"2013-07-04": None, "2013-07-03": "13:00"})
    assert hash(hours) == hash(same)
    assert hours == same
    closes[HALF_DAY] = "12:00"
    assert hours == same


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"close": {"2013-07-03": "1 pm"}}, "a time of day was '1 pm', expected for example '09:30'"),
        ({"close": {"July 3": "13:00"}}, "close had the key 'July 3', expected a date such as '2013-07-03'"),
        ({"close": {"default": "4 pm"}}, "a time of day was '4 pm'"),
        ({"close": 16}, "a time of day was 16, expected for example '09:30'"),
        ({"exchange": "NOWHERE"}, "exchange was 'NOWHERE', expected a name that exchange_calendars knows"),
        ({"exchange": "XNYS", "close": "13:00"}, "exchange was 'XNYS' with open, close or zone, expected either"),
    ],
)
def test_wrong_hours_are_reported(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Hours(**given)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "exchange_calendars", None)
    with pytest.raises(ImportError, match=r"this needs exchange_calendars: pip install 'blackbox-md\[calendar\]'"):
        Hours(exchange="XPAR")
