"""Session dates against the standard library's calendar, and the contents of a day's directory."""

from __future__ import annotations

import datetime
import os
import signal
import subprocess
import sys
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from blackbox.archive.day import Lock, Manifest, day_end_ns, make_directory, recorded_days, session_date
from blackbox.errors import JournalError
from blackbox.feed.feed import Feed, Slice

ZONES = ("UTC", "America/New_York", "Europe/Berlin", "Asia/Kolkata", "Australia/Lord_Howe", "Pacific/Apia")
STARTS = ("00:00", "02:30", "11:59:59", "12:00", "17:00", "23:59:59")
SECOND = 10**9
DAY = datetime.timedelta(1)


def feed_of(zone: str, start: str = "00:00") -> Feed:
    return Feed(name="day", slices=(Slice(endpoints=("inproc://day",)),), time_zone=zone, day_start=start)


def ns(year: int, month: int, day: int, hour: int = 0, minute: int = 0, zone: str = "UTC") -> int:
    return int(datetime.datetime(year, month, day, hour, minute, tzinfo=ZoneInfo(zone)).timestamp()) * SECOND


def expected_date(moment: datetime.datetime, start: datetime.time) -> datetime.date:
    """Return the date by local time: a session begins at `start`."""
    late = start >= datetime.time(12)
    if moment.timetz().replace(tzinfo=None) >= start:
        return moment.date() + DAY if late else moment.date()
    return moment.date() if late else moment.date() - DAY


TIMES = st.integers(ns(1990, 1, 1), ns(2060, 1, 1))


@given(st.sampled_from(ZONES), st.sampled_from(STARTS), TIMES)
@example("America/New_York", "02:30", ns(2026, 3, 8, 7, 29))
@example("America/New_York", "02:30", ns(2026, 3, 8, 7, 30))
@example("America/New_York", "00:00", ns(2026, 11, 1, 5, 30))
@example("Pacific/Apia", "00:00", ns(2011, 12, 30, 10))
@example("Pacific/Apia", "17:00", ns(2011, 12, 30, 9))
def test_every_time_is_in_the_session_of_its_date(zone: str, start: str, now_ns: int) -> None:
    feed = feed_of(zone, start)
    date = session_date(feed, now_ns)
    assert day_end_ns(feed, date - DAY) <= now_ns < day_end_ns(feed, date)


@given(st.sampled_from(ZONES), st.sampled_from(STARTS), TIMES)
def test_the_date_follows_local_time(zone: str, start: str, now_ns: int) -> None:
    moment = datetime.datetime.fromtimestamp(now_ns // SECOND, ZoneInfo(zone))
    offsets = {(moment + step).utcoffset() for step in (-2 * DAY, 2 * DAY)}
    if len(offsets) == 1:  # without a clock change; see the tests below
        assert session_date(feed_of(zone, start), now_ns) == expected_date(moment, datetime.time.fromisoformat(start))


@given(st.sampled_from(ZONES), st.sampled_from(STARTS), st.dates(datetime.date(1990, 1, 1), datetime.date(2060, 1, 1)))
def test_a_session_ends_where_the_next_one_begins(zone: str, start: str, date: datetime.date) -> None:
    feed = feed_of(zone, start)
    end = day_end_ns(feed, date)
    assert day_end_ns(feed, date - DAY) <= end <= day_end_ns(feed, date + DAY)
    assert session_date(feed, end) > date
    if day_end_ns(feed, date - DAY) < end:  # Samoa had no 30 December 2011
        assert session_date(feed, end - 1) == date
        assert session_date(feed, day_end_ns(feed, date - DAY)) == date


@pytest.mark.parametrize(
    ("date", "hours"), [("2026-03-07", 24), ("2026-03-08", 23), ("2026-03-09", 24), ("2026-11-01", 25)]
)
def test_a_clock_change_makes_a_day_shorter_or_longer(date: str, hours: int) -> None:
    feed, day = feed_of("America/New_York"), datetime.date.fromisoformat(date)
    assert day_end_ns(feed, day) - day_end_ns(feed, day - DAY) == hours * 3_600 * SECOND


@pytest.mark.parametrize("date", ["2026-03-08", "2026-11-01"])
def test_the_hour_of_a_clock_change_belongs_to_one_day(date: str) -> None:
    feed, day = feed_of("America/New_York"), datetime.date.fromisoformat(date)
    start = day_end_ns(feed, day - DAY)
    for hour in range(23):
        assert session_date(feed, start + hour * 3_600 * SECOND) == day


def test_an_evening_start_belongs_to_the_next_date() -> None:
    feed = feed_of("America/Chicago", "17:00")
    assert session_date(feed, ns(2026, 11, 20, 16, 59, "America/Chicago")) == datetime.date(2026, 11, 20)
    assert session_date(feed, ns(2026, 11, 20, 17, 0, "America/Chicago")) == datetime.date(2026, 11, 21)
    assert day_end_ns(feed, datetime.date(2026, 11, 21)) == ns(2026, 11, 21, 17, 0, "America/Chicago")


def test_a_time_is_exact_to_the_nanosecond() -> None:
    feed = feed_of("UTC")
    midnight = ns(2026, 11, 21)
    assert session_date(feed, midnight - 1) == datetime.date(2026, 11, 20)
    assert session_date(feed, midnight) == datetime.date(2026, 11, 21)


# The directory


def test_the_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    feed = feed_of("Asia/Tokyo", "06:00")
    manifest = Manifest.new(feed, datetime.date(2026, 11, 21), 5)
    manifest.write(tmp_path)
    assert Manifest.read(tmp_path) == manifest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", "slice-00000"]
    manifest.check_feed(feed, tmp_path)


def test_days_are_listed_in_order(tmp_path: Path) -> None:
    feed = feed_of("UTC")
    for date in ("2026-11-21", "2026-02-03", "2025-12-31"):
        make_directory(tmp_path / "day" / date)
        Manifest.new(feed, datetime.date.fromisoformat(date), 0).write(tmp_path / "day" / date)
    (tmp_path / "day" / "no-day").mkdir()
    assert [day.name for day in recorded_days(tmp_path / "day")] == ["2025-12-31", "2026-02-03", "2026-11-21"]


# The lock


def test_a_lock_names_its_owner_and_is_free_after_it(tmp_path: Path) -> None:
    lock = Lock(tmp_path)
    with pytest.raises(JournalError, match=f"is being recorded by process {os.getpid()}, expected no other recorder"):
        Lock(tmp_path)
    lock.close()
    Lock(tmp_path).close()


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from blackbox.archive.day import Lock
lock = Lock(Path({str(tmp_path)!r}))
print("held", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"held\n"
        with pytest.raises(JournalError, match=f"by process {owner.pid},"):
            Lock(tmp_path)
        owner.kill()
    Lock(tmp_path).close()


def test_a_released_lock_is_free_even_if_a_forked_process_has_its_file(tmp_path: Path) -> None:
    lock = Lock(tmp_path)
    pid = os.fork()
    if pid == 0:
        signal.pause()
    try:
        lock.close()
        Lock(tmp_path).close()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
