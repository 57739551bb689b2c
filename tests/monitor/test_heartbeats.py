"""Results of watching heartbeats, also if they are late, invalid or stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import msgspec
import pytest

from blackbox import Feed
from blackbox.block.block import Block
from blackbox.block.format import HEARTBEAT_KEY, MAX_BODY_BYTES
from blackbox.feed.endpoint import free_endpoints
from blackbox.feed.feed import Slice
from blackbox.monitor.heartbeats import Heartbeats, LineHealth, LineState
from blackbox.testing import RawPublisher, wait_until


def feed_with(*lines_of_slice: int, heartbeat_ns: int = 60_000_000_000) -> Feed:
    """One slice per given number of lines."""
    endpoints = free_endpoints("tcp", "heartbeats", len(lines_of_slice), max(lines_of_slice))
    slices = tuple(
        Slice(endpoints=tuple(found[:lines]), share=(number, len(lines_of_slice)))
        for number, (found, lines) in enumerate(zip(endpoints, lines_of_slice, strict=True))
    )
    return Feed(name="watched", heartbeat_ns=heartbeat_ns, slices=slices)


@pytest.fixture
def publisher() -> Iterator[RawPublisher]:
    with RawPublisher(feed_with(1)) as publisher:
        yield publisher


@pytest.fixture
def watcher(publisher: RawPublisher) -> Iterator[Heartbeats]:
    with Heartbeats(publisher.feed) as watcher:
        wait_until(lambda: HEARTBEAT_KEY in publisher.subscriptions(), what="the watcher's subscription")
        yield watcher


def listen(watcher: Heartbeats, is_enough: Callable[[LineHealth], bool]) -> LineHealth:
    """Listen until the condition holds; return the first line."""
    (line, *_) = watcher.lines

    def heard() -> bool:
        watcher.listen(0.01)
        return is_enough(line)

    wait_until(heard, what="heartbeats")
    return line


def test_nothing_is_known_before_the_first_heartbeat(watcher: Heartbeats) -> None:
    watcher.listen(0)
    assert watcher.lines == [LineHealth(slice_id=0, line="A", endpoint=watcher.feed.slices[0].endpoints[0])]
    assert watcher.lines[0].state is LineState.NOT_HEARD
    assert not watcher.heard_all
    with pytest.raises(RuntimeError, match="slice 0 line A was to be silent when it was not heard, expected alive or"):
        watcher._enter(watcher.lines[0], LineState.SILENT)


def test_loading_code_does_not_count_as_lag(publisher: RawPublisher, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code is loaded before the first heartbeat, and the time of arrival is taken before decoding."""
    watcher = Heartbeats(publisher.feed)
    decode = Block.decode
    read: list[tuple[int, int]] = []

    def decode_slowly(*frames: bytes) -> Block:
        read.append((len(watcher.lines), time.time_ns()))
        return decode(*frames)

    monkeypatch.setattr(Block, "decode", decode_slowly)
    with watcher:
        assert [connected for connected, _ in read] == [0]
        wait_until(lambda: HEARTBEAT_KEY in publisher.subscriptions(), what="the watcher's subscription")
        publisher.heartbeat(end=True)
        line = listen(watcher, lambda line: line.state is LineState.CLOSED)
    assert line.last_heard_ns <= read[-1][1]


def test_a_frame_above_the_largest_body_is_not_received(publisher: RawPublisher, watcher: Heartbeats) -> None:
    publisher.send_frames([HEARTBEAT_KEY, b"", bytes(MAX_BODY_BYTES + 1)])

    def is_disconnected() -> bool:
        watcher.listen(0.01)
        return HEARTBEAT_KEY not in publisher.subscriptions()

    wait_until(is_disconnected, what="the watcher's end of the connection")
    assert watcher.lines[0].malformed == 0


def test_a_heartbeat_reports_epoch_keys_and_messages(publisher: RawPublisher, watcher: Heartbeats) -> None:
    publisher.sequences[0] = 12
    publisher.heartbeat()
    line = listen(watcher, lambda line: line.heard == 1)
    assert (line.state, line.epoch, line.keys, line.messages) == (LineState.ALIVE, 1, 1, 12)
    assert line.messages_per_second is None
    assert line.heartbeat_lag_ns is not None
    assert 0 <= time.time_ns() - line.last_heard_ns < 60_000_000_000
    assert not watcher.heard_all


def test_messages_of_all_keys_are_counted() -> None:
    feed = msgspec.structs.replace(feed_with(1), key_bytes=1)
    with RawPublisher(feed) as publisher, Heartbeats(feed) as watcher:
        wait_until(lambda: HEARTBEAT_KEY in publisher.subscriptions(), what="the watcher's subscription")
        for topic, count in ((b"A", 5), (b"B", 6), (b"A", 1)):
            publisher.encode([(topic, b"")] * count)
        publisher.heartbeat()
        line = listen(watcher, lambda line: line.heard == 1)
        assert (line.keys, line.messages) == (2, 12)


def test_the_rate_is_that_between_two_heartbeats(publisher: RawPublisher, watcher: Heartbeats) -> None:
    publisher.heartbeat()
    publisher.sequences[0] = 1_000
    publisher.heartbeat()
    line = listen(watcher, lambda line: line.heard == 2)
    assert line.messages_per_second is not None
    assert line.messages_per_second > 0
    assert watcher.heard_all


def test_counts_restart_with_the_publisher(publisher: RawPublisher, watcher: Heartbeats) -> None:
    publisher.sequences[0] = 1_000
    publisher.heartbeat()
    publisher.heartbeat()
    listen(watcher, lambda line: line.heard == 2)
    publisher.epoch, publisher.sequences[0] = 2, 3
    publisher.heartbeat()
    line = listen(watcher, lambda line: line.epoch == 2)
    assert (line.heard, line.messages, line.messages_per_second) == (1, 3, None)


def test_an_announced_end_closes_the_line_until_it_is_heard_again(publisher: RawPublisher, watcher: Heartbeats) -> None:
    publisher.heartbeat(end=True)
    line = listen(watcher, lambda line: line.heard == 1)
    assert line.state is LineState.CLOSED
    assert watcher.heard_all
    publisher.epoch = 2
    publisher.heartbeat()
    assert listen(watcher, lambda line: line.epoch == 2).state is LineState.ALIVE


def test_a_line_that_is_not_heard_for_three_heartbeats_is_silent() -> None:
    feed = feed_with(1, heartbeat_ns=10_000_000)
    with RawPublisher(feed) as publisher, Heartbeats(feed) as watcher:
        wait_until(lambda: HEARTBEAT_KEY in publisher.subscriptions(), what="the watcher's subscription")
        publisher.heartbeat()
        line = listen(watcher, lambda line: line.state is LineState.SILENT)
        assert time.time_ns() - line.last_heard_ns >= 30_000_000
        publisher.heartbeat()
        listen(watcher, lambda line: line.heard == 2)


def test_invalid_heartbeats_are_counted_and_ignored(publisher: RawPublisher, watcher: Heartbeats) -> None:
    data = publisher.encode([(b"A.x", b"payload")])
    bad: list[list[bytes]] = [
        [HEARTBEAT_KEY],
        [HEARTBEAT_KEY, b"header", b"body"],
        [HEARTBEAT_KEY + b"more", b"", b""],
        [HEARTBEAT_KEY, data.header, data.body.tobytes()],
        [HEARTBEAT_KEY, b"", b"", b""],
    ]
    for frames in bad:
        publisher.send_frames(frames)
    line = listen(watcher, lambda line: line.malformed == len(bad))
    assert (line.state, line.heard) == (LineState.NOT_HEARD, 0)


def test_each_line_of_each_slice_is_its_own() -> None:
    feed = feed_with(2, 1)
    with RawPublisher(feed) as publisher, Heartbeats(feed) as watcher:
        for slice_id, line in ((0, 0), (0, 1), (1, 0)):
            wait_until(lambda: HEARTBEAT_KEY in publisher.subscriptions(slice_id, line), what="subscriptions")
        publisher.heartbeat(lines=[1])
        line_b = watcher.lines[1]
        listen(watcher, lambda _: line_b.heard == 1)
        heard = [(line.slice_id, line.line, line.heard) for line in watcher.lines]
        assert heard == [(0, "A", 0), (0, "B", 1), (1, "A", 0)]
