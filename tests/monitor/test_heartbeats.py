"""Results of watching heartbeats, also if they are late, invalid or stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from blackbox import Feed
from blackbox.block.form.block import Block, HeaderFields
from blackbox.block.form.format import HEARTBEAT_KEY, MAX_BODY_BYTES
from blackbox.feed.endpoint import free_endpoints
from blackbox.feed.slice import Slice
from blackbox.services.monitor.heartbeats import Heartbeats, LineHealth, LineState
from blackbox.services.relay.hops import encode_times, new_hop
from blackbox.testing import RawPublisher, wait_until


def feed_with(*lines_of_slice: int, heartbeat_ns: int = 60_000_000_000, key_bytes: int = 0) -> Feed:
    """One slice per given number of lines."""
    endpoints = free_endpoints("tcp", "heartbeats", len(lines_of_slice), max(lines_of_slice))
    slices = tuple(
        Slice(endpoints=tuple(found[:lines]), share=(number, len(lines_of_slice)))
        for number, (found, lines) in enumerate(zip(endpoints, lines_of_slice, strict=True))
    )
    return Feed(name="watched", heartbeat_ns=heartbeat_ns, slices=slices, key_bytes=key_bytes)


def listen(watcher: Heartbeats, is_enough: Callable[[LineHealth], bool], number: int = 0) -> LineHealth:
    """Listen until the condition holds for a line; return it."""
    line = watcher.lines[number]

    def heard() -> bool:
        watcher.listen(0.01)
        return is_enough(line)

    wait_until(heard, what="heartbeats")
    return line


@contextmanager
def watched(feed: Feed) -> Iterator[tuple[RawPublisher, Heartbeats]]:
    with RawPublisher(feed) as publisher, Heartbeats(feed) as watcher:
        for slice_id, each in enumerate(feed.slices):
            for line in range(len(each.lines)):
                wait_until(lambda s=slice_id, n=line: HEARTBEAT_KEY in publisher.subscriptions(s, n))  # type: ignore[misc]
        yield publisher, watcher


def test_a_line_from_its_first_heartbeat_to_a_new_epoch() -> None:
    with watched(feed_with(1, key_bytes=1)) as (publisher, watcher):
        watcher.listen(0)
        assert watcher.lines == [LineHealth(slice_id=0, line="A", endpoint=watcher.feed.slices[0].endpoints[0])]
        assert (watcher.lines[0].state, watcher.heard_all) == (LineState.NOT_HEARD, False)
        with pytest.raises(RuntimeError, match="slice 0 line A was to be silent when it was not heard, expected alive"):
            watcher._enter(watcher.lines[0], LineState.SILENT)
        for topic, count in ((b"A", 5), (b"B", 6), (b"A", 1)):
            publisher.encode([(topic, b"")] * count)
        publisher.heartbeat()
        line = listen(watcher, lambda line: line.heard == 1)
        assert (line.state, line.epoch, line.keys, line.messages) == (LineState.ALIVE, 1, 2, 12)
        assert (line.messages_per_second, line.heartbeat_lag_ns is None, watcher.heard_all) == (None, False, False)
        assert 0 <= time.time_ns() - line.last_heard_ns < 60_000_000_000
        publisher.encode([(b"A", b"")] * 1_000)
        publisher.heartbeat()
        listen(watcher, lambda line: line.heard == 2)
        assert watcher.heard_all
        assert (line.messages_per_second or 0) > 0
        publisher.heartbeat(end=True)
        listen(watcher, lambda line: line.state is LineState.CLOSED)
        publisher.epoch, publisher.sequences, publisher.ends = 2, [0], [{}]
        publisher.encode([(b"A", b"")] * 3)
        publisher.heartbeat()
        listen(watcher, lambda line: line.epoch == 2)
        assert (line.state, line.heard, line.messages, line.messages_per_second) == (LineState.ALIVE, 1, 3, None)


def test_times_of_relays_are_no_heartbeats() -> None:
    with watched(feed_with(1)) as (publisher, watcher):
        times = encode_times(new_hop("london"), 1, HeaderFields(sequence=5, ts_out=1, ts_in=1))
        publisher.send_frames(times.frames)
        publisher.heartbeat()
        line = listen(watcher, lambda line: line.heard == 1)
        assert (line.malformed, line.messages) == (0, 0)


def test_each_line_of_each_slice_is_its_own() -> None:
    with watched(feed_with(2, 1)) as (publisher, watcher):
        publisher.heartbeat(lines=[1])
        listen(watcher, lambda line: line.heard == 1, 1)
        heard = [(line.slice_id, line.line, line.heard) for line in watcher.lines]
        assert heard == [(0, "A", 0), (0, "B", 1), (1, "A", 0)]
        publisher.heartbeat(end=True, lines=[0])
        assert listen(watcher, lambda line: line.heard == 1).state is LineState.CLOSED


def test_loading_code_does_not_count_as_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code is loaded before the first heartbeat, and the time of arrival is taken before decoding."""
    watcher = Heartbeats(feed_with(1))
    decode = Block.decode
    read: list[tuple[int, int]] = []

    def decode_slowly(*frames: bytes) -> Block:
        read.append((len(watcher.lines), time.time_ns()))
        return decode(*frames)

    monkeypatch.setattr(Block, "decode", decode_slowly)
    with RawPublisher(watcher.feed) as publisher, watcher:
        assert [connected for connected, _ in read] == [0]
        wait_until(lambda: HEARTBEAT_KEY in publisher.subscriptions(), what="the watcher's subscription")
        publisher.heartbeat(end=True)
        line = listen(watcher, lambda line: line.state is LineState.CLOSED)
        assert watcher.heard_all
    assert line.last_heard_ns <= read[-1][1]


def test_a_line_that_is_not_heard_for_three_heartbeats_is_silent() -> None:
    with watched(feed_with(1, heartbeat_ns=10_000_000)) as (publisher, watcher):
        publisher.heartbeat()
        line = listen(watcher, lambda line: line.state is LineState.SILENT)
        assert time.time_ns() - line.last_heard_ns >= 30_000_000
        publisher.heartbeat()
        listen(watcher, lambda line: line.heard == 2)


def test_invalid_heartbeats_are_counted_and_ignored_and_large_frames_are_not_received() -> None:
    with watched(feed_with(1)) as (publisher, watcher):
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
        publisher.send_frames([HEARTBEAT_KEY, b"", bytes(MAX_BODY_BYTES + 1)])
        listen(watcher, lambda _: HEARTBEAT_KEY not in publisher.subscriptions())
        assert line.malformed == len(bad)
