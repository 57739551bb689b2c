"""Common mistakes of new users are rejected at once by an error that names what was expected."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest

from blackbox import CallbackError, ConfigError, Feed, Publisher, Recorder, SlowPolicy, Subscriber
from blackbox.errors import SubscriberError
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
    ("register", "error", "text"),
    [
        (lambda to: to.on(nothing), TypeError, r"prefix was <function nothing.*>, expected str or bytes: write @subs"),
        (lambda to: to.on_batch(nothing), TypeError, "expected str or bytes: write @subscriber.on_batch"),
        (lambda to: to.on_compiled(nothing, state=ZERO), TypeError, "bytes: write @subscriber.on_compiled"),
        (lambda to: to.on(5)(nothing), TypeError, r"prefix was 5 \(int\), expected str or bytes"),
        (lambda to: to.on(b"B")(nothing), ConfigError, "no slice can hold topics that start with b'B'"),
        (lambda to: to.on_batch(b"\0H")(nothing), ConfigError, "reserved for control"),
        (lambda to: to.on_compiled(b"A.", state=[0])(wrong), TypeError, "wrong was list, expected a numpy array"),
        (lambda to: to.on_compiled(b"A.", state=ZERO)(nothing), TypeError, r"takes .*, expected \(batch, state\)"),
        (lambda to: to.on_compiled(b"A.", state=ZERO)(5), TypeError, r"was 5, expected a function of \(batch, state\)"),
        (lambda to: to.on_compiled(b"A.", state=ZERO)(wrong), CallbackError, "callback wrong could not be compiled"),
        (lambda to: to.on_reset(nothing), TypeError, r"callback nothing takes .*, expected a function of \(\)"),
        (lambda to: to.on(b"A.", prices="float"), ValueError, "prices was 'float' without fields, pass fields"),
        (lambda to: to.on(b"A.", fields=("price",), prices="long"), ConfigError, "prices was 'long', expected one of:"),
        (lambda to: to.on(b"A.", fields=("price",), prices=""), ConfigError, "prices was '', expected one of: integer"),
        (lambda to: to.run(), SubscriberError, "run was called without callbacks"),
    ],
)
def test_a_wrong_registration_is_rejected(register: Any, error: type[Exception], text: str) -> None:
    feed = Feed.local("subscriber", slices=1)
    feed_slice = msgspec.structs.replace(feed.slices[0], share=None, prefixes=("A.",))
    subscriber = Subscriber(msgspec.structs.replace(feed, slices=(feed_slice,)))
    with pytest.raises(error, match=text):
        register(subscriber)
    assert subscriber.callbacks == ()


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (5, r"callback was 5, expected a function of \(message\)"),
        (lambda: None, r"callback <lambda> \(test_refusals.py, line \d+\) takes \(\), expected a function of"),
        (lambda _one, _two: None, r"takes \(_one, _two\), expected a function of \(message\)"),
        (awaited, "callback awaited was async, .*: a call of it would do nothing"),
        (generated, "callback generated was a generator"),
    ],
)
def test_an_unsuitable_callback_is_rejected(function: Any, text: str) -> None:
    subscriber = Subscriber(one_slice())
    with pytest.raises(TypeError, match=text):
        subscriber.on(b"")(function)
    with pytest.raises(TypeError, match=text.replace("message", "batch")):
        subscriber.on_batch(b"")(function)
    assert subscriber.callbacks == ()


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


@pytest.mark.parametrize(
    ("make", "settings", "error", "text"),
    [
        (Subscriber, {"workers": -1}, ValueError, "workers was -1, expected 0 to 63"),
        (Subscriber, {"workers": "2"}, TypeError, "workers was '2', expected an integer from 0 to 63"),
        (Subscriber, {"workers": True}, TypeError, "workers was True, expected an integer"),
        (Subscriber, {"queue_blocks": 0}, ValueError, "queue_blocks was 0"),
        (Subscriber, {"hwm_blocks": 0}, ValueError, "hwm_blocks was 0"),
        (Subscriber, {"on_error": "raise"}, ValueError, "on_error was 'raise', expected 'stop' or 'log'"),
        (
            Subscriber,
            {"slow": "drop"},
            TypeError,
            r"slow was 'drop', expected a SlowPolicy, such as SlowPolicy\('raise",
        ),
        (SlowPolicy, {"action": "die"}, ValueError, "action was 'die', expected one of raise, exit_process, conflate,"),
        (SlowPolicy, {"max_lag": 0}, ValueError, "max_lag was 0"),
        (SlowPolicy, {"max_lag": "1s"}, TypeError, "max_lag was .1s., expected 1e-09 to"),
        (SlowPolicy, {"grace": -1}, ValueError, "grace was -1, expected 0 to"),
        (
            SlowPolicy,
            {"grace": None},
            TypeError,
            r"grace was None, expected 0 to 1e\+06 seconds, as a number or a time",
        ),
        (SlowPolicy, {"start_grace": timedelta(-1)}, ValueError, "start_grace was"),
        (SlowPolicy, {"console": 5}, TypeError, "console was 5, expected an endpoint as text"),
        (SlowPolicy, {"on_alert": 5}, TypeError, r"callback was 5, expected a function of \(text\)"),
    ],
)
def test_wrong_settings_are_rejected(make: Any, settings: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make(*([one_slice()] if make is Subscriber else []), **settings)


def test_a_missing_worker_is_rejected() -> None:
    subscriber = Subscriber(one_slice(), workers=0)
    with pytest.raises(ValueError, match="worker was True, but this subscriber has workers=0"):
        subscriber.on_compiled(b"", state=ZERO, worker=True)(lambda batch, state: None)


def test_missing_cpus_are_named() -> None:
    feed = one_slice()
    wrong = msgspec.structs.replace(feed, slices=(msgspec.structs.replace(feed.slices[0], cpus=(60_000,)),))
    subscriber = Subscriber(wrong)
    subscriber.on(b"")(print)
    with pytest.raises(ConfigError, match=r"cpus were \[60000\], expected some of \[.*\], which this process may use"):
        subscriber.start()
    with pytest.raises(ConfigError, match=r"cpus were \[60000\]"):
        Publisher(wrong).start()


def test_a_payload_that_is_not_bytes_is_rejected_and_not_sent() -> None:
    with Publisher(Feed.local("wrong", slices=1)) as publisher:
        for payload in ({1: 2}, [1], 5, "text", {1}, [1] * 70_000, 1.5, object()):
            with pytest.raises(TypeError, match="payload was .*, expected bytes or another buffer of bytes"):
                publisher.publish(b"T", payload)  # type: ignore[arg-type]
        publisher.publish(b"T", b"fine")
        publisher.flush()
        assert publisher.statistics().unwanted == 1


def test_every_buffer_is_sent_byte_for_byte() -> None:
    feed = one_slice()
    numbers = numpy.arange(3, dtype=numpy.int64)
    large = numpy.arange(20_000, dtype=numpy.int64)
    subscriber, got = Subscriber(feed), Collector()
    subscriber.on(b"")(got.message)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        for payload in (bytearray(b"ab"), memoryview(b"cd"), numbers, large, numbers[::2]):
            publisher.publish(b"T", payload)  # type: ignore[arg-type]
    subscriber.run(until_end=True)
    assert got.payloads == [b"ab", b"cd", numbers.tobytes(), large.tobytes(), numbers[::2].tobytes()]
