"""Sessions with half days and holidays: closes by date, and the calendars of exchanges."""

from __future__ import annotations

import datetime
import sys
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from blackbox import ConfigError
from blackbox.analysis import Hours, time_bars
from tests.analysis.tape import wall

HALF_DAY, LAST_DAY = datetime.date(1999, 11, 26), datetime.date(1999, 11, 29)
TIMES = {
    "1999-11-25T10:00:00": False,  # Thanksgiving, a holiday
    "1999-11-26T09:29:59": False,
    "1999-11-26T12:59:59": True,
    "1999-11-26T13:00:00": False,  # a half day
    "1999-11-29T15:59:59": True,
    "1999-11-29T16:00:00": False,
}


@pytest.mark.parametrize(
    "given",
    [
        {"close": {"default": "16:00", "1999-11-26": "13:00", datetime.date(1999, 11, 25): None}},
        {"exchange": "XNYS"},
    ],
)
def test_half_days_and_holidays(spark: SparkSession, given: dict[str, Any]) -> None:
    hours = Hours(**given)
    rows = [("A", wall(text), 1.0, 1) for text in TIMES]
    trades = spark.createDataFrame(rows, "symbol string, ts_event bigint, price double, size bigint")
    found = time_bars(trades, "1ns", hours=hours).collect()
    assert sorted(row["start"] for row in found) == [wall(text) for text, is_open in TIMES.items() if is_open]
    assert sorted(row["session"] for row in found) == [HALF_DAY, LAST_DAY]
    filled = time_bars(trades, "30m", hours=hours, fill="previous").groupBy("session").count().collect()
    assert sorted(filled) == [(HALF_DAY, 7), (LAST_DAY, 13)]


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


def test_hours_with_closes_by_date_are_hashable() -> None:
    closes: dict[str | datetime.date, str | None] = {HALF_DAY: "13:00", "1999-11-25": None}
    hours = Hours(close=closes)
    same = Hours(close={"1999-11-25": None, "1999-11-26": "13:00"})
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
        ({"close": "24:00"}, "a time of day was '24:00', expected for example '09:30'"),
        ({"close": 16}, "a time of day was 16, expected for example '09:30'"),
        ({"zone": "New York"}, "zone was 'New York', expected one such as 'America/New_York'"),
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
