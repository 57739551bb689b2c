"""Books as callbacks see them at each message, live and in a replay, compared with a plain loop."""

from __future__ import annotations

import datetime
import signal
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy
import pytest
from blackbox_feeds.synthetic import Synthetic
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blackbox import Batch, CallbackError, ConfigError, Feed, Message, Recording, Schema, Subscriber
from blackbox.book.book import Level
from blackbox.book.books import Best, Books
from blackbox.book.symbol_books import SymbolBooks
from tests.book.sessions import ITCH, day_of, gone, made_up, order, with_book
from tests.examples import examples
from tests.feeds.build import messages_of
from tests.feeds.test_itch50_book import Slow, all_levels, apply_slowly, slow_book
from tests.journals import Day, Put, Row, feed_of
from tests.receive.subscribers import published, sliced

SYMBOLS = (b"A", b"B", b"C")


class SlowBooks:
    """Keeps the orders of each symbol in a dict."""

    def __init__(self) -> None:
        self.orders: dict[bytes, dict[int, tuple[bytes, int, int]]] = {}

    def apply(self, topic: bytes, payload: bytes) -> None:
        orders = self.orders.setdefault(topic.rpartition(b".")[0], {})
        (reference,) = struct.unpack_from(">Q", payload, 11)
        orders.pop(reference, None)
        if payload[:1] == b"A":
            orders[reference] = payload[19:20], struct.unpack_from(">I", payload, 32)[0], 1

    def best(self, symbol: bytes) -> Best:
        orders = self.orders.get(symbol, {})
        bid, ask = (next(iter(all_levels(orders, side)), None) for side in (b"B", b"S"))
        return Best(bid, ask)


payloads = st.one_of(
    st.builds(order, st.integers(1, 6), st.sampled_from([b"B", b"S"]), st.integers(98, 103)),
    st.builds(gone, st.integers(1, 6)),
)
blocks = st.lists(
    st.tuples(
        st.integers(0, len(SYMBOLS) - 1),
        st.lists(st.tuples(payloads, st.integers(1, 30), st.booleans()), min_size=1, max_size=6),
    ),
    max_size=8,
)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(blocks, st.lists(st.sampled_from(["message", "batch", "few"]), min_size=1, max_size=3))
def test_callbacks_of_a_replay_see_the_books_after_their_message(blocks: Any, kinds: list[str]) -> None:
    """Callbacks of any kind see the book after their message; one registered before the book is one message behind."""
    with TemporaryDirectory() as directory:
        told: list[tuple[int, int, int, int, Row]] = []
        sequence = [0] * len(SYMBOLS)
        day = Day(Path(directory), feed_of(len(SYMBOLS)))
        for number, (slice_id, messages) in enumerate(blocks):
            rows = [Row(SYMBOLS[slice_id] + (b".X" if few else b".Y"), p, time) for p, time, few in messages]
            day.put(slice_id, Put(tuple(rows), sequence[slice_id], ts_out=1_000 + number, schema=ITCH))
            sequence[slice_id] += len(rows)
            told += [(row.ts_event, slice_id, number, at, row) for at, row in enumerate(rows)]
        if not told:
            return
        found = replayed(Recording.open(directory), kinds)
    slow, expected = SlowBooks(), []
    for *_, row in sorted(told):
        before = bests(slow)
        slow.apply(row.topic, row.payload or b"")
        expected.append(("before", row.payload, before))
        expected += [(kind, row.payload, bests(slow)) for kind in kinds if kind != "few" or row.topic.endswith(b".X")]
    assert found == expected


def bests(books: Any) -> list[Best]:
    return [books.best(symbol) for symbol in SYMBOLS]


def replayed(recording: Recording, kinds: list[str]) -> list[tuple[str, bytes, list[Best]]]:
    subscriber = Subscriber(feed_of())
    found: list[tuple[str, bytes, list[Best]]] = []
    books: list[Books] = []
    subscriber.on(b"")(lambda message: found.append(("before", bytes(message.payload), bests(books[0]))))
    books.append(subscriber.book(b"", schema="itch50"))

    def register(kind: str) -> None:
        if kind == "batch":

            @subscriber.on_batch(b"")
            def _(batch: Batch) -> None:
                found.extend((kind, bytes(each), bests(books[0])) for each in batch.payload_list())
        else:
            prefixes = [symbol + b".X" for symbol in SYMBOLS] if kind == "few" else [b""]

            def see(message: Message) -> None:
                found.append((kind, bytes(message.payload), bests(books[0])))

            for prefix in prefixes:
                subscriber.on(prefix)(see)

    for kind in kinds:
        register(kind)
    subscriber.replay(recording)
    return found


def updates_of(source: Any) -> int:
    return sum(payload[:1] in b"AFECXDU" for _, _, payload in messages_of(source))


def by_symbol(source: Any) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = {}
    for topic, _, payload in messages_of(source):
        found.setdefault(topic.rpartition(b".")[0], []).append(payload)
    return found


def expected_levels() -> Iterator[tuple[bytes, list[Level], list[Level]]]:
    for symbol, own in by_symbol(made_up()).items():
        orders, _ = slow_book(own)
        yield symbol, all_levels(orders, b"B"), all_levels(orders, b"S")


def test_books_of_a_session(session: Recording) -> None:
    """Check all queries, after a replay and for books fed with the recording's batches."""
    subscriber, book = with_book(session.feed)
    subscriber.replay(session)
    plain = Books("itch50")
    for batch in session.batches():
        plain.apply(batch)
    expected = {symbol: (bids, asks) for symbol, bids, asks in expected_levels() if bids or asks}
    assert len(expected) > 10
    tops = {bytes(row["symbol"]): row for row in book.tops(depth=3)}
    for symbol, (bids, asks) in expected.items():
        assert book.levels(symbol, 10_000) == plain.levels(symbol, 10_000) == (bids, asks)
        assert book.best(symbol) == (bids[0] if bids else None, asks[0] if asks else None)
        for side, resting in (("bids", bids), ("asks", asks)):
            absent = [(0, 0, 0)] * 3
            assert tops[symbol][side].tolist() == [*map(tuple, resting), *absent][:3]
        orders = book.orders(symbol)
        assert len(orders) == sum(level.orders for level in (*bids, *asks)) == book.counters(symbol)["orders"]
        assert orders["shares"].sum() == sum(level.shares for level in (*bids, *asks))
    assert set(expected) <= set(book.symbols) == set(tops)
    assert (book.best(b"?"), book.levels(b"?", 5), len(book.orders(b"?"))) == ((None, None), ([], []), 0)
    assert (book.counters(b"?")["messages"], len(Books("itch50").tops())) == (0, 0)
    totals = book.counters()
    assert totals["orders"] == sum(book.counters(symbol)["orders"] for symbol in book.symbols)
    assert totals["messages"] == updates_of(made_up())
    assert (totals["unknown"], totals["left_out"], totals["unsynced"], book.synced) == (0, 0, 0, True)


def test_books_are_bounded_and_symbols_that_were_left_out_have_books_after_clear(session: Recording) -> None:
    small = Books("itch50", max_bytes=40_000)
    for batch in session.batches():
        small.apply(batch)
    totals, kept = small.counters(), set(small.symbols)
    assert totals["left_out"] > 0
    assert 0 < len(kept) < 25
    assert totals["left_out"] + totals["messages"] == updates_of(made_up())
    assert not small.synced
    small.clear()
    assert not small._books._addresses.any()
    other = next(symbol for symbol, _, _ in expected_levels() if symbol not in kept and symbol != b"#system")
    for batch in session.batches(other + b"."):
        small.apply(batch)
    assert small.symbols == [other]
    small.clear()
    small._books._max_bytes = 0
    for batch in session.batches():
        small.apply(batch)
    assert small.symbols == [], "no earlier book is touched"
    assert small.counters()["left_out"] > 0


def test_books_continue_after_one_could_not_be_made(session: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without memory for the first symbol's book, books of the other symbols lose no messages."""

    def no_memory(*_: int) -> Any:
        raise MemoryError

    book = Books("itch50")
    first, second = b"AAPL", b"MSFT"
    with monkeypatch.context() as patched:
        patched.setattr("blackbox.book.symbol_books.new_book", no_memory)
        for batch in session.batches(first + b"."):
            with pytest.raises(MemoryError):
                book.apply(batch)
    for batch in session.batches(second + b"."):
        book.apply(batch)
    orders, _ = slow_book(by_symbol(made_up())[second])
    assert book.symbols == [second]
    assert book.levels(second, 10_000) == (all_levels(orders, b"B"), all_levels(orders, b"S"))


def test_ctrl_c_while_a_book_is_made_keeps_addresses_in_order(
    session: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    book, put = Books("itch50"), SymbolBooks._put

    def put_and_interrupt(self: SymbolBooks, number: int, memory: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        put(self, number, memory)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(SymbolBooks, "_put", put_and_interrupt)
    try:
        for batch in session.batches():
            with suppress(KeyboardInterrupt):
                book.apply(batch)
    finally:
        signal.signal(signal.SIGINT, handler)
    kept = [memory.ctypes.data for memory in book._books._books if memory is not None]
    assert len(kept) > 1
    assert book._books._addresses[: len(kept)].tolist() == kept


def test_book_that_may_not_grow_forgets_orders(tmp_path: Path) -> None:
    orders = tuple(Row(b"A.A", order(n, b"B", 1_000 + n)) for n in range(1, 400))
    (batch,) = day_of(tmp_path, Put(orders, schema=ITCH)).batches()
    book = Books("itch50", max_bytes=20_000)
    book.apply(batch)
    found = book.counters(b"A")
    assert found["added"] == 399
    assert found["orders"] + found["forgotten"] == 399
    assert found["forgotten"] > 0


def test_messages_of_another_schema_or_without_a_value_change_no_book(tmp_path: Path) -> None:
    first = Put((Row(b"A.A", order(1, b"B", 5)), Row(b"A.A", None)), schema=ITCH)
    book = Books("itch50")
    for batch in day_of(tmp_path, first, Put((Row(b"A.A", order(2, b"B", 6)),), sequence=2, schema=2)).batches():
        book.apply(batch)
    assert book.levels(b"A", 9).bids == [Level(5, 1, 1)]


def test_conflated_block_marks_only_the_books_of_its_symbols(tmp_path: Path) -> None:
    """Messages between those of the block are missing, but only for the block's symbols."""
    first = Put((Row(b"A.A", order(1, b"B", 5)), Row(b"B.A", order(1, b"B", 5))), schema=ITCH)
    second = Put((Row(b"A.A", order(2, b"B", 6)), Row(b"A.A", order(3, b"B", 7))), sequence=2, schema=ITCH)
    whole, conflated = day_of(tmp_path, first, second).batches()
    book = Books("itch50")
    book.apply(whole)
    assert book.synced
    assert conflated._received_block is not None
    conflated._received_block.conflated = True
    book.apply(conflated)
    assert not book.synced
    assert (book.counters(b"A")["unsynced"], book.counters(b"B")["unsynced"]) == (1, 0)


def test_books_from_an_image_are_not_synced(tmp_path: Path) -> None:
    """An image has one message per topic; the earlier messages are unknown."""
    orders = Put((Row(b"A.A", order(1, b"B", 5)), Row(b"A.A", order(2, b"B", 6))), schema=ITCH)
    book = Books("itch50")
    for batch in day_of(tmp_path, orders).newest():
        book.apply(batch)
    assert (book.synced, book.counters(b"A")["unsynced"]) == (False, 1)


def test_a_loss_before_the_first_message_of_a_run_unsyncs_its_books(tmp_path: Path) -> None:
    """The loss also unsyncs symbols of the run before; their books are kept, but empty."""
    day = Day(tmp_path, feed_of(slices=2))
    day.put(1, Put((Row(b"B.A", order(1, b"B", 5)),), schema=ITCH))
    day.put(1, Put((Row(b"B.A", order(2, b"B", 6)),), schema=ITCH, epoch=1 << 60, ts_out=9, sequence=3))
    before, behind = Recording.open(tmp_path).batches()
    book = Books("itch50")
    book.apply(before)
    book.clear(1)
    book.lose_sync(1)
    book.apply(behind)
    assert (book.synced, book.counters(b"B")["unsynced"] > 0) == (False, True)


def test_callbacks_of_the_group_see_the_books_after_their_message_live_also_when_a_publisher_goes_back() -> None:
    """A session, sent again after going back in time, leaves the book of one session, in sync throughout."""
    subscriber = Subscriber(feed := sliced(2, schema="itch50"))
    book = subscriber.book(b"", group="books")
    wrong: list[bytes] = []
    messages = by_symbol(Synthetic(2_000, symbols=5))
    tops = {symbol: iter(2 * _every_top(own)) for symbol, own in messages.items()}

    @subscriber.on(b"", group="books")
    def _(message: Message) -> None:
        symbol = message.topic.rpartition(b".")[0]
        if book.best(symbol) != next(tops[symbol]):
            wrong.append(message.topic)

    with published(feed, subscriber) as publisher:
        publisher.wait_for_subscribers(b"")
        Synthetic(2_000, symbols=5).publish(publisher)
        publisher.new_epoch()
        Synthetic(2_000, symbols=5).publish(publisher)
        publisher.flush()
    assert wrong == []
    assert [next(each, None) for each in tops.values()] == [None] * len(tops)
    totals = book.counters()
    assert (totals["unknown"], totals["duplicate"], totals["unsynced"], book.synced) == (0, 0, 0, True)


def _every_top(payloads: list[bytes]) -> list[Best]:
    """Return the best levels after each message of a symbol."""
    found: list[Best] = []
    orders: Slow = {}
    for payload in payloads:
        apply_slowly(orders, payload)
        bid, ask = (next(iter(all_levels(orders, side)), None) for side in (b"B", b"S"))
        found.append(Best(bid, ask))
    return found


def test_removed_books_no_longer_change(session: Recording) -> None:
    subscriber, book = with_book(session.feed)
    subscriber.remove(book)
    subscriber.on_batch(b"")(lambda batch: None)
    subscriber.replay(session)
    assert book.symbols == []


def test_schema_without_books_and_a_depth_of_0_are_refused() -> None:
    with pytest.raises(ConfigError, match="schema of books was 'raw', expected one of: dbn, dbn_ts_out, iex_deep10"):
        Subscriber(feed_of()).book(b"")
    with pytest.raises(ConfigError, match="depth was 0, expected 1 or more"):
        Books("itch50").tops(0)


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


def test_books_of_a_raw_feed_replayed_with_others_are_refused(session: Recording, tmp_path: Path) -> None:
    """Alone, a raw feed is assumed to carry the schema; among several feeds, the one that carries it is unknown."""
    day = datetime.date(2026, 1, 5)
    columns = {"topic": [b"AAPL.A"], "ts_event": [_span(session)[0]], "payload": [order(1, b"B", 50)]}
    raw = Recording.create(tmp_path, Feed.local("raw"), columns, date=day)
    schema = Schema("beside", 1_003, {"A": numpy.dtype([("type", "S1"), ("rest", "V35")])})
    other = Recording.create(tmp_path, Feed.local("other", schema=schema), columns, date=day)
    subscriber, book = with_book(raw.feed)
    subscriber.replay(raw)
    assert book.levels(b"AAPL", 9).bids == [Level(50, 1, 1)]
    with pytest.raises(CallbackError, match=r"'other' \(beside\), 'raw' \(raw\), expected one of that schema"):
        subscriber.replay([raw, other])


def test_books_of_two_feeds_of_one_schema_applied_by_hand_are_refused(session: Recording, tmp_path: Path) -> None:
    other = day_of(tmp_path / "day", Put((Row(b"A.x", order(1, b"B", 50)),)), schema="itch50")
    assert other.feed.name != session.feed.name
    book = Books("itch50")
    book.apply(next(iter(session.batches())))
    with pytest.raises(ConfigError, match="expected one: replay them apart"):
        book.apply(next(iter(other.batches())))
    book.clear()
    book.apply(next(iter(other.batches())))
    assert book.symbols == [b"A"]
