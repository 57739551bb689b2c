"""`synced` is False as soon as a book may be wrong, for any start and any missing message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy
import pytest
from blackbox_feeds.dbn import SCHEMA as DBN
from blackbox_feeds.dbn.book import BOOK as MBO
from blackbox_feeds.iex.book import BOOK as DEEP
from blackbox_feeds.itch50 import Itch50
from blackbox_feeds.itch50.book import BOOK as ORDERS
from blackbox_feeds.synthetic import Synthetic
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blackbox import ConfigError, Feed, Message, Publisher, Recording, Replay, Subscriber
from blackbox.archive.newest_books import NewestBooks
from blackbox.book.book import head_of, is_synced
from blackbox.book.books import Books
from blackbox.book.unsure_keys import UnsureKeys
from tests.book.applied import applied
from tests.book.sessions import ITCH, gone, order
from tests.damaged import damage_body, damage_head
from tests.examples import examples
from tests.feeds.build import itch, messages_of
from tests.feeds.test_dbn_book import SNAPSHOT, mbo
from tests.feeds.test_iex_book import update
from tests.journals import Day, Put, Row, feed_of
from tests.recorded import recorded
from tests.subscribe.subscribers import PATIENT

A1, A2 = Row(b"A.A", order(1, b"B", 5), 10), Row(b"A.A", order(2, b"B", 6), 20)
B1 = Row(b"B.A", order(1, b"B", 5), 30)


def played(recording: Recording, book_prefix: bytes = b"", **settings: Any) -> Books:
    subscriber = Subscriber(recording.feed)
    book = subscriber.book(book_prefix, schema="itch50")
    subscriber.replay(recording, **settings)
    return book


def day_of(path: Path, *puts: Put, key_bytes: int = 0) -> Recording:
    day = Day(path, feed_of(key_bytes=key_bytes))
    for put in puts:
        day.put(0, put)
    return Recording.open(path)


@pytest.mark.parametrize(
    ("message", "counter"),
    [
        (gone(7), "unknown"),
        (itch("E"), "unknown"),
        (itch("X"), "unknown"),
        (itch("U"), "unknown"),
        (order(1, b"B", 9), "duplicate"),
        (gone(1) + b"x", "refused"),
    ],
)
def test_itch_message_that_does_not_fit_unsyncs_the_book(message: bytes, counter: str) -> None:
    book, _ = applied(ORDERS, [order(1, b"B", 5)])
    assert is_synced(book)
    book, _ = applied(ORDERS, [order(1, b"B", 5), message])
    assert (is_synced(book), getattr(head_of(book), counter), head_of(book).unsynced) == (False, 1, 1)


def test_execution_of_more_shares_than_rest_unsyncs_the_book() -> None:
    book, _ = applied(ORDERS, [order(0x1111111111111111, b"B", 5, 2), itch("E")])
    assert (is_synced(book), head_of(book).too_many) == (False, 1)


def test_removing_an_unknown_level_unsyncs_the_book() -> None:
    assert is_synced(applied(DEEP, [update("8", 1, 5, 100), update("8", 1, 0, 100)])[0])
    assert not is_synced(applied(DEEP, [update("8", 1, 5, 100), update("8", 1, 0, 101)])[0])


def test_dbn_book_is_synced_after_a_snapshot_or_a_clear() -> None:
    assert not is_synced(applied(MBO, [mbo("A", order=1)])[0])
    assert is_synced(applied(MBO, [mbo("A", order=1), mbo("R"), mbo("A", order=1)])[0])
    snapshot = [mbo("A", order=2, flags=SNAPSHOT), mbo("A", order=3, flags=SNAPSHOT | 128)]
    assert not is_synced(applied(MBO, [mbo("A", order=1), snapshot[0]])[0])
    assert is_synced(applied(MBO, [mbo("A", order=1), *snapshot])[0])
    assert not is_synced(applied(MBO, [*snapshot, mbo("C", order=9)])[0])
    assert is_synced(applied(MBO, [mbo("C", order=9), *snapshot])[0])


def test_real_snippet_from_the_middle_of_a_day(tmp_path: Path, shared_data: Path) -> None:
    """Books of symbols with unknown orders are not synced; the other books are."""
    path = shared_data / "itch50" / "jamison_12302019_SNIPPET.NASDAQ_ITCH50"
    book = played(recorded(tmp_path, lambda: Itch50(path, "2019-12-30")))
    assert book.counters()["unknown"] > 100
    assert not book.synced
    for symbol in book.symbols:
        assert book.is_synced(symbol) == (book.counters(symbol)["unknown"] == 0)


def test_replay_that_starts_in_the_middle_of_a_day(tmp_path: Path, shared_data: Path) -> None:
    path = shared_data / "itch50" / "runk_locate-13-10k.bin"
    recording = recorded(tmp_path, lambda: Itch50(path, "2020-01-30"), slices=1)
    times = [time for _, time, _ in messages_of(Itch50(path, "2020-01-30"))]
    whole = played(recording)
    assert (whole.synced, whole.counters()["unknown"]) == (True, 0)
    late = played(recording, start=times[5_000])
    assert not late.synced
    first = played(recording, start=times[0])
    assert first.synced
    ahead = played(recording, stop=times[5_000])
    assert ahead.synced


def test_late_replay_without_unknown_orders(tmp_path: Path) -> None:
    """No played message reveals that an order is missing."""
    recording = day_of(tmp_path, Put((A1, A2, B1), schema=ITCH))
    book = played(recording, start=20)
    assert (book.counters()["unknown"], book.synced, book.is_synced(b"A"), book.is_synced(b"B")) == (
        0, False, False, False,
    )  # fmt: skip


@pytest.mark.parametrize("key_bytes", [0, 2])
def test_recording_that_began_late(tmp_path: Path, key_bytes: int) -> None:
    puts = [Put((A1,), schema=ITCH, sequence=3), Put((B1,), schema=ITCH, sequence=4, previous=0, key_sequence=0)]
    book = played(day_of(tmp_path, *puts, key_bytes=key_bytes))
    assert (book.synced, book.is_synced(b"A"), book.is_synced(b"B")) == (False, False, False)


def test_gap_and_epoch_and_damage_of_a_recording(tmp_path: Path) -> None:
    gap = day_of(tmp_path / "gap", Put((A1,), schema=ITCH), Put((A2,), schema=ITCH, sequence=3))
    assert not played(gap).synced
    run = day_of(tmp_path / "run", Put((A1,), schema=ITCH), Put((A2,), schema=ITCH, epoch=1 << 60, ts_out=9))
    anew = played(run)
    assert (anew.synced, anew.orders(b"A")["reference"].tolist()) == (False, [2])
    whole = day_of(tmp_path / "whole", Put((A1,), schema=ITCH), Put((A2,), schema=ITCH, sequence=1))
    assert played(whole).synced
    day = Day(tmp_path / "damaged", feed_of())
    blocks = [Put((row,), schema=ITCH, sequence=number) for number, row in enumerate((A1, A2, B1))]
    damage_body(day.put(0, *blocks), 1)
    assert not played(Recording.open(day.path)).synced


@pytest.mark.parametrize(("prefix", "synced"), [(b"", True), (b"A", True), (b"A.", True), (b"A.A", False)])
def test_prefix_that_leaves_out_messages_of_a_symbol(tmp_path: Path, prefix: bytes, synced: bool) -> None:
    """The prefix selects only adds, which do not reveal missing messages."""
    recording = day_of(tmp_path, Put((A1, Row(b"A.D", gone(1), 11), A2), schema=ITCH))
    assert played(recording, prefix).synced == synced
    assert played(recording, b"", prefix=prefix).synced == synced


def given_batches(*batches: Any) -> Books:
    book = Books("itch50")
    for batch in batches:
        book.apply(batch)
    return book


def test_books_fed_with_batches(tmp_path: Path) -> None:
    recording = day_of(tmp_path, Put((A1, A2), schema=ITCH), Put((B1,), schema=ITCH, sequence=2))
    first, second = recording.batches()
    assert given_batches(first, second).synced
    assert not given_batches(second).synced
    assert not given_batches(*recording.batches(start=20)).synced
    assert not given_batches(second, first).synced
    assert not given_batches(first, first).synced


def test_books_fed_with_batches_of_several_keys(tmp_path: Path) -> None:
    numbered = ((A1, 0, 0, 0), (B1, 1, 0, 0), (A2, 2, 1, 1))
    puts = [Put((row,), n, schema=ITCH, previous=previous, key_sequence=of) for row, n, previous, of in numbered]
    first, other, last = day_of(tmp_path, *puts, key_bytes=2).batches()
    assert given_batches(first, other, last).synced
    assert given_batches(first, last).synced
    books = given_batches(other, last)
    assert (books.is_synced(b"A"), books.is_synced(b"B")) == (False, True)


def test_seek_forward_and_back(tmp_path: Path) -> None:
    rows = tuple(Row(b"A.A", order(n, b"B", 5), 1_000 * n) for n in range(1, 40))
    recording = day_of(tmp_path, Put(rows, schema=ITCH))
    for to_ns, synced in ((30_000, False), (0, True)):
        subscriber = Subscriber(recording.feed)
        book = subscriber.book(b"", schema="itch50")
        replay = Replay(recording)
        jumped: list[bool] = []

        @subscriber.every(1e-06)
        def _(ts_ns: int, to_ns: int = to_ns, replay: Replay = replay, jumped: list[bool] = jumped) -> None:
            if ts_ns == 20_000 and not jumped:
                jumped.append(True)
                replay.controls.seek(to_ns)

        subscriber.replay(replay)
        assert jumped
        assert book.synced == synced


def test_subscriber_that_joins_late() -> None:
    """Live: one subscriber is there from the first message on, one joins late, one adds a book late."""
    feed = Feed.local("books-late", slices=1, schema="itch50")
    early, late = Subscriber(feed, slow=PATIENT), Subscriber(feed, slow=PATIENT)
    book, late_book = early.book(b""), late.book(b"")
    with Publisher(feed, when_full="wait") as publisher:
        early.start()
        publisher.publish(b"A.A", order(1, b"B", 5))
        publisher.flush()
        late.start()
        added = early.book(b"")
        early.wait_confirmed()
        for topic in (b"A.A", b"B.A"):
            publisher.publish(topic, order(2, b"B", 6))
        publisher.flush()
    early.run(until_end=True)
    late.run(until_end=True)
    assert (book.synced, added.synced, late_book.synced) == (True, False, False)
    assert book.symbols == late_book.symbols == added.symbols == [b"A", b"B"]
    assert not late_book.is_synced(b"B")  # earlier messages may have been for it


def test_late_subscriber_to_a_feed_with_keys() -> None:
    """A key whose first message follows the subscriber's start has a complete book."""
    feed = Feed.local("books-keys", slices=1, schema="itch50", key_bytes=2)
    late = Subscriber(feed, slow=PATIENT)
    book = late.book(b"")
    early = Subscriber(feed, slow=PATIENT)
    early.on(b"")(lambda message: None)
    with Publisher(feed, when_full="wait") as publisher:
        early.start()
        publisher.publish(b"A.A", order(1, b"B", 5))
        publisher.flush()
        late.start()
        for topic in (b"A.A", b"B.A"):
            publisher.publish(topic, order(2, b"B", 6))
        publisher.flush()
    late.run(until_end=True)
    early.run(until_end=True)
    assert (book.is_synced(b"A"), book.is_synced(b"B"), book.synced) == (False, True, False)


def test_image_of_a_book_with_an_unknown_order_is_unsure(tmp_path: Path) -> None:
    for name, rows, is_unsure in (("good", (A1, A2), False), ("bad", (A1, Row(b"A.D", gone(9))), True)):
        recording = day_of(tmp_path / name, Put(rows, schema=ITCH))
        feed = Feed.local("image", slices=1, schema="itch50")
        books = NewestBooks(0, feed)
        for run in recording.runs():
            books.take(run)
        assert books.blocks([b""]).is_unsure == is_unsure


def test_book_without_memory_is_not_synced(tmp_path: Path) -> None:
    recording = recorded(tmp_path, lambda: Synthetic(5_000, symbols=10))
    small = Books("itch50", max_bytes=40_000)
    for batch in recording.batches():
        small.apply(batch)
    assert small.counters()["left_out"] > 0
    assert not small.synced


def test_the_book_is_synced_at_each_message_until_one_does_not_fit(tmp_path: Path) -> None:
    recording = day_of(tmp_path, Put((A1, Row(b"A.D", gone(9), 15), A2), schema=ITCH))
    subscriber = Subscriber(recording.feed)
    book = subscriber.book(b"", schema="itch50")
    found: list[bool] = []
    see: Callable[[Message], object] = lambda message: found.append(book.synced)  # noqa: E731
    subscriber.on(b"")(see)
    subscriber.replay(recording)
    assert found == [True, False, False]


def test_dbn_recording_without_a_snapshot(tmp_path: Path) -> None:
    rows = [mbo("A", order=1), mbo("A", order=2), mbo("R"), mbo("A", order=3)]
    feed = Feed.local("mbo", slices=1, schema="dbn")
    day = Day(tmp_path, feed)
    day.put(0, Put(tuple(Row(b"X.mbo", row, 1 + n) for n, row in enumerate(rows)), schema=DBN.schema_id))
    subscriber = Subscriber(feed)
    book = subscriber.book(b"")
    found: list[bool] = []
    subscriber.on(b"")(lambda message: found.append(book.synced))
    subscriber.replay(Recording.open(tmp_path))
    assert found == [False, False, True, True]
    assert numpy.array_equal(book.orders(b"X")["reference"], [3])


def synced_at_each(*recordings: Recording, symbol: bytes = b"", **settings: Any) -> list[bool]:
    """Return for each message whether all books, or the book of `symbol`, were synced."""
    subscriber = Subscriber(recordings[0].feed)
    book = subscriber.book(b"", schema="itch50")
    found: list[bool] = []
    subscriber.on(b"")(lambda message: found.append(book.is_synced(symbol) if symbol else book.synced))
    subscriber.replay(recordings, **settings)
    return found


def damaged_day(path: Path) -> Recording:
    day = Day(path, feed_of())
    rows = [Row(b"A.A", order(n, b"B", 5), 10 * n) for n in range(1, 5)]
    damage_body(day.put(0, *(Put((row,), schema=ITCH, sequence=n, ts_out=n) for n, row in enumerate(rows))), 1)
    return Recording.open(path)


@pytest.mark.parametrize(("by", "found"), [("sent", [True, False, False]), ("event", [False, False, False])])
def test_damaged_block_unsyncs_the_book_before_the_next_message(tmp_path: Path, by: str, found: list[bool]) -> None:
    assert synced_at_each(damaged_day(tmp_path), order=by)[1:] == found[1:]


@pytest.mark.parametrize(("clears", "synced"), [({0}, False), ({0, 2}, True), ({2}, True), (set(), False)])
def test_books_lose_sync_at_the_position_of_a_damaged_block(tmp_path: Path, clears: set[int], synced: bool) -> None:
    """A clear restores sync only if it follows the damaged block, also within one block table."""
    feed = Feed.local("mbo", slices=1, schema="dbn")
    day = Day(tmp_path, feed)
    records = [mbo("R" if number in clears else "A", order=number) for number in range(4)]
    rows = [Row(b"X.mbo", each, 10 * number) for number, each in enumerate(records, 1)]
    blocks = [Put((row,), schema=DBN.schema_id, sequence=n, ts_out=n) for n, row in enumerate(rows)]
    damage_body(day.put(0, *blocks), 1)
    recording = Recording.open(day.path)
    assert recording.book_at(40).synced == synced
    assert not recording.book_at(30).synced
    subscriber = Subscriber(feed)
    book = subscriber.book(b"")
    found: list[bool] = []
    subscriber.on(b"")(lambda message: found.append(book.synced))
    subscriber.replay(recording, order="sent")
    assert found == [0 in clears, synced, synced]


@pytest.mark.parametrize("by", ["sent", "event"])
def test_damaged_block_is_a_gap_of_its_messages(tmp_path: Path, by: Literal["sent", "event"]) -> None:
    recording = damaged_day(tmp_path)
    subscriber = Subscriber(recording.feed)
    book = subscriber.book(b"", schema="itch50")
    found: list[Any] = []
    subscriber.on(b"")(lambda message: found.append(book.synced))
    subscriber.on_gap(b"")(lambda gap: found.append((gap.slice_id, gap.epoch, gap.sequence, gap.count)))
    statistics = subscriber.replay(recording, order=by)
    assert [each for each in found if isinstance(each, tuple)] == [(0, 1, 1, 1)]
    assert found[-2:] == [False, False]
    assert statistics.damaged == 1


@pytest.mark.parametrize("by", ["sent", "event"])
@pytest.mark.parametrize("block", [1, 3])
def test_record_with_a_damaged_head_is_a_gap(tmp_path: Path, by: Literal["sent", "event"], block: int) -> None:
    """The record cannot be found, but the index counts its messages."""
    day = Day(tmp_path, feed_of())
    rows = [Row(b"A.A", order(n, b"B", 5), 10 * n) for n in range(1, 5)]
    puts = [Put((row,), schema=ITCH, sequence=n, ts_out=n) for n, row in enumerate(rows)]
    damage_head(day.put(0, *puts), block)
    recording = Recording.open(tmp_path)
    subscriber = Subscriber(recording.feed)
    book = subscriber.book(b"", schema="itch50")
    gaps: list[tuple[int, int]] = []
    synced: list[bool] = []
    subscriber.on(b"")(lambda message: synced.append(book.synced))
    subscriber.on_gap(b"")(lambda gap: gaps.append((gap.sequence, gap.count)))
    subscriber.replay(recording, order=by)
    assert gaps == [(block, 1)]
    assert synced == [n < block for n in range(4) if n != block]
    assert not book.synced
    assert not recording.book_at(40).synced


def test_damaged_block_of_a_recording_with_gaps_is_reported_once(tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of())
    rows = [Row(b"A.A", order(n, b"B", 5), 10 * n) for n in range(1, 6)]
    puts = [Put((row,), schema=ITCH, sequence=n + (n > 2), ts_out=n) for n, row in enumerate(rows)]
    damage_body(day.put(0, *puts), 1)
    recording = Recording.open(tmp_path)
    subscriber = Subscriber(recording.feed)
    found: list[Any] = []
    subscriber.on(b"")(lambda message: None)
    subscriber.on_gap(b"")(lambda gap: found.append((gap.sequence, gap.count)))
    subscriber.replay(recording)
    assert found == [(1, 1), (3, 1)]


def test_books_true_requires_a_book(tmp_path: Path) -> None:
    recording = day_of(tmp_path, Put((A1, A2), schema=ITCH))
    subscriber = Subscriber(recording.feed)
    subscriber.on(b"")(lambda message: None)
    with pytest.raises(ConfigError, match=r"books was set for a replay to a subscriber without order books, expected"):
        subscriber.replay(recording, start=20, books=True)


@pytest.mark.parametrize("command", ["stop", "seek"])
def test_stop_and_seek_end_the_building_of_books(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    rows = [Row(b"A.A", order(n, b"B", 5), 10 * n) for n in range(1, 60)]
    recording = day_of(tmp_path, *(Put((row,), schema=ITCH, sequence=n, ts_out=n) for n, row in enumerate(rows)))
    subscriber = Subscriber(recording.feed)
    book = subscriber.book(b"", schema="itch50")
    played: list[int] = []
    subscriber.on(b"")(lambda message: played.append(message.ts_event))
    replay = Replay(recording, start=500, books=True)
    apply, calls = Books.__call__, list[int]()

    def call_off(self: Books, *batch: Any) -> None:
        apply(self, *batch)
        calls.append(len(batch[0]))
        if len(calls) == 3:
            getattr(replay.controls, command)(*([580] if command == "seek" else []))

    monkeypatch.setattr(Books, "__call__", call_off)
    monkeypatch.setattr("blackbox.replay.replay._CACHE_BYTES", 1)
    subscriber.replay(replay)
    if command == "stop":
        assert (len(book.orders(b"A")), played) == (sum(calls), [])
        assert len(calls) < 10
    else:
        assert (len(book.orders(b"A")), played, book.synced) == (59, [580, 590], True)


def share_topics(symbol: bytes, key: bytes) -> bool:
    return symbol.startswith(key) or key.startswith(symbol)


texts = st.text("AB", max_size=4).map(str.encode)


@given(st.lists(st.tuples(st.sampled_from([None, 0, 1]), texts), max_size=8), texts, st.sampled_from([0, 1]))
def test_symbols_of_unsure_keys(added: list[tuple[int | None, bytes]], symbol: bytes, cleared: int) -> None:
    """Look-ups return the same as a loop over all keys."""
    unsure = UnsureKeys()
    for each in added:
        unsure.add(*each)
    assert unsure.may_lack(symbol) == any(share_topics(symbol, key) for _, key in added)
    assert unsure.may_lack(symbol, (None, 1)) == any(share_topics(symbol, key) for n, key in added if n != 0)
    unsure.clear(cleared)
    assert unsure.may_lack(symbol) == any(share_topics(symbol, key) for n, key in added if n != cleared)


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.too_slow])
@given(symbols=st.lists(texts.filter(bool), min_size=1, max_size=6, unique=True), key=texts)
def test_lost_messages_of_a_key_unsync_the_symbols_that_may_have_it(symbols: list[bytes], key: bytes) -> None:
    with TemporaryDirectory() as directory:
        rows = tuple(Row(symbol + b".A", order(1, b"B", 5), 1) for symbol in symbols)
        (batch,) = day_of(Path(directory), Put(rows, schema=ITCH)).batches()
        book = given_batches(batch)
    book.lose_sync(0, key)
    assert {symbol: book.is_synced(symbol) for symbol in symbols} == {
        symbol: not share_topics(symbol, key) for symbol in symbols
    }


def two_days(path: Path, first: tuple[Put, ...], second: tuple[Put, ...]) -> list[Recording]:
    days = []
    for date, puts in (("2026-01-05", first), ("2026-01-06", second)):
        day = Day(path / date, feed_of(), date=date)
        day.put(0, *puts)
        days.append(Recording.open(day.path))
    return days


D1, D2 = Row(b"A.A", order(3, b"B", 5), 110), Row(b"B.A", order(4, b"B", 6), 120)


@pytest.mark.parametrize(("number", "synced"), [(2, [True, True, True, True]), (101, [True, True, False, False])])
def test_a_run_of_a_publisher_over_two_days(tmp_path: Path, number: int, synced: list[bool]) -> None:
    """Day 2 continues the numbers of day 1, either without a gap or after a loss over midnight."""
    days = two_days(tmp_path, (Put((A1, A2), schema=ITCH),), (Put((D1, D2), schema=ITCH, sequence=number, ts_out=100),))
    subscriber = Subscriber(days[0].feed)
    book = subscriber.book(b"", schema="itch50")
    found: list[Any] = []
    subscriber.on_gap(b"")(lambda gap: found.append((gap.sequence, gap.count)))
    subscriber.on(b"")(lambda message: found.append(book.synced))
    subscriber.replay(days)
    assert [each for each in found if isinstance(each, bool)] == synced
    assert [each for each in found if isinstance(each, tuple)] == [(2, 99)] * (number == 101)
    assert book.orders(b"A")["reference"].tolist() == [1, 2, 3]
    assert synced_at_each(days[1]) == [False, False]  # alone, it lacks the orders of day 1


@pytest.mark.parametrize("by", ["sent", "event"])
@pytest.mark.parametrize("slices", [1, 2])
def test_orders_of_yesterday_do_not_rest_in_the_book_of_today(
    tmp_path: Path, by: Literal["sent", "event"], slices: int
) -> None:
    """Two imported days are two runs, so the books start empty on each."""
    days = []
    for epoch, date in ((1, "2026-01-05"), (2, "2026-01-06")):
        day = Day(tmp_path / date, feed_of(slices=slices), date=date)
        for slice_id in range(slices):
            symbol, at = b"AB"[slice_id : slice_id + 1], 1_000 * epoch + slice_id
            rows = tuple(Row(symbol + b".A", order(n, b"B", 5), at) for n in (epoch, epoch + 10))
            day.put(slice_id, Put(rows, schema=ITCH, epoch=epoch, ts_out=at))
        days.append(Recording.open(day.path))
    subscriber = Subscriber(days[0].feed)
    book = subscriber.book(b"", schema="itch50")
    found: list[Any] = []
    subscriber.on(b"")(lambda message: found.append((book.orders(message.symbol)["reference"].tolist(), book.synced)))
    subscriber.replay(days, order=by)
    assert found == [([1], True), ([1, 11], True)] * slices + [([2], True), ([2, 12], True)] * slices


def test_run_that_begins_late_after_a_complete_one(tmp_path: Path) -> None:
    puts = Put((A1,), schema=ITCH, epoch=1), Put((B1, D1), schema=ITCH, epoch=2, sequence=500, ts_out=9)
    assert synced_at_each(day_of(tmp_path, *puts)) == [True, False, False]


TWO_RUNS = Put((A1, B1), schema=ITCH, epoch=5), Put((D1, D2), schema=ITCH, epoch=9, ts_out=9)


@pytest.mark.parametrize("by", ["sent", "event"])
def test_second_run_of_a_publisher_in_a_day_is_not_synced(tmp_path: Path, by: str) -> None:
    """Messages between the runs may be lost, which later starts and batches without a subscriber detect, too."""
    recording = day_of(tmp_path, *TWO_RUNS)
    assert synced_at_each(recording, order=by) == [True, True, False, False]
    assert synced_at_each(recording, order=by, start=120) == [False]
    assert synced_at_each(recording, order=by, start=120, books=True) == [False]
    for book in (recording.book_at(200), given_batches(*recording.batches())):
        assert (book.synced, book.is_synced(b"A"), book.symbols) == (False, False, [b"A", b"B"])
        assert [book.orders(symbol)["reference"].tolist() for symbol in book.symbols] == [[3], [4]]


@pytest.mark.parametrize("by", ["sent", "event"])
def test_run_that_goes_back_in_time_is_synced(tmp_path: Path, by: str) -> None:
    """`new_epoch` increments the epoch by 1, and the publisher sends the whole day."""
    recording = day_of(tmp_path, TWO_RUNS[0], replace(TWO_RUNS[1], epoch=6))
    assert synced_at_each(recording, order=by) == [True, True, True, True]
    assert recording.book_at(200).synced
    assert given_batches(*recording.batches()).synced


@pytest.mark.parametrize(("more", "synced"), [(0, True), (1, False), (1_000_000_000, False)])
def test_run_after_a_restart_is_not_synced_live(more: int, synced: bool) -> None:
    feed = Feed.local("books-restart", slices=1, schema="itch50")
    subscriber = Subscriber(feed, slow=PATIENT)
    book = subscriber.book(b"", group="books")
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        publisher.wait_for_subscribers(b"", timeout=10)
        publisher.publish(b"A.A", order(1, b"B", 5))
        publisher.publish(b"C.A", order(3, b"B", 5))
        publisher.epoch += more  # like the epoch of another process
        publisher.new_epoch()
        publisher.publish(b"A.A", order(2, b"B", 5))
        publisher.publish(b"B.A", order(2, b"B", 5))
        publisher.flush()
    subscriber.run(until_end=True)
    assert book.symbols == [b"A", b"B"]
    assert [book.is_synced(symbol) for symbol in book.symbols] == [synced, synced]


@pytest.mark.parametrize(("epoch", "is_new_day", "is_unsure"), [(9, False, True), (6, False, False), (9, True, False)])
def test_image_of_books_after_a_restart_is_unsure(
    tmp_path: Path, epoch: int, is_new_day: bool, is_unsure: bool
) -> None:
    recording = day_of(tmp_path, TWO_RUNS[0], replace(TWO_RUNS[1], epoch=epoch))
    books = NewestBooks(0, Feed.local("image", slices=1, schema="itch50"))
    (run,) = recording.runs()
    for number in range(2):
        if number and is_new_day:
            books.begin_day()
        books.take(run.chosen(slice(number, number + 1)))  # type: ignore[arg-type]  # numpy accepts a slice
    assert books.blocks([b""]).is_unsure == is_unsure


def test_start_in_the_middle_of_a_day_unsyncs_only_that_day(tmp_path: Path) -> None:
    second = Put((D1, D2), schema=ITCH, epoch=2, ts_out=100)
    days = two_days(tmp_path, (Put((A1, A2), schema=ITCH),), (second,))
    assert synced_at_each(*days, start=20) == [False, True, True]
    assert synced_at_each(*days, start=110) == [True, True]
    assert synced_at_each(*days, start=120) == [False]


def test_prefix_of_a_replay_does_not_affect_the_next_one(tmp_path: Path) -> None:
    recording = day_of(tmp_path, Put((A1, A2), schema=ITCH))
    subscriber = Subscriber(recording.feed)
    book = subscriber.book(b"", schema="itch50")
    found = []
    for prefix in (b"A.A", b""):
        subscriber.replay(recording, prefix=prefix)
        found.append(book.synced)
        book.clear()
    assert found == [False, True]
