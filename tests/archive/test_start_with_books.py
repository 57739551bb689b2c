"""A subscriber that starts with an image of books knows which books are complete, as one from the start does."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox import Batch, Feed, Publisher, Recorder, Recording, Subscriber
from blackbox.archive.read.reader import blocks_of
from blackbox.archive.serve.client import ArchiveClient
from blackbox.archive.serve.newest_books import NewestBooks
from blackbox.block.batch.received_block import BatchFeed, ReceivedBlock
from blackbox.block.form.block import Block
from blackbox.book.books import Books
from blackbox.feed.schema.schema import load_schema
from blackbox.testing import wait_until
from tests.archive.archives import archived_feed
from tests.archive.recorders import FOREVER_NS, wait_recorded
from tests.archive.test_books_image import state_of
from tests.book.sessions import gone, order
from tests.examples import examples
from tests.feeds.test_dbn_book import LAST, SNAPSHOT, mbo
from tests.feeds.test_iex_book import update
from tests.journals import Day, Put, Row, feed_of

SCHEMAS = ["itch50", "iex_deep10", "dbn"]
CASES = [*((schema, 0) for schema in SCHEMAS), ("itch50", 2)]

Kind = Literal["add", "remove", "clear", "snapshot", "end of snapshot"]
Change = tuple[Kind, int]
"""With the number of an order, which is also its price."""


def payload_of(schema: str, change: Change) -> bytes:
    kind, number = change
    if schema == "itch50":
        return gone(number) if kind == "remove" else order(number, b"B", number)
    if schema == "iex_deep10":
        return update("8", 1, int(kind != "remove"), number)
    flags = {"snapshot": SNAPSHOT, "end of snapshot": SNAPSHOT | LAST}.get(kind, LAST)
    return mbo({"remove": "C", "clear": "R"}.get(kind, "A"), order=number, price=number, flags=flags)


class Plain:
    """The book of a symbol in a plain loop."""

    def __init__(self, schema: str) -> None:
        self.orders: set[int] = set()
        self.messages = 0
        self.lacks, self.is_snapshot = schema == "dbn", False

    @property
    def synced(self) -> bool:
        return not self.lacks and not self.is_snapshot

    def apply(self, change: Change) -> None:
        kind, number = change
        is_part = kind in ("snapshot", "end of snapshot")
        if kind == "clear" or (is_part and not self.is_snapshot):
            self.orders, self.lacks = set(), False
        self.messages += 1
        self.is_snapshot = kind == "snapshot"
        if kind == "remove":
            self.lacks |= number not in self.orders
            self.orders.discard(number)
        elif kind != "clear":
            self.lacks |= number in self.orders
            self.orders.add(number)


def changes_of(schema: str, choices: list[tuple[str, int]], *, fits: bool) -> list[tuple[str, Change]]:
    """Return changes of symbols: orders come and go. Some do not fit, if allowed, and books of dbn are cleared."""
    books, made = defaultdict[str, Plain](lambda: Plain(schema)), list[tuple[str, Change]]()
    for symbol, choice in choices:
        book, number = books[symbol], choice % 2
        change: Change = ("remove" if number in book.orders else "add"), number
        if choice > 5 and not fits:
            change = "remove", 2
        if schema == "dbn" and (choice > 7 or (not book.messages and symbol != "C")):
            kinds: list[Kind] = ["clear", "clear", "snapshot", "end of snapshot"]
            change = kinds[choice % 4 if book.messages else 0], choice
        book.apply(change)
        made.append((symbol, change))
    return made


def day_of(path: Path, schema: str, key_bytes: int, changes: list[tuple[str, Change]]) -> Recording:
    """Return a day with a block for each change."""
    day = Day(path, feed_of(schema=schema, key_bytes=key_bytes))
    ends = dict[str, tuple[int, int]]()
    for number, (symbol, change) in enumerate(changes):
        key = symbol if key_bytes else ""
        end, count = ends.get(key, (0, 0))
        ends[key] = number + 1, count + 1
        row = Row(symbol.encode() + b".x", payload_of(schema, change))
        schema_id = load_schema(schema).schema_id
        day.put(0, Put((row,), number, schema=schema_id, previous=end, key_sequence=count))
    return Recording.open(path)


def batch_of(block: Block, feed: Feed, *, is_image: bool = False, is_late: bool = False) -> Batch:
    """Return a batch as a subscriber delivers it."""
    received = ReceivedBlock.of_block(block, BatchFeed(feed.name, None, feed.symbol_rule), 0, is_image=is_image)
    received._envelope, received.is_late = 1, is_late
    return Batch(block, None, received)


def check(books: Books, plain: dict[str, Plain], *, is_unsure: bool) -> None:
    """Compare books with those of a plain loop. After an unsure image more of them may be out of sync."""
    for symbol, each in plain.items():
        name = symbol.encode()
        assert {level.price for level in books.levels(name, 10).bids} == each.orders
        if name in books.symbols:
            assert books.is_synced(name) in ({each.synced, False} if is_unsure else {each.synced})
        else:
            assert each.synced or is_unsure
    assert books.synced == all(map(books.is_synced, books.symbols))


@settings(max_examples=examples(300))
@given(
    schema=st.sampled_from(SCHEMAS),
    key_bytes=st.sampled_from([0, 2]),
    choices=st.lists(st.tuples(st.sampled_from("ABC"), st.integers(0, 11)), min_size=6, max_size=24),
    at=st.integers(1, 20),
    fits=st.booleans(),
    is_counted=st.booleans(),
)
def test_books_after_an_image_equal_those_of_a_plain_loop(
    schema: str, key_bytes: int, choices: list[tuple[str, int]], at: int, fits: bool, is_counted: bool
) -> None:
    """Also of symbols without orders at the image, and of new ones.

    Without a heartbeat (`is_counted`) the slice does not know the keys of earlier messages, and marks blocks as late.
    """
    changes = changes_of(schema, choices, fits=fits)
    plain = defaultdict[str, Plain](lambda: Plain(schema))
    with TemporaryDirectory() as directory:
        recording = day_of(Path(directory), schema, key_bytes, changes)
        (run,) = recording.runs()
        kept, feed = NewestBooks(0, recording.feed), recording.feed
        kept.take(run.chosen(slice(0, at)))  # type: ignore[arg-type]  # as numpy takes it
        image = kept.blocks([b""])
        for symbol, change in changes[:at]:
            plain[symbol].apply(change)
        assert image.is_unsure == any(each.lacks for each in plain.values())
        books = Books(schema, symbol_rule=feed.symbol_rule)
        batches = [batch_of(block, feed, is_image=True) for block in image]
        books.expect_image(0, sum(map(len, batches)))
        if image.is_unsure:
            books.lose_sync(0)
        for batch in batches:
            for row in range(len(batch)):
                assert not books.synced
                assert not any(map(books.is_synced, books.symbols))
                books(batch, row, 1)
        check(books, plain, is_unsure=image.is_unsure)
        earlier = {symbol.encode() for symbol, _ in changes[:at]}
        for (symbol, change), (block, *_) in zip(changes[at:], list(blocks_of(run, feed.key_rule))[at:], strict=True):
            is_late = not is_counted and (not key_bytes or symbol.encode() in earlier)
            books.apply(batch_of(block, feed, is_late=is_late))
            plain[symbol].apply(change)
            check(books, plain, is_unsure=image.is_unsure)


def more_after_the_image(monkeypatch: pytest.MonkeyPatch, more: Callable[[], None]) -> None:
    """Do something between the image and the start of the slice. The archive delivers what it publishes."""
    image = ArchiveClient.image

    def image_then_more(self: ArchiveClient, *arguments: Any, **settings: Any) -> Any:
        found = image(self, *arguments, **settings)
        more()
        return found

    monkeypatch.setattr(ArchiveClient, "image", image_then_more)


def quiet_feed(**settings: Any) -> Feed:
    """Return a feed without heartbeats, which would tell a slice the number of earlier messages."""
    return archived_feed(**{"heartbeat_ns": FOREVER_NS} | settings)


class Session:
    """Publishes and records changes of books."""

    def __init__(self, feed: Feed, publisher: Publisher, recorder: Recorder) -> None:
        self._feed, self.publisher, self._recorder, self._count = feed, publisher, recorder, 0

    def publish(self, *changes: tuple[str, Change]) -> None:
        """Publish changes, and return once they are recorded."""
        for symbol, change in changes:
            self.publisher.publish(symbol.encode() + b".x", payload_of(self._feed.schema_name, change))
        self.publisher.flush()
        self._count += len(changes)
        wait_recorded(self._recorder, self._count)


@pytest.mark.parametrize(("schema", "key_bytes"), CASES)
def test_a_book_without_orders_at_the_image_is_in_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schema: str, key_bytes: int
) -> None:
    """Its next message comes from the archive, as does the first one of a new symbol."""
    feed = quiet_feed(schema=schema, key_bytes=key_bytes)
    early, late = Subscriber(feed), Subscriber(feed)
    had, has = early.book(b""), late.book(b"")
    begin: list[tuple[str, Change]] = [(symbol, ("clear", 0)) for symbol in "AB" if schema == "dbn"]
    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        session = Session(feed, publisher, recorder)
        early.start()
        session.publish(*begin, ("A", ("add", 1)), ("B", ("add", 2)), ("A", ("remove", 1)))
        more_after_the_image(monkeypatch, lambda: session.publish(("A", ("add", 3)), ("C", ("add", 4))))
        late.start(snapshot="books")
        late.wait_live()
    for subscriber in (early, late):
        subscriber.run(until_end=True)
    assert state_of(has) == state_of(had)
    assert {symbol: has.is_synced(symbol) for symbol in (b"A", b"B", b"C")} == {
        symbol: had.is_synced(symbol) for symbol in (b"A", b"B", b"C")
    }
    assert has.is_synced(b"A")
    assert late.statistics().received.gaps == 0


def test_books_are_not_in_sync_before_the_image_is_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed, came, go_on = archived_feed(schema="itch50"), threading.Event(), threading.Event()
    apply = Books.__call__

    def wait_then_apply(self: Books, batch: Batch, *rows: int) -> None:
        if batch.is_image:  # not in the archive
            came.set()
            assert go_on.wait(200)
        apply(self, batch, *rows)

    monkeypatch.setattr(Books, "__call__", wait_then_apply)
    late = Subscriber(feed)
    book, other, none = late.book(b""), late.book(b"B"), late.book(symbols=["C"])
    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        Session(feed, publisher, recorder).publish(("A", ("add", 1)), ("B", ("add", 2)))
        late.start(snapshot="books")
        assert came.wait(200)
        assert (book.synced, other.synced, none.synced) == (False, False, True)
        go_on.set()
        wait_until(lambda: book.synced and other.synced)
        assert [book.is_synced(symbol) for symbol in book.symbols] == [True, True]
        assert (other.symbols, none.symbols) == ([b"B"], [])
        late.stop()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("is_restart", [False, True])
def test_the_run_after_that_of_the_image_empties_the_books(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, is_restart: bool
) -> None:
    """Also if no message of the image's run follows it."""
    feed = archived_feed(schema="itch50")
    early, late = Subscriber(feed, workers=workers), Subscriber(feed, workers=workers)
    had, has = early.book(b""), late.book(b"")
    told = defaultdict[Subscriber, list[Any]](list)
    for each in (early, late):
        each.on_epoch(lambda _, epoch, each=each: told[each].append(epoch))  # type: ignore[misc]
        each.on_reset(lambda each=each: told[each].append("reset"))  # type: ignore[misc]
    with ExitStack() as stack:
        publisher = stack.enter_context(Publisher(feed, when_full="wait"))
        session = Session(feed, publisher, stack.enter_context(Recorder(feed, tmp_path, serve=True)))

        def begin_run() -> None:
            if is_restart:
                session.publisher.close()
                session.publisher = stack.enter_context(Publisher(feed, when_full="wait"))
                session.publisher.wait_for_subscribers(count=2)
            else:
                session.publisher.new_epoch()
            session.publish(("B", ("add", 3)), ("C", ("add", 4)))

        early.start()
        session.publish(("A", ("add", 1)), ("B", ("add", 2)))
        epoch = session.publisher.epoch
        more_after_the_image(monkeypatch, begin_run)
        late.start(snapshot="books")
        late.wait_live()
    for each in (early, late):
        each.run(until_end=True)
    assert told[late] == told[early] == [epoch, session.publisher.epoch, "reset"]
    assert state_of(has) == state_of(had)
    assert has.symbols == had.symbols == [b"B", b"C"]
    assert has.synced == had.synced == (not is_restart)


def test_a_clear_syncs_a_book_whose_image_was_dropped(tmp_path: Path) -> None:
    recording = day_of(tmp_path, "dbn", 0, [("A", ("clear", 0))])
    (run,) = recording.runs()
    ((block, *_),) = blocks_of(run, 0)
    books = Books("dbn")
    books.expect_image(0, 1)
    books.lose_sync(0)
    assert not books.synced
    books.apply(batch_of(block, recording.feed))
    assert books.synced
