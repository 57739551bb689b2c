"""Durations are seconds or a `timedelta`, converted to ns in one place, with bounds and one error."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox import Feed, Recorder, SlowPolicy, Subscriber
from blackbox.archive.record.outbox import Outbox
from blackbox.arguments import LONGEST_S, duration_ns
from blackbox.replay.controls import Controls


@given(st.integers(0, 10**15))
def test_seconds_and_timedeltas_of_one_length_are_equal(micros: int) -> None:
    expected = micros * 1_000
    assert duration_ns("wait", timedelta(microseconds=micros), 0) == expected
    assert abs(duration_ns("wait", micros / 1e6, 0) - expected) <= expected * 2.0**-52
    if micros % 1_000_000 == 0:
        assert duration_ns("wait", micros // 1_000_000, 0) == expected


@pytest.mark.parametrize("wrong", ["1s", None, True, 1j, b"1"])
def test_other_types_are_rejected(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"^wait was .*, expected 0 to 60 seconds, as a number or a timedelta$"):
        duration_ns("wait", wrong, 0, 60)


@pytest.mark.parametrize("wrong", [-1, 60.000001, math.nan, math.inf, timedelta(seconds=61), 5_000_000_000])
def test_values_out_of_range_are_rejected(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"^wait was .*, expected 0 to 60 seconds, as a number or a timedelta$"):
        duration_ns("wait", wrong, 0, 60)


MAKERS: list[tuple[str, Callable[..., object]]] = [
    ("max_lag", SlowPolicy),
    ("max_age", SlowPolicy),
    ("grace", SlowPolicy),
    ("start_grace", SlowPolicy),
    ("line_wait", lambda **given: Subscriber(Feed.local("durations"), **given)),
    ("repair_wait", lambda **given: Subscriber(Feed.local("durations"), **given)),
    ("name_wait", lambda **given: Subscriber(Feed.local("durations"), **given)),
    ("interval", lambda interval: Subscriber(Feed.local("durations")).every(interval)(print)),
    ("interval", lambda interval: Subscriber(Feed.local("durations")).on_batch(b"", interval=interval)(print)),
    ("fsync_interval", lambda **given: Recorder(Feed.local("durations"), Path("nowhere"), **given)),
    ("line_wait", lambda **given: Recorder(Feed.local("durations"), Path("nowhere"), **given)),
    ("max_lag", lambda **given: Recorder(Feed.local("durations"), Path("nowhere"), **given)),
    ("again_wait", lambda **given: Outbox(Path("nowhere"), **given)),
    ("max_silence", Controls),
]


@pytest.mark.parametrize(("name", "make"), MAKERS)
def test_every_duration_of_the_api_takes_seconds_and_timedeltas(name: str, make: Callable[..., object]) -> None:
    for value in (1, 1.5, timedelta(seconds=2)):
        make(**{name: value})
    for wrong in (-1, 2 * LONGEST_S, math.nan):
        with pytest.raises(ValueError, match=f"^{name} was "):
            make(**{name: wrong})
    with pytest.raises(TypeError, match=f"^{name} was '1s', expected "):
        make(**{name: "1s"})
