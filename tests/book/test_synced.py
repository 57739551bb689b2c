"""`synced` is False as soon as a book may be wrong, for any start and any missing message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import pytest
from blackbox_feeds.dbn import SCHEMA as DBN
from blackbox_feeds.dbn.book import BOOK as MBO
from blackbox_feeds.iex.book import BOOK as DEEP
from blackbox_feeds.itch50.book import BOOK as ORDERS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blackbox import ConfigError, Feed, Publisher, Recording, Replay, Subscriber
from blackbox.archive.serve.newest_books import NewestBooks
from blackbox.book.book import head_of, is_synced
from blackbox.book.books import Books
from blackbox.book.unsure_keys import UnsureKeys
from tests.book.applied import applied
from tests.book.sessions import ITCH, day_of, gone, order, with_book
from tests.damaged import damage_body, damage_head
from tests.examples import examples
from tests.feeds.build import itch
from tests.feeds.test_dbn_book import SNAPSHOT, mbo
from tests.feeds.test_iex_book import update
from tests.journals import Day, Put, Row, Segment, feed_of
from tests.receive.subscribers import one_slice, published

A1, A2 = Row(b"A.A", order(1, b"B", 5), 10), Row(b"A.A", order(2, b"B", 6), 20)
B1 = Row(b"B.A", order(1, b"B", 5), 30)


def played(recording: Recording, book_prefix: bytes = b"", **settings: Any) -> Books:
    subscriber = Subscriber(recording.feed)
    book = subscriber.book(book_prefix, schema="itch50")
    subscriber.replay(recording, **settings)
    return book


def orders_one_by_one(count: int) -> list[Put]:
    """Blocks of one order each, at 10, 20, ..."""
    rows = [Row(b"A.A", order(n, b"B", 5), 10 * n) for n in range(1, count + 1)]
    return [Put((row,), schema=ITCH, sequence=n, ts_out=n) for n, row in enumerate(rows)]


FIRST = order(1, b"B", 5)


@pytest.mark.parametrize(
    ("feed", "first", "message", "counter"),
    [
        (ORDERS, FIRST, gone(7), "unknown"),
        (ORDERS, FIRST, itch("E"), "unknown"),
        (ORDERS, FIRST, itch("X"), "unknown"),
        (ORDERS, FIRST, itch("U"), "unknown"),
        (ORDERS, FIRST, order(1, b"B", 9), "duplicate"),
        (ORDERS, FIRST, gone(1) + b"x", "refused"),
        (ORDERS, order(0x1111111111111111, b"B", 5, 2), itch("E"), "too_many"),
        (DEEP, update("8", 1, 5, 100), update("8", 1, 0, 101), "unknown"),
    ],
)
def test_a_message_that_does_not_fit_unsyncs_the_book(feed: Any, first: bytes, message: bytes, counter: str) -> None:
    book, _ = applied(feed, [first])
    assert is_synced(book)
    book, _ = applied(feed, [first, message])
    assert (is_synced(book), getattr(head_of(book), counter), head_of(book).unsynced) == (False, 1, 1)


def test_dbn_book_is_synced_after_a_snapshot_or_a_clear() -> None:
    assert not is_synced(applied(MBO, [mbo("A", order=1)])[0])
    assert is_synced(applied(MBO, [mbo("A", order=1), mbo("R"), mbo("A", order=1)])[0])
    snapshot = [mbo("A", order=2, flags=SNAPSHOT), mbo("A", order=3, flags=SNAPSHOT | 128)]
    assert not is_synced(applied(MBO, [mbo("A", order=1), snapshot[0]])[0])
    assert is_synced(applied(MBO, [mbo("A", order=1), *snapshot])[0])
    assert not is_synced(applied(MBO, [*snapshot, mbo("C", order=9)])[0])
    assert is_synced(applied(MBO, [mbo("C", order=9), *snapshot])[0])


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


@pytest.mark.parametrize(("to_ns", "synced"), [(30_000, False), (0, True)])
def test_seek_forward_and_back(tmp_path: Path, to_ns: int, synced: bool) -> None:
    """A seek back empties the books, so that the whole day after it has each order once."""
    rows = tuple(Row(b"A.A", order(n, b"B", 5), 1_000 * n) for n in range(1, 40))
    recording = day_of(tmp_path, Put(rows, schema=ITCH))
    subscriber, book = with_book(recording.feed)
    replay = Replay(recording)
    at_reset: list[list[bytes]] = []
    subscriber.on_reset(lambda: at_reset.append(book.symbols))

    @subscriber.every(1e-06)
    def _(ts_ns: int) -> None:
        if ts_ns == 20_000 and not at_reset:
            replay.controls.seek(to_ns)

    subscriber.replay(replay)
    assert at_reset == ([[]] if to_ns == 0 else [])
    assert (book.synced, len(book.orders(b"A"))) == (synced, 39 if to_ns == 0 else 29)


@pytest.mark.parametrize("key_bytes", [0, 2])
def test_subscriber_that_joins_late(key_bytes: int) -> None:
    """Live: one subscriber is there from the first message on, one joins late, one adds a book late.

    With keys, a key whose first message follows the subscriber's start has a complete book.
    """
    feed = one_slice(schema="itch50", key_bytes=key_bytes)
    early, late = Subscriber(feed), Subscriber(feed)
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
    assert (late_book.is_synced(b"A"), late_book.is_synced(b"B")) == (False, bool(key_bytes))


def synced_at_each(*recordings: Recording, **settings: Any) -> list[bool]:
    """Return for each message whether all books were synced."""
    subscriber, book = with_book(recordings[0].feed)
    found: list[bool] = []
    subscriber.on(b"")(lambda message: found.append(book.synced))
    subscriber.replay(recordings, **settings)
    return found


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
@pytest.mark.parametrize(("damage", "block"), [(damage_body, 0), (damage_body, 1), (damage_head, 1), (damage_head, 3)])
def test_a_damaged_block_is_a_gap_of_its_messages(
    tmp_path: Path, by: Literal["sent", "event"], damage: Callable[[Segment, int], None], block: int
) -> None:
    """A record with a damaged head cannot be found, but the index counts its messages."""
    damage(Day(tmp_path, feed_of()).put(0, *orders_one_by_one(4)), block)
    recording = Recording.open(tmp_path)
    subscriber, book = with_book(recording.feed)
    gaps: list[Any] = []
    synced: list[bool] = []
    subscriber.on(b"")(lambda message: synced.append(book.synced))
    subscriber.on_gap(b"")(lambda gap: gaps.append((gap.slice_id, gap.epoch, gap.sequence, gap.count)))
    statistics = subscriber.replay(recording, order=by)
    assert gaps == [(0, 1, block, 1)]
    assert synced[-2:] == [n < block for n in range(4) if n != block][-2:]
    assert damage is damage_head or statistics.damaged == 1
    assert not book.synced
    assert not recording.book_at(40).synced


def test_books_true_requires_a_book(tmp_path: Path) -> None:
    recording = day_of(tmp_path, Put((A1, A2), schema=ITCH))
    subscriber = Subscriber(recording.feed)
    subscriber.on(b"")(lambda message: None)
    with pytest.raises(ConfigError, match=r"books was set for a replay to a subscriber without order books, expected"):
        subscriber.replay(recording, start=20, books=True)


@pytest.mark.parametrize("command", ["stop", "seek"])
def test_stop_and_seek_end_the_building_of_books(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    recording = day_of(tmp_path, *orders_one_by_one(59))
    subscriber, book = with_book(recording.feed)
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
    monkeypatch.setattr("blackbox.replay.playback._CACHE_BYTES", 1)
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
    subscriber, book = with_book(days[0].feed)
    found: list[Any] = []
    subscriber.on_gap(b"")(lambda gap: found.append((gap.sequence, gap.count)))
    subscriber.on(b"")(lambda message: found.append(book.synced))
    subscriber.replay(days)
    assert [each for each in found if isinstance(each, bool)] == synced
    assert [each for each in found if isinstance(each, tuple)] == [(2, 99)] * (number == 101)
    assert book.orders(b"A")["reference"].tolist() == [1, 2, 3]
    assert synced_at_each(days[1]) == [False, False]  # alone, it lacks the orders of day 1


@pytest.mark.parametrize("by", ["sent", "event"])
def test_orders_of_yesterday_do_not_rest_in_the_book_of_today(tmp_path: Path, by: Literal["sent", "event"]) -> None:
    """Two imported days are two runs, so the books start empty on each."""
    days, slices = [], 2
    for epoch, date in ((1, "2026-01-05"), (2, "2026-01-06")):
        day = Day(tmp_path / date, feed_of(slices=slices), date=date)
        for slice_id in range(slices):
            symbol, at = b"AB"[slice_id : slice_id + 1], 1_000 * epoch + slice_id
            rows = tuple(Row(symbol + b".A", order(n, b"B", 5), at) for n in (epoch, epoch + 10))
            day.put(slice_id, Put(rows, schema=ITCH, epoch=epoch, ts_out=at))
        days.append(Recording.open(day.path))
    subscriber, book = with_book(days[0].feed)
    found: list[Any] = []
    subscriber.on(b"")(lambda message: found.append((book.orders(message.symbol)["reference"].tolist(), book.synced)))
    subscriber.replay(days, order=by)
    assert found == [([1], True), ([1, 11], True)] * slices + [([2], True), ([2, 12], True)] * slices


TWO_RUNS = Put((A1, B1), schema=ITCH, epoch=5), Put((D1, D2), schema=ITCH, epoch=9, ts_out=9)


RUN_AGAIN = TWO_RUNS[0], replace(TWO_RUNS[1], epoch=6)
"""`new_epoch` increments the epoch by 1, and the publisher sends the whole day."""
WHOLE = (Put((A1, A2, B1), schema=ITCH),)


@pytest.mark.parametrize("by", ["sent", "event"])
@pytest.mark.parametrize(
    ("puts", "settings", "expected"),
    [
        (WHOLE, {}, [True, True, True]),
        (WHOLE, {"start": 20}, [False, False]),  # no played message reveals that an order is missing
        ((Put((A1, Row(b"A.D", gone(9), 15), A2), schema=ITCH),), {}, [True, False, False]),
        ((Put((A1,), schema=ITCH), Put((A2,), schema=ITCH, sequence=3, ts_out=9)), {}, [True, False]),
        (
            (Put((A1,), schema=ITCH), Put((B1, D1), schema=ITCH, epoch=2, sequence=500, ts_out=9)),
            {},
            [True, False, False],
        ),
        (TWO_RUNS, {}, [True, True, False, False]),  # messages between the runs may be lost
        (TWO_RUNS, {"start": 120}, [False]),
        (TWO_RUNS, {"start": 120, "books": True}, [False]),
        (RUN_AGAIN, {}, [True, True, True, True]),
    ],
    ids=["whole", "late", "unknown", "gap", "begins late", "restart", "late restart", "restart with books", "again"],
)
def test_books_of_a_replay_are_synced_until_a_message_may_be_missing(
    tmp_path: Path, by: str, puts: tuple[Put, ...], settings: dict[str, Any], expected: list[bool]
) -> None:
    assert synced_at_each(day_of(tmp_path, *puts), order=by, **settings) == expected


def test_books_of_two_runs_have_the_orders_of_the_second(tmp_path: Path) -> None:
    for name, puts, synced in (("restart", TWO_RUNS, False), ("again", RUN_AGAIN, True)):
        recording = day_of(tmp_path / name, *puts)
        for book in (recording.book_at(200), given_batches(*recording.batches()), played(recording)):
            assert (book.synced, book.is_synced(b"A"), book.symbols) == (synced, synced, [b"A", b"B"])
            assert [book.orders(symbol)["reference"].tolist() for symbol in book.symbols] == [[3], [4]]


@pytest.mark.parametrize("key_bytes", [0, 2])
def test_recording_that_began_late(tmp_path: Path, key_bytes: int) -> None:
    puts = [Put((A1,), schema=ITCH, sequence=3), Put((B1,), schema=ITCH, sequence=4, previous=0, key_sequence=0)]
    book = played(day_of(tmp_path, *puts, key_bytes=key_bytes))
    assert (book.synced, book.is_synced(b"A"), book.is_synced(b"B")) == (False, False, False)


@pytest.mark.parametrize(("more", "synced"), [(0, True), (1, False)])
def test_run_after_a_restart_is_not_synced_live(more: int, synced: bool) -> None:
    subscriber = Subscriber(feed := one_slice(schema="itch50"))
    book = subscriber.book(b"", group="books")
    with published(feed, subscriber) as publisher:
        publisher.wait_for_subscribers(b"")
        publisher.publish(b"A.A", order(1, b"B", 5))
        publisher.publish(b"C.A", order(3, b"B", 5))
        publisher.epoch += more  # like the epoch of another process
        publisher.new_epoch()
        publisher.publish(b"A.A", order(2, b"B", 5))
        publisher.publish(b"B.A", order(2, b"B", 5))
        publisher.flush()
    assert book.symbols == [b"A", b"B"]
    assert [book.is_synced(symbol) for symbol in book.symbols] == [synced, synced]


@pytest.mark.parametrize(
    ("puts", "is_new_day", "is_unsure"),
    [
        ((Put((A1,), schema=ITCH), Put((A2,), schema=ITCH, sequence=1)), False, False),
        ((Put((A1,), schema=ITCH), Put((Row(b"A.D", gone(9)),), schema=ITCH, sequence=1)), False, True),
        (TWO_RUNS, False, True),
        (RUN_AGAIN, False, False),
        (TWO_RUNS, True, False),
    ],
    ids=["whole", "unknown order", "restart", "back in time", "new day"],
)
def test_image_of_books_is_unsure_if_one_is_not_synced(
    tmp_path: Path, puts: tuple[Put, ...], is_new_day: bool, is_unsure: bool
) -> None:
    books = NewestBooks(0, Feed.local("image", slices=1, schema="itch50"))
    (run,) = day_of(tmp_path, *puts).runs()
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
    subscriber, book = with_book(recording.feed)
    found = []
    for prefix in (b"A.A", b""):
        subscriber.replay(recording, prefix=prefix)
        found.append(book.synced)
        book.clear()
    assert found == [False, True]
