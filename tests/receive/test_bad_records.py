"""A record that does not match its schema does not end a subscriber with fields."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Literal

import pytest

from blackbox import Feed, Recording, Subscriber
from tests.book.sessions import ITCH, gone, order
from tests.journals import Day, Put, Row
from tests.receive.subscribers import PATIENT, publishing

BAD = b"A" + bytes(5)
ROWS = [order(1, b"B", 5), BAD, order(2, b"B", 6), b"z", b"", gone(1), order(3, b"S", 7)]
GOOD = [5, 6, None, 7]


@pytest.mark.parametrize(
    ("source", "on_error"), [("one block", "stop"), ("many blocks", "stop"), ("many blocks", "log"), ("live", "stop")]
)
def test_it_is_skipped_counted_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, source: str, on_error: Literal["stop", "log"]
) -> None:
    feed = Feed.local("bad", slices=1, schema="itch50")
    subscriber = Subscriber(feed, on_error=on_error, slow=PATIENT)
    prices: list[Any] = []
    others: list[bytes] = []
    subscriber.on(b"", fields=("price",))(prices.append)
    subscriber.on(b"")(lambda message: others.append(message.payload))
    with caplog.at_level(logging.WARNING, "blackbox"):
        if source == "live":
            with publishing(feed, subscriber) as publisher:
                for payload in ROWS:
                    publisher.send(publisher.encode([(b"A.A", payload)]))
        else:
            day, step = Day(tmp_path, feed), len(ROWS) if source == "one block" else 1
            for first in range(0, len(ROWS), step):
                rows = tuple(Row(b"A.A", each, 1 + first) for each in ROWS[first : first + step])
                day.put(0, Put(rows, sequence=first, schema=ITCH))
            subscriber.replay(Recording.open(tmp_path))
    assert (prices, others) == (GOOD, ROWS)
    delivery = subscriber.statistics().delivery
    assert (delivery.misfits, delivery.failed, delivery.callback_errors) == (3, 3, 0)
    (told,) = [record.getMessage() for record in caplog.records if "skipped" in record.getMessage()]
    assert "expected 36" in told
