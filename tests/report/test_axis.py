"""Ticks of charts: round local times and round rates."""

from __future__ import annotations

import datetime

import pytest

from blackbox.report.axis import rate_ticks, time_ticks

SECOND = 10**9
OPEN = int(datetime.datetime(2026, 11, 20, 14, 30, tzinfo=datetime.UTC).timestamp()) * SECOND


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (6.5 * 3600, ["10:00", "11:00", "12:00", "13:00", "14:00", "15:00", "16:00"]),
        (86_400, ["12:00", "15:00", "18:00", "21:00", "00:00", "03:00", "06:00", "09:00"]),
        (8, [f"09:30:0{i}" for i in range(9)]),
        (1, ["09:30:00.000", "09:30:00.200", "09:30:00.400", "09:30:00.600", "09:30:00.800", "09:30:01.000"]),
        (0.008, [f"09:30:00.00{i}" for i in range(9)]),
        (0.000_008, [f"09:30:00.00000{i}" for i in range(9)]),
    ],
)
def test_ticks_are_round_local_times(seconds: float, expected: list[str]) -> None:
    end = OPEN + round(seconds * SECOND)
    ticks = list(time_ticks(OPEN, end, "America/New_York"))
    assert [text for _, text in ticks] == expected
    assert all(OPEN <= ns <= end for ns, _ in ticks)


@pytest.mark.parametrize(
    ("highest", "expected"),
    [(0, ["0", "0.001"]), (3, ["0", "1", "2", "3"]), (99_000, ["0", "20 k", "40 k", "60 k", "80 k", "100 k"])],
)
def test_rates_are_round_and_reach_the_highest(highest: float, expected: list[str]) -> None:
    ticks = list(rate_ticks(highest))
    assert [text for _, text in ticks] == expected
    assert ticks[-1][0] >= highest
