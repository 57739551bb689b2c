"""Common mistakes of new users are rejected at once by an error that names what was expected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

from blackbox import ConfigError, Feed, Publisher, Recorder, SlowPolicy, Subscriber
from blackbox.errors import SubscriberError
from blackbox.testing import Collector
from tests.subscribe.subscribers import nothing, one_slice


async def awaited(message: Any) -> None: ...


def generated(message: Any) -> Any:
    yield message


class Called:
    def __call__(self, message: Any) -> None: ...


def test_a_decorator_without_a_prefix_raises() -> None:
    subscriber = Subscriber(one_slice())
    for decorate in (subscriber.on, subscriber.on_batch):
        with pytest.raises(TypeError, match=r"prefix was <function nothing.*>, expected str or bytes: write @subs"):
            decorate(nothing)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected str or bytes: write @subscriber.on_compiled"):
        subscriber.on_compiled(nothing, state=numpy.zeros(1))  # type: ignore[arg-type]
    assert subscriber.callbacks == ()


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (5, r"callback was 5, expected a function of \(message\)"),
        (None, "callback was None"),
        (lambda: None, r"callback <lambda> \(test_wrong_arguments.py, line \d+\) takes \(\), expected a function of"),
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


def test_objects_that_are_not_functions_are_rejected_as_compiled_callbacks_and_hooks() -> None:
    subscriber = Subscriber(one_slice())
    with pytest.raises(TypeError, match=r"callback was 5, expected a function of \(batch, state\)"):
        subscriber.on_compiled(b"", state=numpy.zeros(1))(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"callback nothing takes .*, expected a function of \(\)"):
        subscriber.on_reset(nothing)  # type: ignore[arg-type]


def test_c_functions_and_callable_objects_are_callbacks() -> None:
    subscriber = Subscriber(one_slice())
    got: list[Any] = []
    for function in (got.append, print, Collector().message, Called()):
        subscriber.on(b"")(function)
    assert len(subscriber.callbacks) == 4


@pytest.mark.parametrize(
    "make", [Subscriber, Publisher, lambda feed: Recorder(feed, "nowhere")], ids=["subscriber", "publisher", "recorder"]
)
def test_a_path_instead_of_a_feed_names_the_way_to_read_it(make: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError, match=r"feed was 'feed.toml', expected a Feed: Feed.load\('feed.toml'\) reads"):
        make("feed.toml")
    with pytest.raises(TypeError, match=r"expected a Feed: Feed.load\('feed.toml'\)"):
        make(Path("feed.toml"))
    with pytest.raises(TypeError, match="feed was None, expected a Feed$"):
        make(None)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"workers": "2"}, "workers was '2', expected an integer from 0 to 63"),
        ({"workers": True}, "workers was True, expected an integer"),
        ({"queue_blocks": 1.5}, "queue_blocks was 1.5, expected an integer"),
        ({"slow": "drop"}, r"slow was 'drop', expected a SlowPolicy, such as SlowPolicy\('raise'\)"),
    ],
)
def test_settings_of_another_type_are_rejected(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        Subscriber(one_slice(), **settings)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"max_lag": "1s"}, "max_lag was .1s., expected 1e-09 to"),
        ({"grace": None}, r"grace was None, expected 0 to 1e\+06 seconds, as a number or a timedelta"),
        ({"console": 5}, "console was 5, expected an endpoint as text"),
        ({"on_alert": 5}, r"callback was 5, expected a function of \(text\)"),
    ],
)
def test_a_policy_with_wrong_types_is_rejected(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        SlowPolicy(**settings)


def test_run_without_callbacks_raises() -> None:
    with pytest.raises(SubscriberError, match="run was called without callbacks"):
        Subscriber(one_slice()).run()


@pytest.mark.parametrize("payload", [{1: 2}, [1], 5, "text", {1}, [1] * 70_000, 1.5, object()])
def test_a_payload_that_is_not_bytes_is_rejected_and_not_sent(payload: Any) -> None:
    with Publisher(Feed.local("wrong", slices=1)) as publisher:
        with pytest.raises(TypeError, match="payload was .*, expected bytes or another buffer of bytes"):
            publisher.publish(b"T", payload)
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


def test_a_form_of_prices_needs_fields_and_a_known_word() -> None:
    subscriber = Subscriber(one_slice())
    with pytest.raises(ValueError, match="prices was 'float' without fields, pass fields"):
        subscriber.on(b"", prices="float")
    for wrong in ("long", ""):
        with pytest.raises(ConfigError, match=f"prices was '{wrong}', expected one of: integer, float, decimal"):
            subscriber.on(b"", fields=("price",), prices=wrong)  # type: ignore[arg-type]
    assert subscriber.callbacks == ()
