"""Rejected callbacks and settings, and the errors that name them."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy
import pytest

from blackbox import CallbackError, ConfigError, Feed, Publisher, SlowPolicy, Subscriber
from tests.subscribe.subscribers import nothing, one_slice


def test_wrong_callbacks_and_settings_are_rejected() -> None:
    feed = Feed.local("subscriber", slices=1)
    feed_slice = msgspec.structs.replace(feed.slices[0], share=None, prefixes=("A.",))
    subscriber = Subscriber(msgspec.structs.replace(feed, slices=(feed_slice,)))
    with pytest.raises(TypeError, match=r"prefix was 5 \(int\), expected str or bytes"):
        subscriber.on(5)(nothing)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no slice can hold topics that start with b'B'"):
        subscriber.on(b"B")(nothing)
    with pytest.raises(ConfigError, match="reserved for control"):
        subscriber.on_batch(b"\0H")(nothing)
    with pytest.raises(TypeError, match="state of compiled callback nothing was list, expected a numpy array"):
        subscriber.on_compiled(b"A.", state=[0])(nothing)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"compiled callback nothing takes .*, expected \(batch, state\)"):
        subscriber.on_compiled(b"A.", state=numpy.zeros(1))(nothing)  # type: ignore[arg-type]
    with pytest.raises(CallbackError, match="compiled callback wrong could not be compiled"):

        @subscriber.on_compiled(b"A.", state=numpy.zeros(1))
        def wrong(batch: Any, state: Any) -> None:
            state[0] = batch.no_such_column

    assert subscriber.callbacks == ()
    for settings, text in (
        ({"workers": -1}, "workers was -1, expected 0 to 63"),
        ({"queue_blocks": 0}, "queue_blocks was 0"),
        ({"hwm_blocks": 0}, "hwm_blocks was 0"),
        ({"on_error": "raise"}, "on_error was 'raise', expected 'stop' or 'log'"),
    ):
        with pytest.raises(ValueError, match=text):
            Subscriber(feed, **settings)  # type: ignore[arg-type]


def test_a_policy_out_of_range_is_rejected() -> None:
    for settings, text in (
        ({"max_lag": 0}, "max_lag was 0"),
        ({"grace": -1}, "grace was -1, expected 0 to"),
        ({"action": "die"}, "action was 'die', expected one of raise, exit_process, conflate, drop, warn"),
    ):
        with pytest.raises(ValueError, match=text):
            SlowPolicy(**settings)  # type: ignore[arg-type]


def test_missing_cpus_are_named() -> None:
    feed = one_slice()
    wrong = msgspec.structs.replace(feed, slices=(msgspec.structs.replace(feed.slices[0], cpus=(60_000,)),))
    subscriber = Subscriber(wrong)
    subscriber.on(b"")(print)
    with pytest.raises(ConfigError, match=r"cpus were \[60000\], expected some of \[.*\], which this process may use"):
        subscriber.start()
    with pytest.raises(ConfigError, match=r"cpus were \[60000\]"):
        Publisher(wrong).start()
