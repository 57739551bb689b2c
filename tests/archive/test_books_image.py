"""Images of order books: a subscriber that starts with one has the same books as one from the start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy
import pytest
from blackbox_feeds.dbn import Dbn
from blackbox_feeds.iex import DEEP10, Iex
from blackbox_feeds.itch50 import Itch50
from blackbox_feeds.itch50.messages import SCHEMA
from blackbox_feeds.synthetic import Synthetic

from blackbox import Feed, Publisher, Recorder, Source, Subscriber
from blackbox.archive.read.reader import RecordRun, blocks_of
from blackbox.archive.recording import Recording
from blackbox.archive.serve.images import Images
from blackbox.archive.serve.newest_books import NewestBooks
from blackbox.archive.serve.pieces import Pieces
from blackbox.block.batch.batch import Batch
from blackbox.block.batch.received_block import BatchFeed, ReceivedBlock
from blackbox.block.form.block import Block
from blackbox.book.books import Books
from blackbox.feed.schema.schema import load_schema
from blackbox.testing import wait_until
from tests.archive.archives import archived_feed
from tests.archive.recorders import wait_recorded
from tests.archive.test_images import answer_of
from tests.examples import first_of
from tests.feeds.build import messages_of
from tests.journals import Day, Put, Row, feed_of
from tests.recorded import recorded

CAPTURES: dict[str, Callable[[Path], Source]] = {
    "itch50": lambda data: Itch50(data / "itch50" / "runk_locate-13-10k.bin", "2020-01-30"),
    "dbn": lambda data: Dbn(data / "dbn" / "esh4-glbx-mdp3-20231225.mbo.dbn.zst"),
    "dbn snapshot": lambda data: Dbn(data / "dbn" / "esh4-glbx-mdp3-20231224.mbo.dbn.zst"),
    "itch50 of many symbols": lambda data: Itch50(data / "itch50" / "jamison_12302019_SNIPPET.NASDAQ_ITCH50"),
    "iex deep": lambda data: Iex(data / "iex" / "goiex_DEEP10.pcap.gz"),
    "made up": lambda _data: Synthetic(10_000, symbols=25),
}
DEEP = 1 << 20
CASES = first_of([("made up", 8), *((name, 0) for name in CAPTURES)], keep=4)


def pieces(recording: Recording, seed: int, count: int) -> Iterator[RecordRun]:
    """Yield all records in about `count` pieces of random size."""
    random = Random(seed)
    for run in recording.runs():
        cuts = sorted({0, len(run.heads), *(random.randrange(len(run.heads)) for _ in range(count))})
        for start, stop in pairwise(cuts):
            yield run.chosen(slice(start, stop))  # type: ignore[arg-type]  # as numpy takes it


class Applied:
    """Books of a consumer that applies all messages."""

    def __init__(self, feed: Feed) -> None:
        self.books = Books(feed.schema_name, symbol_rule=feed.symbol_rule)
        self._feed = BatchFeed(feed.name, None, feed.symbol_rule)
        self._key_bytes, self._epoch = feed.key_bytes, 0

    def take(self, block: Block, rows: Any = None, *, is_image: bool = False) -> None:
        if block.epoch > self._epoch:
            self.begin(block.epoch)
        self.books.apply(Batch(block, rows, ReceivedBlock.of_block(block, self._feed, 0, is_image=is_image)))

    def begin_with(self, image: Iterable[Block]) -> None:
        blocks = list(image)
        self.books.expect_image(0, sum(block.count for block in blocks))
        for block in blocks:
            assert not self.books.synced
            self.take(block, is_image=True)

    def begin(self, epoch: int) -> None:
        self.books.clear()
        self._epoch = epoch

    def take_run(self, run: RecordRun) -> None:
        for block, *_ in blocks_of(run, self._key_bytes):
            self.take(block)

    def state(self) -> dict[bytes, Any]:
        return state_of(self.books)


def state_of(books: Books) -> dict[bytes, Any]:
    """Return the bytes of all levels and orders of each symbol with resting orders."""
    found = {}
    for symbol in books.symbols:
        depth, orders = books.levels(symbol, DEEP), books.orders(symbol)
        if any(depth) or len(orders):
            found[symbol] = depth, orders.tobytes()
    return found


def begun_with(books: NewestBooks, feed: Feed) -> Applied:
    late, blocks = Applied(feed), books.blocks([b""])
    found = list(blocks)
    if blocks.is_unsure:
        late.begin(books.epoch)
        late.books.lose_sync(0)
    assert all((block.epoch, block.number_of(-1)) < books.position for block in found)
    assert len(found) == blocks.count
    late.begin_with(found)
    assert late.books.lacks_messages == (blocks.is_unsure and bool(late.books.symbols))
    return late


@pytest.mark.parametrize(("capture", "key_bytes"), CASES)
def test_an_image_and_later_messages_give_the_books_from_the_start(
    tmp_path: Path, shared_data: Path, capture: str, key_bytes: int
) -> None:
    recording = recorded(
        tmp_path, lambda: CAPTURES[capture](shared_data), slices=1, key_bytes=key_bytes, block_bytes=1 << 13
    )
    kept, always, late = NewestBooks(0, recording.feed), Applied(recording.feed), list[Applied]()
    looked = 0
    for place, piece in enumerate(pieces(recording, seed=len(capture), count=12)):
        kept.take(piece)
        if place % 3 == 0:
            kept.take(piece)  # records may be repeated
        always.take_run(piece)
        for each in late:
            each.take_run(piece)
            assert each.state() == always.state()
        begun = begun_with(kept, recording.feed)
        assert begun.state() == always.state()
        late = [*late[-1:], begun]
        looked += bool(begun.state())
    assert looked > 3


def test_an_image_has_the_newest_of_all_other_messages(tmp_path: Path) -> None:
    recording = recorded(tmp_path, lambda: Synthetic(10_000, symbols=25), slices=1)
    kept, newest = NewestBooks(0, recording.feed), dict[bytes, bytes]()
    for run in recording.runs():
        kept.take(run)
    for batch in recording.newest():
        newest |= {t: p for t, p in zip(batch.topics_per_message(), batch.payload_list(), strict=True) if p is not None}
    found: dict[bytes, list[bytes]] = {}
    for block in kept.blocks([b""]):
        batch = Batch(block, None, ReceivedBlock.of_block(block, BatchFeed("", None, recording.feed.symbol_rule), 0))
        for topic, payload in zip(batch.topics_per_message(), batch.payload_list(), strict=True):
            assert payload is not None
            found.setdefault(topic, []).append(payload)
    others = {topic: [payload] for topic, payload in newest.items() if payload[:1] not in b"AFECXDU"}
    assert {topic: payloads for topic, payloads in found.items() if payloads[0][:1] != b"A"} == others
    assert others


def test_an_image_with_missing_messages_is_unsure(tmp_path: Path) -> None:
    recording = recorded(tmp_path, lambda: Synthetic(10_000, symbols=5), slices=1, block_bytes=1 << 13)
    kept = NewestBooks(0, recording.feed)
    for number, piece in enumerate(pieces(recording, seed=1, count=10)):
        if number != 3:
            kept.take(piece)
        assert kept.blocks([b""]).is_unsure == (number > 3)
    # Also without a book.
    assert kept_of(tmp_path / "other", Put((Row(b"AAPL.P", itch("P")),), sequence=5)).blocks([b""]).is_unsure


def test_an_incomplete_snapshot_does_not_sync_a_late_book(tmp_path: Path, shared_data: Path) -> None:
    recording = recorded(tmp_path, lambda: CAPTURES["dbn snapshot"](shared_data), slices=1, block_bytes=1 << 12)
    kept, whole, amid = NewestBooks(0, recording.feed), NewestBooks(0, recording.feed), 0
    (run,) = recording.runs()
    for number in range(len(run.heads)):
        piece = run.chosen(slice(number, number + 1))  # type: ignore[arg-type]  # as numpy takes it
        whole.take(piece)
        if number != 3:
            kept.take(piece)
        if number < 20:
            late = begun_with(kept, recording.feed)
            assert late.books.synced == (not late.books.symbols)  # a snapshot is not in sync before its end
            amid += any(kept._books.resting(symbol)[1] for symbol in kept._books.symbols)
    assert amid > 5
    assert not begun_with(kept, recording.feed).books.synced
    assert begun_with(whole, recording.feed).books.synced


def itch(kind: str, reference: int = 0) -> bytes:
    made = numpy.zeros(1, SCHEMA.records[kind])
    if kind in "AD":
        made["order_reference_number"] = reference
    if kind == "A":
        made["shares"] = 100
    return kind.encode() + made.tobytes()[1:]


def kept_of(directory: Path, *puts: Put, key_bytes: int = 0, schema: str = "itch50") -> NewestBooks:
    Day(directory, feed_of(key_bytes=key_bytes, schema=schema)).put(0, *puts)
    recording = Recording.open(directory)
    kept = NewestBooks(0, recording.feed)
    for run in recording.runs():
        kept.take(run)
    return kept


def books_of(directory: Path, blocks: Iterable[Block]) -> Books:
    """Return the books of a consumer that starts with these blocks of an image."""
    late = Applied(Recording.open(directory).feed)
    late.begin_with(blocks)
    return late.books


@pytest.mark.parametrize("behind", [itch("P"), itch("A")[:-1], b"", None], ids=["trade", "cut", "empty", "no value"])
def test_an_image_has_an_order_followed_by_any_message_of_its_topic(tmp_path: Path, behind: bytes | None) -> None:
    kept = kept_of(tmp_path, Put((Row(b"AAPL", itch("A", 7)), Row(b"AAPL", behind))), key_bytes=8)
    blocks = kept.blocks([b"AAPL"])
    assert blocks.is_unsure == (behind == itch("A")[:-1])  # an invalid message may hide a missing one
    found = list(blocks)
    assert books_of(tmp_path, found).orders(b"AAPL")["reference"].tolist() == [7]
    assert {block.key for block in found} == {b"AAPL"}


def test_messages_of_a_symbol_may_have_several_keys(tmp_path: Path) -> None:
    puts = [
        Put((Row(b"AAPL.A", itch("A", 1)), Row(b"AAPL.A", itch("A", 7)))),
        Put((Row(b"AAPL.D", itch("D", 1)),), 2, previous=0),
        Put((Row(b"MSFT.A", itch("A", 9)),), 3, previous=0),
        Put((Row(b"MSFT.D", itch("D", 9)),), 4, previous=0),
    ]
    blocks = list(kept_of(tmp_path, *puts, key_bytes=8).blocks([b""]))
    assert books_of(tmp_path, blocks).orders(b"AAPL")["reference"].tolist() == [7]
    assert [(block.key, block.topics) for block in blocks] == [(b"AAPL.A", [b"AAPL.A"])]


def test_each_key_of_a_symbol_has_its_messages_in_the_image(tmp_path: Path) -> None:
    levels = numpy.zeros(3, DEEP10.records["8"])
    levels["price"], levels["size"] = [100, 101, 102], [1, 2, 3]
    payloads = levels.view(numpy.uint8).reshape(3, -1)
    payloads[:, 0], payloads[:, 1] = [ord("8"), ord("5"), ord("5")], 1  # a bid and two offers
    rows = [Row(topic, payload.tobytes()) for topic, payload in zip((b"A.8", b"A.5", b"A.5"), payloads, strict=True)]
    puts = [Put(tuple(rows[:1])), Put(tuple(rows[1:]), 1, previous=0)]
    kept = kept_of(tmp_path, *puts, key_bytes=8, schema="iex_deep10")
    blocks = list(kept.blocks([b""]))
    assert {(block.key, *block.topics): block.count for block in blocks} == {(b"A.8", b"A.8"): 1, (b"A.5", b"A.5"): 2}
    bids, offers = books_of(tmp_path, blocks).levels(b"A", DEEP)
    assert ([each.price for each in bids], [each.price for each in offers]) == ([100], [101, 102])
    assert [block.key for block in kept.blocks([b"A.8"])] == [b"A.8"]


def test_a_late_subscriber_has_the_books_of_one_from_the_start(tmp_path: Path) -> None:
    """Over sockets, while the publisher goes on."""
    feed = archived_feed(schema="itch50", key_bytes=2, slices=2)
    first, late = Subscriber(feed), Subscriber(feed)
    books = [each.book(b"") for each in (first, late)]

    def publish(messages: list[tuple[bytes, int, bytes]]) -> None:
        for topic, ts_event, payload in messages:
            publisher.publish(topic, payload, ts_event)
        publisher.flush()

    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        first.start(60)
        messages = messages_of(Synthetic(10_000, symbols=25))
        half = len(messages) // 2
        publish(messages[:half])
        wait_recorded(recorder, half)
        late.start(60, snapshot="books")
        publish(messages[half:])
        late.wait_live(60)
        wait_until(lambda: first.statistics().delivery.delivered == len(messages))
        wait_until(lambda: state_of(books[1]) == state_of(books[0]))
        assert books[1].synced
        for each in (first, late):
            each.stop()
    assert state_of(books[0])


def test_a_day_of_another_schema_begins_new_books(tmp_path: Path) -> None:
    answer = partial(answer_of, Images(Pieces(tmp_path)), b"", of="books")
    Day(tmp_path / "2026-11-20", feed_of(schema="iex_deep10")).put(0, Put((Row(b"AAPL.Q", b"\0" * 8),)))
    assert answer()[0].position == (1, 1)
    written = Day(tmp_path / "2026-11-21", feed_of(schema="itch50"), date="2026-11-21")
    written.put(0, Put((Row(b"AAPL.A", itch("A", 7)),), epoch=2, schema=load_schema("itch50").schema_id))
    wait_until(lambda: answer()[0].position.epoch == 2)  # the previous image may be returned at first
    image, (block,) = answer()
    assert (image.position, block.topics) == ((2, 1), [b"AAPL.A"])
