"""The trading day from file names, and its midnight across daylight-saving time."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest
from blackbox_feeds.io.dates import midnight_ns, trading_day

from blackbox.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "day"),
    [
        ("12302019.NASDAQ_ITCH50.gz", date(2019, 12, 30)),
        ("jamison_12302019_SNIPPET.NASDAQ_ITCH50", date(2019, 12, 30)),
        ("20191230.itch", date(2019, 12, 30)),
        ("itch-2019-12-30.pcap", date(2019, 12, 30)),
        ("2019_12_30.bin", date(2019, 12, 30)),
        ("S123019-v50.txt.gz", date(2019, 12, 30)),
        ("10122019.gz", date(2019, 10, 12)),
        ("20200229_20200229.itch", date(2020, 2, 29)),
    ],
)
def test_day_of_a_file_name(name: str, day: date) -> None:
    assert trading_day(None, f"/data/20010101/{name}") == day


@pytest.mark.parametrize(
    "name",
    ["day.itch", "13322019.gz", "120191230.gz", "20191230_20191231.gz", "20190230.gz", "2019.gz",
     "18991230.gz"],
)  # fmt: skip
def test_a_name_without_one_day_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: the file name tells no one date"):
        trading_day(None, name)


def test_day_given() -> None:
    assert trading_day("2019-12-30", "20010101") == date(2019, 12, 30)
    assert trading_day(date(2019, 12, 30), "") == date(2019, 12, 30)
    assert trading_day(datetime(2019, 12, 30, 9, tzinfo=UTC), "") == date(2019, 12, 30)
    with pytest.raises(ConfigError, match=r"date was '30\.12\.2019', expected a date such as"):
        trading_day("30.12.2019", "")


@pytest.mark.parametrize(
    ("day", "utc"),
    [
        (date(2019, 12, 30), datetime(2019, 12, 30, 5, tzinfo=UTC)),
        (date(2019, 7, 1), datetime(2019, 7, 1, 4, tzinfo=UTC)),
        (date(2024, 3, 10), datetime(2024, 3, 10, 5, tzinfo=UTC)),
        (date(2019, 11, 3), datetime(2019, 11, 3, 4, tzinfo=UTC)),
        (date(2024, 3, 11), datetime(2024, 3, 11, 4, tzinfo=UTC)),
    ],
)
def test_midnight_in_new_york(day: date, utc: datetime) -> None:
    assert midnight_ns(day) == int(utc.timestamp()) * 10**9


@pytest.mark.parametrize("year", [1, 219, 1677, 2262, 2400, 9999])
def test_a_midnight_that_does_not_fit_int64_is_refused(year: int) -> None:
    with pytest.raises(ConfigError, match=f"date was {year:04d}-12-31, expected one of 1678 to 2261: times are int64"):
        midnight_ns(date(year, 12, 31))


@pytest.mark.parametrize("day", [date(1678, 1, 1), date(2261, 12, 31)])
def test_the_first_and_last_midnight_fit_int64(day: date) -> None:
    assert -(1 << 63) < midnight_ns(day) < (1 << 63) - 86_400 * 10**9
