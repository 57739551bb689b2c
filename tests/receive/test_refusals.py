"""Common mistakes of new users are rejected at once by an error that names what was expected; durations have bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox import CallbackError, ConfigError, Publisher, Recorder, SlowPolicy, Subscriber
from blackbox.archive.record.outbox import Outbox
from blackbox.arguments import LONGEST_S, duration_ns
from blackbox.errors import SubscriberError
from blackbox.replay.controls import Controls
from blackbox.testing import Collector
from tests.receive.subscribers import nothing, one_slice

ZERO = numpy.zeros(1)


async def awaited(message: Any) -> None: ...


def generated(message: Any) -> Any:
    yield message


def wrong(batch: Any, state: Any) -> None:
    state[0] = batch.no_such_column


class Called:
    def __call__(self, message: Any) -> None: ...


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda new: new().on(nothing), TypeError, "prefix was <function nothing.*>, expected str or bytes: write @s"),
        (lambda new: new().on_batch(nothing), TypeError, "expected str or bytes: write @subscriber.on_batch"),
        (lambda new: new().on_compiled(nothing, state=ZERO), TypeError, "bytes: write @subscriber.on_compiled"),
        (lambda new: new().on(5)(nothing), TypeError, r"prefix was 5 \(int\), expected str or bytes"),
        (lambda new: new().on(b"B")(nothing), ConfigError, "no slice can hold topics that start with b'B'"),
        (lambda new: new().on_batch(b"\0H")(nothing), ConfigError, "reserved for control"),
        (lambda new: new().on(b"A.")(5), TypeError, r"callback was 5, expected a function of \(message\)"),
        (lambda new: new().on(b"A.")(lambda: None), TypeError, r"<lambda> \(test_refusals.py, line \d+\) takes \(\)"),
        (lambda new: new().on_batch(b"A.")(lambda _, a: a), TypeError, r"takes \(_, a\), expected .* \(batch\)"),
        (lambda new: new().on(b"A.")(awaited), TypeError, "callback awaited was async, .*: a call of it would do noth"),
        (lambda new: new().on_batch(b"A.")(generated), TypeError, "callback generated was a generator"),
        (lambda new: new().on_compiled(b"A.", state=[0])(wrong), TypeError, "wrong was list, expected a numpy array"),
        (lambda new: new().on_compiled(b"A.", state=ZERO)(nothing), TypeError, r"takes .*, expected \(batch, state\)"),
        (lambda new: new().on_compiled(b"A.", state=ZERO)(5), TypeError, r"was 5, expected a function of \(batch, st"),
        (lambda new: new().on_compiled(b"A.", state=ZERO)(wrong), CallbackError, "wrong could not be compiled"),
        (
            lambda new: new(workers=0).on_compiled(b"A.", state=ZERO, worker=True)(wrong),
            ValueError,
            "worker was True, .* workers=0",
        ),
        (lambda new: new().on_reset(nothing), TypeError, r"callback nothing takes .*, expected a function of \(\)"),
        (lambda new: new().on(b"A.", prices="float"), ValueError, "prices was 'float' without fields, pass fields"),
        (lambda new: new().on(b"A.", fields=("price",), prices="long"), ConfigError, "prices was 'long', expected one"),
        (lambda new: new().on(b"A.", fields=("price",), prices=""), ConfigError, "prices was '', expected one of: int"),
        (lambda new: new().on(b"A.", fields="price"), TypeError, r"fields was 'price', expected names, such as \('ts_"),
        (lambda new: new().on(b"A.", fields=()), ValueError, "fields was .*, expected at least one name"),
        (lambda new: new().on(b"A.", fields=(1,)), TypeError, "fields was .*, expected names"),
        (lambda new: new().on(b"A.", message_type=()), ConfigError, r"message_type was \(\), expected a message"),
        (lambda new: new().on(b"A.", fields=("topic", "price"))(nothing), TypeError, r"expected .* \(topic, price\)"),
        (
            lambda new: new(symbol="before_first").on(symbols=["B.B"]),
            ConfigError,
            "symbols had b'B.B', .* ends before the first",
        ),
        (lambda new: new().run(), SubscriberError, "run was called without callbacks"),
        (lambda new: new().stream(b"A.", limit=0), ValueError, "limit was 0, expected 1 to"),
        (lambda new: new().stream(b"A.", when_full="drop"), ValueError, "was 'drop', expected one of: wait, drop_old"),
        (lambda new: new().stream(b"A.", symbols="AAPL"), TypeError, "symbols was 'AAPL', expected a list or tuple"),
        (lambda new: new(on_error="log").stream(b"A.", when_full="stop"), ValueError, "which on_error='log' would"),
        (lambda new: new(processes=True).stream(b"A."), SubscriberError, "stream was called with processes=True"),
        (lambda new: new(workers=-1), ValueError, "workers was -1, expected 0 to 63"),
        (lambda new: new(workers="2"), TypeError, "workers was '2', expected an integer from 0 to 63"),
        (lambda new: new(workers=True), TypeError, "workers was True, expected an integer"),
        (lambda new: new(queue_blocks=0), ValueError, "queue_blocks was 0"),
        (lambda new: new(hwm_blocks=0), ValueError, "hwm_blocks was 0"),
        (lambda new: new(on_error="raise"), ValueError, "on_error was 'raise', expected 'stop' or 'log'"),
        (lambda new: new(slow="drop"), TypeError, r"slow was 'drop', expected a SlowPolicy, such as SlowPolicy\('rai"),
        (lambda _: SlowPolicy("die"), ValueError, "action was 'die', expected one of raise, exit_process, conflate,"),  # type: ignore[arg-type]
        (lambda _: SlowPolicy(max_lag=0), ValueError, "max_lag was 0"),
        (lambda _: SlowPolicy(console=5), TypeError, "console was 5, expected an endpoint as text"),  # type: ignore[arg-type]
        (lambda _: SlowPolicy(on_alert=5), TypeError, r"callback was 5, expected a function of \(text\)"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_are_rejected(call: Callable[[Any], object], error: type[Exception], text: str) -> None:
    made: list[Subscriber] = []

    def new(symbol: str = "before_last", **options: Any) -> Subscriber:
        feed = one_slice(symbol=symbol)
        feed_slice = msgspec.structs.replace(feed.slices[0], share=None, prefixes=("A.",))
        made.append(Subscriber(msgspec.structs.replace(feed, slices=(feed_slice,)), **options))
        return made[-1]

    with pytest.raises(error, match=text):
        call(new)
    assert [each.callbacks for each in made] == [()] * len(made)


def test_c_functions_and_callable_objects_are_callbacks() -> None:
    subscriber = Subscriber(one_slice())
    for function in (list[Any]().append, print, Collector().message, Called()):
        subscriber.on(b"")(function)
    assert len(subscriber.callbacks) == 4


@pytest.mark.parametrize("make", [Subscriber, Publisher, lambda feed: Recorder(feed, "nowhere")])
def test_a_path_instead_of_a_feed_names_the_way_to_read_it(make: Callable[[Any], object]) -> None:
    for path in ("feed.toml", Path("feed.toml")):
        with pytest.raises(
            TypeError, match=r"feed was .*'feed.toml'.*, expected a Feed: Feed.load\('feed.toml'\) read"
        ):
            make(path)
    with pytest.raises(TypeError, match="feed was None, expected a Feed$"):
        make(None)


def test_missing_cpus_are_named() -> None:
    feed = one_slice()
    wrong = msgspec.structs.replace(feed, slices=(msgspec.structs.replace(feed.slices[0], cpus=(60_000,)),))
    subscriber = Subscriber(wrong)
    subscriber.on(b"")(print)
    with pytest.raises(ConfigError, match=r"cpus were \[60000\], expected some of \[.*\], which this process may use"):
        subscriber.start()
    with pytest.raises(ConfigError, match=r"cpus were \[60000\]"):
        Publisher(wrong).start()


@given(st.integers(0, 10**15))
def test_seconds_and_timedeltas_of_one_length_are_equal(micros: int) -> None:
    expected = micros * 1_000
    assert duration_ns("wait", timedelta(microseconds=micros), 0) == expected
    assert abs(duration_ns("wait", micros / 1e6, 0) - expected) <= expected * 2.0**-52
    if micros % 1_000_000 == 0:
        assert duration_ns("wait", micros // 1_000_000, 0) == expected


@pytest.mark.parametrize(
    ("error", "values"),
    [
        (TypeError, ("1s", None, True, 1j, b"1")),
        (ValueError, (-1, 60.000001, math.nan, math.inf, timedelta(seconds=61), timedelta(-1), 5_000_000_000)),
    ],
)
def test_other_types_and_values_out_of_range_are_rejected(error: type[Exception], values: tuple[Any, ...]) -> None:
    for value in values:
        with pytest.raises(error, match=r"^wait was .*, expected 0 to 60 seconds, as a number or a timedelta$"):
            duration_ns("wait", value, 0, 60)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        *((name, SlowPolicy) for name in ("max_lag", "max_age", "grace", "start_grace")),
        *(
            (name, lambda **given: Subscriber(one_slice(), **given))
            for name in ("line_wait", "repair_wait", "name_wait")
        ),
        ("interval", lambda interval: Subscriber(one_slice()).every(interval)(print)),
        ("interval", lambda interval: Subscriber(one_slice()).on_batch(b"", interval=interval)(print)),
        *(
            (name, lambda **given: Recorder(one_slice(), Path("nowhere"), **given))
            for name in ("fsync_interval", "line_wait", "max_lag")
        ),
        ("again_wait", lambda **given: Outbox(Path("nowhere"), **given)),
        ("max_silence", Controls),
    ],
)
def test_every_duration_of_the_api_takes_seconds_and_timedeltas(name: str, make: Callable[..., object]) -> None:
    for value in (1, 1.5, timedelta(seconds=2)):
        make(**{name: value})
    for wrong in (-1, 2 * LONGEST_S, math.nan):
        with pytest.raises(ValueError, match=f"^{name} was "):
            make(**{name: wrong})
    with pytest.raises(TypeError, match=f"^{name} was '1s', expected "):
        make(**{name: "1s"})
