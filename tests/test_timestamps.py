"""Times as text and as ns since 1970, compared with datetime."""

from __future__ import annotations

import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox.timestamps import (
    MAX_NS,
    MIN_NS,
    SECOND_NS,
    check_unit,
    clock_of,
    clock_text,
    date_of,
    datetime_of,
    ns_of,
    ns_on,
    parse_time,
    time_text,
    zone_of,
)

NEW_YORK = "America/New_York"
ZONES = ("UTC", NEW_YORK, "Asia/Kolkata", "Australia/Lord_Howe", "Pacific/Apia")
HOUR = 3_600 * SECOND_NS
START = 1_577_716_200 * SECOND_NS
"""2019-12-30 14:30 UTC, 9:30 in New York."""

any_ns = st.integers(MIN_NS, MAX_NS)
whole_seconds = st.integers(-9_223_372_000, 9_223_372_000)
zones = st.sampled_from(ZONES)


def of_datetime(moment: datetime.datetime) -> int:
    """Convert whole seconds with datetime's arithmetic, which is exact in a float."""
    return int(moment.timestamp()) * SECOND_NS


@given(any_ns)
def test_the_text_of_a_time_parses_to_that_time(ns: int) -> None:
    assert parse_time(time_text(ns, 9), NEW_YORK) == ns
    assert parse_time(time_text(ns, 0), NEW_YORK) == ns // SECOND_NS * SECOND_NS if ns >= MIN_NS + SECOND_NS else True


@given(whole_seconds, zones)
def test_a_date_time_agrees_with_datetime(seconds: int, zone: str) -> None:
    moment = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(seconds=seconds)
    local = moment.astimezone(ZoneInfo(zone)).replace(fold=0)
    expected = of_datetime(local)
    assert parse_time(f"{local:%Y-%m-%dT%H:%M:%S}", zone) == expected
    assert parse_time(f"{local:%Y%m%d %H:%M:%S,000000001}", zone) == expected + 1
    assert parse_time(f"{moment:%Y-%m-%d %H:%M:%S}+00:00", zone) == seconds * SECOND_NS
    assert ns_of(moment) == seconds * SECOND_NS
    assert datetime_of(seconds * SECOND_NS, zone) == moment
    assert date_of(seconds * SECOND_NS, zone) == local.date()
    assert clock_text(seconds * SECOND_NS, zone) == f"{local:%H:%M:%S}"


@given(st.dates(datetime.date(1680, 1, 1), datetime.date(2260, 1, 1)), st.times(), zones)
def test_a_time_on_a_date(day: datetime.date, clock: datetime.time, zone: str) -> None:
    clock = clock.replace(microsecond=0, fold=0)
    expected = of_datetime(datetime.datetime.combine(day, clock, ZoneInfo(zone)))
    assert ns_on(day, clock, zone) == expected
    assert parse_time(f"{day}T{clock}", zone) == expected
    assert parse_time(str(day), zone) == ns_on(day, datetime.time(), zone)


@given(whole_seconds, st.times(), zones)
def test_time_of_day_is_the_first_one_in_the_range(start: int, clock: datetime.time, zone: str) -> None:
    clock = clock.replace(microsecond=0, fold=0)
    start_ns = min(max(start, -9_000_000_000), 9_000_000_000) * SECOND_NS
    stop_ns = start_ns + 23 * HOUR
    first = date_of(start_ns, zone)
    days = [ns_on(first + datetime.timedelta(days=day), clock, zone) for day in (-1, 0, 1, 2)]
    expected = min((ns for ns in days if start_ns <= ns <= stop_ns), default=days[1])
    assert parse_time(str(clock), zone, start_ns, stop_ns) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (str(START + 1), START + 1),
        (f" {START}\n", START),
        ("20191230", START - 9 * HOUR - HOUR // 2),
        ("2019-12-30T14:30Z", START),
        ("2019-12-30 09:30:00.000000007", START + 7),
        ("2019-12-30T15:30:00,5+0100", START + SECOND_NS // 2),
        ("09:31", START + 60 * SECOND_NS),
        ("14:30:01Z", START + SECOND_NS),
        ("08:00", START - HOUR - HOUR // 2),
    ],
)
def test_accepted_forms_of_a_time(text: str, expected: int) -> None:
    assert parse_time(text, NEW_YORK, START, START + 6 * HOUR) == expected


def test_an_ambiguous_local_time_is_the_first_and_a_skipped_one_uses_the_offset_before_the_change() -> None:
    assert parse_time("2026-11-01T01:30", NEW_YORK) == parse_time("2026-11-01T01:30-04:00", "UTC")
    assert clock_text(parse_time("2026-11-01T01:30-05:00", "UTC"), NEW_YORK) == "01:30:00"
    skipped = parse_time("2026-03-08T02:30", NEW_YORK)
    assert skipped == parse_time("2026-03-08T02:30-05:00", "UTC")
    assert clock_text(skipped, NEW_YORK) == "03:30:00"


def test_times_before_1970_are_right() -> None:
    assert parse_time("1969-12-31T23:59:59.999999999Z", NEW_YORK) == -1
    assert time_text(-1, 9) == "1969-12-31T23:59:59.999999999Z"
    assert clock_text(-1, "UTC", 3) == "23:59:59.999"
    assert date_of(-1, "UTC") == datetime.date(1969, 12, 31)
    assert datetime_of(-1).microsecond == 999_999


@pytest.mark.parametrize(
    "text",
    [
        *("", "noon", "9" * 30, "25:00", "24:00", "9:30", "09:30.5", "-5", "٠٩:٣٠"),
        *("2019-13-01", "2019-02-29", "2019-12-30T", "T14:30", "2019123014:30", "2019-12-30T14:30:00.0000000001"),
        *("2019-12-30T24:00", "2019-12-30T24:00:00.5", "2019-12-30T14:30:00+00:99"),
        *("2019-12-30T14:30:00+25:00", "9999-12-31", "0001-01-01T00:00+14:00", "1677-09-21", "2262-04-12"),
    ],
)
def test_text_that_is_not_a_time_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"^time was .*, expected ns since 1970, a date-time such as "):
        parse_time(text, "UTC")


@given(st.text(max_size=30) | st.text("0123456789-+:., TZ", max_size=30))
def test_any_text_is_a_time_or_rejected(text: str) -> None:
    try:
        assert MIN_NS <= parse_time(text, NEW_YORK) <= MAX_NS
    except ValueError as error:
        assert str(error).startswith("time was ")  # noqa: PT017


def test_digits_of_the_second() -> None:
    for digits in range(10):
        fraction = ".123456789"[: digits + 1] if digits else ""
        assert time_text(START + 123_456_789, digits) == f"2019-12-30T14:30:00{fraction}Z"
        assert clock_text(START + 123_456_789, NEW_YORK, digits) == f"09:30:00{fraction}"


def test_a_datetime_without_a_zone_and_an_unknown_zone_are_rejected() -> None:
    with pytest.raises(ValueError, match="expected a datetime with a time zone"):
        ns_of(datetime.datetime(2026, 11, 20))  # noqa: DTZ001
    for name in ("", "New York", "Mars/Olympus", "../etc/passwd"):
        with pytest.raises(ValueError, match=f"^time zone was {name!r}, expected a name such as"):
            zone_of(name)


@pytest.mark.parametrize(
    ("value", "unit"),
    [
        (34_200, "no unit since 1970"),
        (1_577_716_200, "seconds"),
        (1_577_716_200_000, "milliseconds"),
        (34_200_000_000, "seconds"),
        (1_577_716_200_000_000, "microseconds"),
    ],
)
def test_a_number_in_another_unit_raises_an_error_with_its_unit(value: int, unit: str) -> None:
    near = 1_577_716_200_000_000_000
    words = rf"time was {value}, which looks like {unit}, expected ns since 1970, such as {near}"
    with pytest.raises(ValueError, match=words):
        check_unit(value, near)
    if value > 10**9:
        with pytest.raises(ValueError, match=words):
            parse_time(str(value), "UTC", near)
        with pytest.raises(ValueError, match=words):
            parse_time(str(value), "UTC")
    assert check_unit(value, 10**9) == value, "small values are fine near other small values"
    assert [check_unit(each, near) for each in (0, -5, near, 10**17)] == [0, -5, near, 10**17]


def test_a_time_of_day_alone_has_neither_date_nor_offset_nor_hour_24() -> None:
    assert clock_of("09:30") == datetime.time(9, 30)
    assert clock_of("23:59:59.5") == datetime.time(23, 59, 59, 500_000)
    for text in ("24:00", "09:60", "9:30", "0930", "09", "T09:30", "09:30Z", "2019-12-30", "2019-12-30T09:30", "", 9):
        with pytest.raises(ValueError, match=f"time of day was {text!r}, expected one such as 14:30"):
            clock_of(text)
