"""Messages missing in a source: the recording keeps them as gaps, and every reader reports them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from blackbox_feeds.iex import Iex
from blackbox_feeds.itch50 import Itch50
from hypothesis import example, given, settings
from hypothesis import strategies as st

from blackbox import Gap, Message, Publisher, Recorder, Recording, Subscriber
from blackbox.archive.importing.import_days import import_days
from blackbox.block.gap import shares_of
from blackbox.cli.demo.session import Session
from blackbox.errors import SourceError
from blackbox.feed.feed import Feed
from blackbox.feed.source import Chunk, Source
from blackbox.testing import wait_until
from tests.archive.archives import archived_feed
from tests.archive.imports import DAY, NOON, Made, feed_of, told
from tests.examples import examples
from tests.feeds.build import ethernet, iex, iex_tp, itch, mold, pcap

TOPICS = (b"AA.P", b"BB.P", b"CC.P", b"DD.P", b"EE.P", b"FF.P")
Item = int | tuple[bytes, bytes]
"""A number of missing messages, or topic and payload of a message."""


class Lacking(Made):
    """A source with missing messages, one chunk per list."""

    def __init__(self, *chunks: list[Item]) -> None:
        super().__init__(*([(*item, NOON) for item in each if not isinstance(item, int)] for each in chunks), date=DAY)
        self._items = chunks

    def chunks(self) -> Iterator[Chunk]:
        for chunk, items in zip(super().chunks(), self._items, strict=True):
            gaps, row = [], 0
            for item in items:
                if isinstance(item, int):
                    gaps.append((row, item))
                row += not isinstance(item, int)
            yield chunk._replace(gaps=tuple(gaps))


def messages(*numbers: int) -> list[Item]:
    return [(TOPICS[number % len(TOPICS)], b"%d" % number) for number in numbers]


def missing_of(recording: Recording) -> dict[int, int]:
    """Return the number of missing messages by slice."""
    found: dict[int, int] = {}
    for gap in recording.gaps():
        found[gap.slice_id] = found.get(gap.slice_id, 0) + gap.count
    return found


def replayed(recording: Recording) -> tuple[list[bytes], list[Gap]]:
    """Return the payloads and gaps of a replay."""
    payloads: list[bytes] = []
    gaps: list[Gap] = []
    subscriber = Subscriber(recording.feed)
    subscriber.on(b"")(lambda message: payloads.append(message.payload))
    subscriber.on_gap(b"")(gaps.append)
    subscriber.replay(recording)
    return payloads, gaps


def recorded_live(feed: Feed, directory: Path, sources: list[Source], messages: int) -> Recording:
    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, directory) as recorder:
        publisher.wait_for_subscribers()
        for source in sources:
            source.publish(publisher)
        publisher.flush()
        wait_until(lambda: recorder.statistics().messages == messages)
        publisher.close()  # returns once the recorder has received the end
    (path,) = (directory / feed.name).glob("*-*-*")
    return Recording.open(path)


@settings(max_examples=examples(80), deadline=None)
@given(
    st.lists(
        st.lists(st.integers(1, 9) | st.sampled_from(TOPICS).map(lambda topic: (topic, topic)), max_size=12),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 3),
    st.sampled_from([0, 2]),
)
@example([[90], messages(0, 1), [4, *messages(1), 60], [1, *messages(*range(12)), 2]], 3, 2)
def test_gaps_of_any_source_match_a_list(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[list[Item]], slices: int, key_bytes: int
) -> None:
    chunks = [*chunks, [(b"AA.P", b"last")]]
    feed = feed_of("raw", slices=slices, key_bytes=key_bytes)
    has_begun, lost = False, 0
    missing = [0] * slices
    for item in (item for chunk in chunks for item in chunk):
        if isinstance(item, int):
            missing = [before + share for before, share in zip(missing, shares_of(item, slices), strict=True)]
            lost += item if has_begun else 0
        else:
            has_begun = True
    (day,) = import_days(feed, tmp_path_factory.mktemp("imported"), [Lacking(*chunks)])
    recording = Recording.open(day.path)
    damage, gaps, begins = recording.examine()
    assert (damage, begins) == ([], [])
    assert gaps == recording.gaps()
    assert missing_of(recording) == {slice_id: count for slice_id, count in enumerate(missing) if count}
    assert day.missing == lost
    payloads, reported = replayed(recording)
    assert sorted(reported) == sorted(gaps)
    assert len(payloads) == len(told(recording)) == sum(not isinstance(each, int) for chunk in chunks for each in chunk)


def test_shares_add_up_and_none_is_empty() -> None:
    assert shares_of(7, 3) == [3, 2, 2]
    assert shares_of(1, 3) == [1, 1, 1]
    assert shares_of(3, 1) == [3]


def test_live_books_of_all_slices_know_a_loss_before_their_next_message() -> None:
    feed = feed_of("itch50", slices=3, key_bytes=2, heartbeat_ns=3_600 * 10**9)
    subscriber = Subscriber(feed)
    book = subscriber.book(b"")
    symbols = [b"A", b"B", b"C", b"D", b"E", b"F"]
    orders = [(each + b".A", itch("A", locate=n, stock=each.decode())) for n, each in enumerate(symbols)]
    with Publisher(feed, when_full="wait") as publisher, subscriber:
        publisher.wait_for_subscribers()
        for order in orders[:5]:
            publisher.publish(*order)
        publisher.flush()
        wait_until(lambda: len(book.symbols) == 5)
        assert book.synced
        publisher.skip(3)
        wait_until(lambda: not any(map(book.is_synced, symbols[:5])))
        publisher.publish(*orders[5])
        publisher.flush()
        wait_until(lambda: len(book.symbols) == 6 and not any(map(book.is_synced, symbols)))
        with pytest.raises(ValueError, match="count was 0, expected 1"):
            publisher.skip(0)


def captures_of(directory: Path, numbers: list[range], kind: str) -> list[Source]:
    sources: list[Source] = []
    for place, each in enumerate(numbers):
        path = directory / f"{place}-20191230.pcap"
        if kind == "itch50":
            packets = [mold(n, [itch("A", locate=1 + n % 3, ns=n, stock=f"S{n % 3}")]) for n in each]
        else:
            packets = [iex_tp(n, [iex("T", ns=NOON + n, symbol=f"S{n % 3}")], send_time=n) for n in each]
        path.write_bytes(pcap(list(map(ethernet, packets))))
        sources.append(Itch50(path) if kind == "itch50" else Iex(path))
    return sources


@pytest.mark.parametrize(
    ("kind", "numbers", "messages", "missing"),
    [
        ("itch50", [range(1, 11), range(11, 21)], 20, 0),
        ("itch50", [range(1, 11), range(8, 21)], 20, 0),
        ("itch50", [range(5, 11), range(14, 21)], 13, 3),
        ("iex_deep10", [range(1, 6), range(9, 11), range(10, 13), range(20, 21)], 10, 10),
    ],
)
def test_a_loss_between_two_captures_of_a_day_is_a_gap(
    tmp_path: Path, kind: str, numbers: list[range], messages: int, missing: int
) -> None:
    """`missing` counts messages between the captures, not those before the first one."""
    feed = feed_of(kind, slices=1)
    (day,) = import_days(feed, tmp_path, captures_of(tmp_path, numbers, kind))
    recording = Recording.open(day.path)
    assert (day.messages, day.missing, len(told(recording))) == (messages, missing, messages)
    assert missing_of(recording).get(0, 0) == missing + numbers[0].start - 1
    assert day.notes == () or numbers[1].start != numbers[0].stop
    published = recorded_live(feed, tmp_path / "live", captures_of(tmp_path, numbers, kind), messages)
    assert [(gap.sequence, gap.count) for gap in published.gaps()] == [
        (gap.sequence, gap.count) for gap in recording.gaps()
    ]


def test_captures_in_the_wrong_order_lose_no_message(tmp_path: Path) -> None:
    sources = captures_of(tmp_path, [range(11, 21), range(1, 11)], "itch50")
    (day,) = import_days(feed_of("itch50", slices=1), tmp_path, sources)
    assert (day.messages, day.missing) == (20, 0)


def test_a_source_published_again_is_complete_without_a_gap(tmp_path: Path) -> None:
    told_of, source = Told(), Lacking([90, *messages(0, 1)], [], [4], [*messages(2), 3])
    source.publish(told_of)
    assert told_of.calls == [90, (2, False), 4, (1, False), 3]
    source.publish(told_of)
    assert told_of.calls[5:] == [(2, False), 4, (1, False), 3]
    capture, again = (captures_of(tmp_path, [range(5, 11)], "itch50")[0] for _ in range(2))
    told_of = Told()
    for each in (capture, capture, again):
        each.publish(told_of)
    assert told_of.calls == [4, (6, False), (6, False), (6, False)]


def test_the_error_of_an_empty_day_has_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "20191230.pcap"
    path.write_bytes(pcap([ethernet(mold(1, [itch("A")]), fragment=0x2000)]))
    with pytest.raises(SourceError, match=r"has no message: .*fragments of an incomplete IP datagram: 1"):
        import_days(feed_of("itch50"), tmp_path, [Itch50(path)])
    undated = Made()
    undated.notes = ("packets skipped: 1",)
    with pytest.raises(SourceError, match=r"has no message: packets skipped: 1"):
        import_days(feed_of("raw"), tmp_path, [undated])


def losses_in(path: Path, packets: list[int | bytes]) -> Itch50:
    """Write a capture: an order of each stock, a millisecond apart, without the given numbers of lost messages."""
    number, parts = 1, []
    for place, packet in enumerate(packets):
        if isinstance(packet, int):
            number += packet
            continue
        message = itch("A", locate=1 + packet[0], ns=1_000_000 * (place + 1), stock=packet.decode())
        order = message[:11] + number.to_bytes(8, "big") + b"B" + message[20:]
        parts.append(ethernet(mold(number, [order])))
        number += 1
    path.write_bytes(pcap(parts))
    return Itch50(path)


PACKETS = st.lists(st.integers(1, 9) | st.sampled_from((b"A", b"B", b"C", b"D", b"E")), max_size=14)


def check_synced(recording: Recording, packets: list[int | bytes], *, is_exact: bool = True) -> None:
    """Books are in sync up to the last message before the first loss, of any slice, and not later.

    Unless `is_exact`, a book may be out of sync earlier.
    """
    begin = next((place for place, packet in enumerate(packets) if isinstance(packet, int)), len(packets))
    subscriber = Subscriber(recording.feed)
    book = subscriber.book(b"")
    seen: list[bytes] = []
    midnight = 1_577_682_000 * 10**9

    @subscriber.on(b"")
    def _(message: Message) -> None:
        seen.append(message.symbol)
        place = round((message.ts_event - midnight) / 1_000_000) - 1
        found = {book.is_synced(symbol) for symbol in seen}
        assert found == {place < begin} or (place < begin and not is_exact)

    subscriber.replay(recording)
    assert seen == [packet for packet in packets if isinstance(packet, bytes)]
    for place, packet in enumerate(packets):
        if isinstance(packet, bytes):
            book = recording.book_at(midnight + 1_000_000 * (place + 1) + 1)
            assert set(book.symbols) == {each for each in packets[: place + 1] if isinstance(each, bytes)}
            found = {book.is_synced(symbol) for symbol in book.symbols}
            is_whole = not any(isinstance(each, int) for each in packets[: place + 2])
            assert found == {is_whole} or (is_whole and not is_exact)


@settings(max_examples=examples(25), deadline=None)
@given(PACKETS, st.integers(1, 3), st.booleans())
def test_books_are_synced_until_a_loss_as_in_a_plain_loop(
    tmp_path_factory: pytest.TempPathFactory, packets: list[int | bytes], slices: int, has_keys: bool
) -> None:
    packets = [b"A", *packets, b"B"]
    directory = tmp_path_factory.mktemp("losses")
    source = losses_in(directory / "20191230.pcap", packets)
    feed = feed_of("itch50", slices=slices, key_bytes=int(has_keys))
    (day,) = import_days(feed, directory, [source])
    check_synced(Recording.open(day.path), packets, is_exact=not has_keys)


def test_books_of_a_published_source_are_synced_until_a_loss(tmp_path: Path) -> None:
    packets: list[int | bytes] = [b"A", b"B", b"C", b"D", 3, b"A", b"A", b"A", b"B", 2, b"C", b"A"]
    source = losses_in(tmp_path / "20191230.pcap", packets)
    recording = recorded_live(feed_of("itch50", slices=3), tmp_path, [source], 10)
    assert missing_of(recording) == {0: 2, 1: 2, 2: 2}
    check_synced(recording, packets)


def test_repair_does_not_wait_for_messages_missing_in_the_source(tmp_path: Path) -> None:
    feed, seen = archived_feed(key_bytes=2), list[object]()
    subscriber = Subscriber(feed, on_gap="repair", repair_wait=60)
    subscriber.on(b"")(lambda message: seen.append(message.payload))
    subscriber.on_gap(b"")(lambda gap: seen.append(gap.count))
    with (
        Publisher(feed, when_full="wait") as publisher,
        Recorder(feed, tmp_path, serve=feed.archives[0]) as recorder,
        subscriber,
    ):
        publisher.wait_for_subscribers(count=2)
        Lacking([(b"AA.P", b"0"), 4, (b"AA.P", b"1"), 2]).publish(publisher)
        wait_until(lambda: len(seen) >= 3)
        publisher.publish(b"AA.P", b"2")
        wait_until(lambda: len(seen) >= 5)
        wait_until(lambda: recorder.statistics().messages == 3)
    assert seen == [b"0", 4, b"1", 2, b"2"]


class Told:
    """Records the calls of a publisher."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.source: Source | None = None

    def skip(self, count: int, ts_event: int = 0) -> None:
        self.calls.append(count)

    def publish_many(self, topics: object, topic_index: Any, *_: Any, checks_records: bool, **__: Any) -> None:
        self.calls.append((len(topic_index), checks_records))


@pytest.mark.parametrize(("limit", "calls"), [(None, [90, (2, False), 4, (1, False), 3]), (2, [90, (2, False)])])
def test_the_demo_publishes_gaps_of_its_source(limit: int | None, calls: list[object]) -> None:
    told_of = Told()
    Session(Lacking([90, *messages(0, 1), 4, *messages(2), 3]), limit, lambda _: None).publish(cast("Any", told_of))
    assert told_of.calls == calls
