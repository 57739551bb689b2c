"""Repeated messages: the first at once, then one per interval with the count, by kind and subject, in bounds."""

from __future__ import annotations

import logging

import pytest

from blackbox.repeated_log import MOST_SUBJECTS, RepeatedLog

log = logging.getLogger("blackbox")
GONE, BACK = "%s is gone", "%s is back"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1_000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def test_the_first_is_logged_at_once_and_then_one_per_interval_with_the_count(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    limited = RepeatedLog(log, every_s=10)
    for second in range(25):
        clock[0] = 1_000.0 + second
        limited.warning("a", GONE, "a")
        if second == 3:
            limited.warning("b", GONE, "b")
            limited.log(logging.ERROR, "a", BACK, "a")
    more = "a is gone (and 9 times since the last such message)"
    assert caplog.messages == ["a is gone", "b is gone", "a is back", more, more]
    assert [each.levelname for each in caplog.records] == ["WARNING", "WARNING", "ERROR", "WARNING", "WARNING"]
    assert {each.module for each in caplog.records} == {"test_repeated_log"}
    assert limited.waiting == 4


def test_counts_are_summed_and_none_is_lost(clock: list[float]) -> None:
    limited, logged = RepeatedLog(log, every_s=10), 0
    for tick in range(100):
        clock[0] += 0.7
        logged += limited.due("gaps", tick)
        assert logged + limited.waiting == sum(range(tick + 1))
    clock[0] += 10
    assert logged + limited.due("gaps", 0) == sum(range(100))
    assert (limited.due("gaps", 0), limited.waiting) == (0, 0)


def test_many_subjects_share_one_limit_until_earlier_ones_are_over(clock: list[float]) -> None:
    limited = RepeatedLog(log, every_s=10)
    due = [limited.due(number) for number in range(3 * MOST_SUBJECTS)]
    assert sum(due) == MOST_SUBJECTS + 1
    assert len(limited._entries) == MOST_SUBJECTS + 1
    clock[0] += 10
    assert limited.due("new") == 1
    assert len(limited._entries) == 1
