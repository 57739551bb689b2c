"""Session dates against the standard library's calendar, and the contents of a day's directory."""

from __future__ import annotations

import datetime
import os
import signal
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from blackbox.archive.files.day import LOCK, Lock, Manifest, day_end_ns, make_directory, recorded_days, session_date
from blackbox.errors import JournalError
from blackbox.feed.feed import Feed
from blackbox.feed.slice import Slice
from blackbox.native.system.file_lock import owner_of

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
    begin, end = day_end_ns(feed, date - DAY), day_end_ns(feed, date)
    assert begin <= now_ns < end
    assert session_date(feed, begin) == session_date(feed, end - 1) == date
    assert session_date(feed, end) > date


@given(st.sampled_from(ZONES), st.sampled_from(STARTS), TIMES)
def test_the_date_follows_local_time(zone: str, start: str, now_ns: int) -> None:
    moment = datetime.datetime.fromtimestamp(now_ns // SECOND, ZoneInfo(zone))
    offsets = {(moment + step).utcoffset() for step in (-2 * DAY, 2 * DAY)}
    if len(offsets) == 1:  # without a clock change
        assert session_date(feed_of(zone, start), now_ns) == expected_date(moment, datetime.time.fromisoformat(start))


@pytest.mark.parametrize(("date", "hours"), [("2026-03-07", 24), ("2026-03-08", 23), ("2026-11-01", 25)])
def test_a_clock_change_makes_a_day_shorter_or_longer(date: str, hours: int) -> None:
    feed, day = feed_of("America/New_York"), datetime.date.fromisoformat(date)
    assert day_end_ns(feed, day) - day_end_ns(feed, day - DAY) == hours * 3_600 * SECOND


def test_a_day_of_a_feed_with_other_slices_is_not_continued(tmp_path: Path) -> None:
    def with_topics(*topics: tuple[str, ...] | tuple[int, int]) -> Feed:
        kinds = ({"share": each} if isinstance(each[0], int) else {"prefixes": each} for each in topics)
        slices = (Slice(endpoints=(f"inproc://day-{number}",), **kind) for number, kind in enumerate(kinds))
        return Feed(name="day", slices=tuple(slices))

    date, wrong = datetime.date(2026, 11, 21), "record to another directory until the next session"
    by_prefix, by_share = with_topics(("A", "B"), ("C",)), with_topics((0, 2), (1, 2))
    for feed, same, other, texts in (
        (by_prefix, with_topics(("B", "A"), ("C",)), with_topics(("A",), ("B", "C")), r"prefixes \['A', 'B'\]"),
        (by_prefix, by_prefix, by_share, r"prefixes \['A', 'B'\], expected the share 0 of 2"),
        (by_share, by_share, with_topics((1, 2), (0, 2)), "share 0 of 2, expected the share 1 of 2"),
        (feed_of("UTC"), with_topics((0, 1)), with_topics(("A",)), r"prefixes \[''\], expected the prefixes \['A'\]"),
    ):
        manifest = Manifest.new(feed, date, 0)
        manifest.check_feed(same, tmp_path)
        with pytest.raises(JournalError, match=f"holds a feed whose slice 0 has the {texts}.*: {wrong}"):
            manifest.check_feed(other, tmp_path)


def test_days_are_listed_in_order(tmp_path: Path) -> None:
    feed = feed_of("UTC")
    for date in ("2026-11-21", "2026-02-03", "2025-12-31"):
        make_directory(tmp_path / "day" / date)
        Manifest.new(feed, datetime.date.fromisoformat(date), 0).write(tmp_path / "day" / date)
    (tmp_path / "day" / "no-day").mkdir()
    assert [day.name for day in recorded_days(tmp_path / "day")] == ["2025-12-31", "2026-02-03", "2026-11-21"]


def test_a_lock_names_its_owner_and_ends_with_its_process(tmp_path: Path) -> None:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        lock = Lock(tmp_path)
        os.write(write, b"held")
        signal.pause()
        lock.close()
    try:
        assert os.read(read, 4) == b"held"
        assert owner_of(tmp_path / LOCK) == f"process {pid}"
        with pytest.raises(JournalError, match=f"is being recorded by process {pid}, expected no other recorder"):
            Lock(tmp_path)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(read)
        os.close(write)
    assert owner_of(tmp_path / LOCK) is None
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
