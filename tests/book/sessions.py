"""Handmade orders and days, and a synthetic session."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from blackbox_feeds.synthetic import Synthetic

from blackbox import Feed, Recording, Subscriber
from blackbox.book.books import Books
from tests.journals import Day, Put, feed_of

ITCH = 1
"""Number of the schema."""


def order(reference: int, side: bytes, price: int, shares: int = 1) -> bytes:
    return struct.pack(">cHH6xQcI8sI", b"A", 1, 0, reference, side, shares, b"", price)


def gone(reference: int) -> bytes:
    return struct.pack(">cHH6xQ", b"D", 1, 0, reference)


def made_up() -> Synthetic:
    return Synthetic(30_000, symbols=25)


def day_of(path: Path, *puts: Put, **settings: Any) -> Recording:
    """Return a day of these blocks, all of slice 0."""
    day = Day(path, feed_of(**settings))
    for put in puts:
        day.put(0, put)
    return Recording.open(path)


def with_book(feed: Feed) -> tuple[Subscriber, Books]:
    """Return a subscriber, and its books of all symbols."""
    subscriber = Subscriber(feed)
    return subscriber, subscriber.book(b"", schema="itch50")
