"""Books in replays of several feeds."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest

from blackbox import CallbackError, ConfigError, Feed, Recording, Schema, Subscriber
from blackbox.book.book import Level
from blackbox.book.books import Books
from tests.book.sessions import ITCH, order
from tests.journals import Day, Put, Row, feed_of


def _span(recording: Recording) -> tuple[int, int]:
    times = numpy.concatenate([batch.ts_event for batch in recording.batches()])
    return int(times.min()), int(times.max())


def test_books_of_one_of_two_feeds_in_a_replay(session: Recording, tmp_path: Path) -> None:
    """The other feed of the merged replay has another schema with the same message types and symbols."""
    schema = Schema("other", 1_002, {"A": numpy.dtype([("type", "S1"), ("rest", "V35")])})
    other = Feed.local("other", schema=schema, key_bytes=1)
    noise = Recording.create(
        tmp_path,
        other,
        {
            "topic": [b"AAPL.A"] * 5_000,
            "ts_event": numpy.linspace(*_span(session), 5_000).astype(numpy.int64),
            "payload": [order(number, b"B", 1) for number in range(5_000)],
        },
        date=datetime.date(2026, 1, 5),
    )
    both, alone = Subscriber(session.feed), Subscriber(session.feed)
    merged, expected = both.book(b"", schema="itch50"), alone.book(b"", schema="itch50")
    assert both.replay([session, noise]).messages == alone.replay(session).messages + 5_000
    assert numpy.array_equal(merged.tops(5), expected.tops(5))
    assert merged.counters() == expected.counters()


def test_books_of_two_feeds_of_one_schema_are_refused(session: Recording, tmp_path: Path) -> None:
    """An order of one feed could be confused with an order of the other."""
    other = msgspec.structs.replace(session.feed, name="other")
    columns = {"topic": [b"AAPL.A"], "ts_event": [_span(session)[0]], "payload": [order(1, b"B", 1)]}
    twin = Recording.create(tmp_path, other, columns, date=datetime.date(2026, 1, 5))
    subscriber = Subscriber(session.feed)
    subscriber.book(b"", schema="itch50")
    with pytest.raises(CallbackError, match="expected one: replay them apart"):
        subscriber.replay([session, twin])


def test_books_of_a_raw_feed_replayed_with_others_are_refused(session: Recording, tmp_path: Path) -> None:
    """Alone, a raw feed is assumed to carry the schema; among several feeds, the one that carries it is unknown."""
    day = datetime.date(2026, 1, 5)
    columns = {"topic": [b"AAPL.A"], "ts_event": [_span(session)[0]], "payload": [order(1, b"B", 50)]}
    raw = Recording.create(tmp_path, Feed.local("raw"), columns, date=day)
    schema = Schema("beside", 1_003, {"A": numpy.dtype([("type", "S1"), ("rest", "V35")])})
    other = Recording.create(tmp_path, Feed.local("other", schema=schema), columns, date=day)
    subscriber = Subscriber(raw.feed)
    book = subscriber.book(b"", schema="itch50")
    subscriber.replay(raw)
    assert book.levels(b"AAPL", 9).bids == [Level(50, 1, 1)]
    with pytest.raises(CallbackError, match=r"'other' \(beside\), 'raw' \(raw\), expected one of that schema"):
        subscriber.replay([raw, other])


def test_books_applied_by_hand_choose_their_feed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    day = Day(tmp_path, feed_of(schema="itch50"))
    for number in range(3):
        day.put(0, Put((Row(b"A.A", order(number, b"B", 5)),), sequence=number, schema=ITCH, ts_out=number))
    batches = list(Recording.open(tmp_path).batches())
    assert len({id(batch._received_block.feeds) for batch in batches}) == len(batches) > 1
    chosen: list[Any] = []
    choose = Books._choose

    def note_choice(books: Books, feeds: Any) -> None:
        chosen.append(feeds)
        choose(books, feeds)

    monkeypatch.setattr(Books, "_choose", note_choice)
    book = Books("itch50")
    for batch in batches:
        book.apply(batch)
    assert book.levels(b"A", 9).bids == [Level(5, 3, 3)]
    assert len(chosen) == 1


def test_books_of_two_feeds_of_one_schema_applied_by_hand_are_refused(session: Recording, tmp_path: Path) -> None:
    Day(tmp_path / "day", feed_of(schema="itch50")).put(0, Put((Row(b"A.x", order(1, b"B", 50)),)))
    other = Recording.open(tmp_path / "day")
    assert other.feed.name != session.feed.name
    book = Books("itch50")
    book.apply(next(iter(session.batches())))
    with pytest.raises(ConfigError, match="expected one: replay them apart"):
        book.apply(next(iter(other.batches())))
    book.clear()
    book.apply(next(iter(other.batches())))
    assert book.symbols == [b"A"]
