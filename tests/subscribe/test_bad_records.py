"""A record that does not match its schema does not end a subscriber with fields."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Literal

import pytest

from blackbox import Feed, Recording, Subscriber
from blackbox.testing import RawPublisher
from tests.book.sessions import ITCH, gone, order
from tests.journals import Day, Put, Row
from tests.subscribe.subscribers import PATIENT

BAD = b"A" + bytes(5)
ROWS = [order(1, b"B", 5), BAD, order(2, b"B", 6), b"z", b"", gone(1), order(3, b"S", 7)]
GOOD = [5, 6, None, 7]


@pytest.mark.parametrize("on_error", ["stop", "log"])
def test_in_a_replay(tmp_path: Path, caplog: pytest.LogCaptureFixture, on_error: Literal["stop", "log"]) -> None:
    feed = Feed.local("bad", slices=1, schema="itch50")
    day = Day(tmp_path, feed)
    for number, payload in enumerate(ROWS * 3):
        day.put(0, Put((Row(b"A.A", payload, 1 + number),), sequence=number, schema=ITCH))
    check(Recording.open(tmp_path), feed, caplog, on_error, 3)


def check(
    recording: Recording, feed: Feed, caplog: pytest.LogCaptureFixture, on_error: Literal["stop", "log"], times: int
) -> None:
    subscriber = Subscriber(feed, on_error=on_error)
    prices: list[Any] = []
    others: list[bytes] = []
    subscriber.on(b"", fields=("price",))(prices.append)
    subscriber.on(b"")(lambda message: others.append(message.payload))
    with caplog.at_level(logging.WARNING, "blackbox"):
        subscriber.replay(recording)
    assert prices == GOOD * times
    assert others == ROWS * times
    delivery = subscriber.statistics().delivery
    assert (delivery.misfits, delivery.failed, delivery.callback_errors) == (3 * times, 3 * times, 0)
    (told,) = [record.getMessage() for record in caplog.records if "skipped" in record.getMessage()]
    assert "expected 36" in told


def test_in_one_block(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    feed = Feed.local("bad", slices=1, schema="itch50")
    rows = tuple(Row(b"A.A", payload, 1 + number) for number, payload in enumerate(ROWS))
    Day(tmp_path, feed).put(0, Put(rows, schema=ITCH))
    check(Recording.open(tmp_path), feed, caplog, "stop", 1)


def test_an_error_of_the_callback_itself_still_ends_it(tmp_path: Path) -> None:
    feed = Feed.local("bad", slices=1, schema="itch50")
    rows = tuple(Row(b"A.A", payload, 1 + number) for number, payload in enumerate(ROWS))
    Day(tmp_path, feed).put(0, Put(rows, schema=ITCH))
    subscriber = Subscriber(feed)

    @subscriber.on(b"", fields=("price",))
    def _(price: Any) -> None:
        raise KeyError(price)

    with pytest.raises(Exception, match="raised KeyError: 5"):
        subscriber.replay(Recording.open(tmp_path))


def test_live(caplog: pytest.LogCaptureFixture) -> None:
    feed = Feed.local("bad", slices=1, schema="itch50")
    subscriber = Subscriber(feed, slow=PATIENT)
    prices: list[Any] = []
    subscriber.on(b"", fields=("price",))(prices.append)
    with caplog.at_level(logging.WARNING, "blackbox"), RawPublisher(feed) as publisher:
        subscriber.start()
        for payload in ROWS:
            publisher.send(publisher.encode([(b"A.A", payload)]))
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert prices == GOOD
    assert subscriber.statistics().delivery.misfits == 3
    assert sum("skipped" in record.getMessage() for record in caplog.records) == 1
