"""Blocks pass relays unchanged and in order, and losses are reported below a relay as they are at the source."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest
import zmq

from blackbox import ConfigError, Feed, Publisher, Relay
from blackbox.block.form.format import HEARTBEAT_KEY
from blackbox.errors import EndpointError, RelayError
from blackbox.native.compile import compiling
from blackbox.services.relay import slice_relay
from blackbox.services.relay.forward_loop import CLOSED
from blackbox.services.relay.slice_relay import SliceRelay
from blackbox.testing import RawPublisher, wait_until
from tests import wire
from tests.publish.subscribers import serves
from tests.relay.relays import PATIENCE_S, PLAIN_BEAT_NS, asked_of, chain, changes_of, collected, line_of, relayed


@pytest.mark.parametrize("transport", ["tcp", "ipc", "inproc"])
def test_messages_and_epochs_arrive_in_order_below_a_relay(transport: str) -> None:
    """Also those of a replay that goes back in time, and of a restarted publisher."""
    feeds = chain(2, slices=2, key_bytes=1, transport=transport)
    subscriber, got = collected(feeds[-1])
    with relayed(feeds) as relays:
        for run in range(2):
            with Publisher(feeds[0]) as publisher:
                if run == 0:
                    subscriber.start(PATIENCE_S)
                publisher.wait_for_subscribers(timeout=PATIENCE_S)
                for number in range(200):
                    if number == 100:
                        publisher.new_epoch()
                    publisher.publish(b"%c" % (65 + number % 7), b"%d" % number)
            got.wait(200 * (run + 1), PATIENCE_S)
        assert relays[-1].statistics().hops == 2
        assert line_of(relays[-1]).epoch == publisher.epoch
    subscriber.stop()
    assert sorted(map(int, got.payloads)) == sorted([*range(200)] * 2)
    received = subscriber.statistics().received
    assert (received.gaps, received.duplicates, received.faults) == (0, 0, {})


def test_blocks_and_heartbeats_are_forwarded_byte_by_byte() -> None:
    feeds = chain(2, key_bytes=2)

    def listen(feed: Feed) -> zmq.Socket[bytes]:
        sub = context.socket(zmq.SUB)
        for prefix in (b"", HEARTBEAT_KEY):
            sub.subscribe(prefix)
        sub.rcvtimeo = 60_000
        sub.linger = 0
        sub.connect(feed.slices[0].endpoints[0])
        return sub

    heard: set[zmq.Socket[bytes]] = set()

    def both_hear() -> bool:
        publisher.send(publisher.encode([(b"AA", b"")]))
        for sub in (above, below):
            while sub.poll(10):
                heard.update({sub} if sub.recv_multipart()[0] == b"AA" else ())
        return len(heard) == 2

    def blocks(sub: zmq.Socket[bytes]) -> list[list[bytes]]:
        """Blocks from the first heartbeat to the last one, without those of this hop only."""
        found: list[list[bytes]] = []
        while not found or found[-1][0] != HEARTBEAT_KEY or not wire.unpack(found[-1][1]).flags & wire.END:
            found.append(sub.recv_multipart())
        keys = [frames[0] for frames in found]
        return [frames for frames in found[keys.index(HEARTBEAT_KEY) :] if frames[0][:2] not in (b"\0P", b"\0C")]

    with zmq.Context() as context, relayed(feeds), RawPublisher(feeds[0]) as publisher:
        above, below = listen(feeds[0]), listen(feeds[-1])
        wait_until(both_hear, PATIENCE_S)
        publisher.heartbeat()
        for number in range(50):
            publisher.send(publisher.encode([(b"AA.t", b"x" * number), (b"AA.u", b"y" * 40)]))
            publisher.send(publisher.encode([(b"B", b"z" * 20_000)]))
            publisher.heartbeat()
        publisher.heartbeat(end=True)
        expected = blocks(above)
        assert len(expected) >= 151
        assert blocks(below) == expected
        for socket in (above, below):
            socket.close()


def test_the_source_is_not_involved_in_each_join() -> None:
    feeds = chain(2, key_bytes=4)
    with Publisher(feeds[0]) as publisher, relayed(feeds) as relays:
        first, _ = collected(feeds[-1], b"A")
        first.start(PATIENCE_S)
        asked = asked_of(publisher)
        others = [collected(feeds[-1], b"A%d" % number, b"AB%d" % number)[0] for number in range(8)]
        for other in others:
            other.start(PATIENCE_S)
        assert asked == []
        assert publisher.statistics().subscribers == 1
        wait_until(lambda: relays[-1].statistics().subscribers == 9)
        assert relays[0].statistics().subscribers == 1
        assert line_of(relays[-1]).filters_below == 17 + 1
        assert [line_of(relay).filters_above for relay in relays] == [1, 1]
        first.stop()
        wait_until(lambda: line_of(relays[0]).filters_above == 16, what="the filters that `A` covered are requested")
        for other in others:
            other.stop()
        wait_until(lambda: publisher.statistics().subscribers == 0, what="no subscriber is left")
        assert [line_of(relay).filters_above for relay in relays] == [0, 0]


def test_a_filter_that_returns_soon_is_not_withdrawn_above() -> None:
    feeds = chain(key_bytes=2)
    with Publisher(feeds[0]) as publisher, relayed(feeds, hold=3_600.0) as (relay,):
        staying, _ = collected(feeds[-1], b"Z")
        staying.start(PATIENCE_S)
        for prefix in (b"A", b"B"):
            collected(feeds[-1], prefix)[0].start(PATIENCE_S).stop()
        wait_until(lambda: line_of(relay).filters_below == 2, what="the others have left")
        changes = changes_of(publisher, lambda change: change[1:2] != b"\0")
        for prefix in (b"A", b"B", b"A"):
            serves(publisher, feeds[-1], prefix, [b"1"])
        assert line_of(relay).filters_above == 3
        assert changes == []
        staying.stop()


def test_the_other_line_is_a_spare_of_a_relay_with_one_line_below() -> None:
    slow = 2_000_000_000  # a source with a spare is left after three silent heartbeats
    above, below = chain(0, lines=2, heartbeat_ns=slow)[0], chain(0, heartbeat_ns=slow)[0]
    subscriber, got = collected(below)
    relay, lines = Relay(above, below, name="one line"), above.slices[0].lines
    assert relay._slices[0].lines[0].upstream.source.address == lines[0]
    with RawPublisher(above) as publisher, relay:
        subscriber.start(PATIENCE_S)
        publisher.send(publisher.encode([(b"T", b"1")]), lines=(0, 1))
        got.wait(1)
        left = lines.index(line_of(relay).source)  # line A, unless the start took so long that it counted as silent
        publisher.close_line(left)
        other = lines[1 - left]
        wait_until(lambda: line_of(relay).source == other and line_of(relay).is_confirmed, PATIENCE_S)
        publisher.send(publisher.encode([(b"T", b"2")]), lines=(1 - left,))
        got.wait(2)
        subscriber.stop()
    assert got.payloads == [b"1", b"2"]
    assert subscriber.statistics().received.gaps == 0


def test_a_relay_switches_to_its_spare_when_its_source_is_silent() -> None:
    source, first, second, below = chain(3, heartbeat_ns=1_000_000_000)
    subscriber, got = collected(below)
    relay = Relay(first, below, name="below", spares=[second])
    assert relay._slices[0].lines[0].upstream.source.address == first.slices[0].lines[0]
    with (
        Publisher(source) as publisher,
        Relay(source, first, name="first") as one,
        Relay(source, second, name="second") as two,
        relay,
    ):
        subscriber.start(PATIENCE_S)
        # it is the second only if the first was silent for long
        ways: dict[tuple[str, ...], Relay] = {("first", "below"): one, ("second", "below"): two}
        wait_until(lambda: line_of(relay).path in ways)
        publisher.publish(b"T", b"1")
        got.wait(1)
        ways.pop(line_of(relay).path).close()
        (other,) = ways
        wait_until(lambda: line_of(relay).path == other and line_of(relay).is_confirmed, PATIENCE_S)
        publisher.publish(b"T", b"2")
        got.wait(2)
        publisher.close()
        subscriber.run(until_end=True)
    assert subscriber.statistics().received.gaps == 0


def test_a_loop_is_rejected_and_its_relays_are_named() -> None:
    first, second, third = chain(2)
    relays = [Relay(third, first, name="Rome"), Relay(first, second, name="Oslo"), Relay(second, third, name="Bern")]
    with ThreadPoolExecutor() as pool:
        running = [pool.submit(relay.run) for relay in relays]
        wait_until(lambda: any(each.done() for each in running), PATIENCE_S, "the loop is detected")
        for relay in relays:
            relay.close()
    failed = [str(each.exception()) for each in running if each.exception()]
    ways = [text.partition("is its own source: ")[2] for text in failed]
    around = "Rome -> Oslo -> Bern -> Rome -> Oslo -> Bern"
    assert failed
    assert all(way and way in around and way.count("->") == 3 for way in ways), failed


def test_too_many_hops_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blackbox.services.relay.hops.MOST_RELAYS", 2)
    feeds = chain(3)
    text = "hop-3.* is hop 3, expected at most 2: hop-1 -> hop-2 -> h"
    with relayed(feeds[:3]), pytest.raises(RelayError, match=text):
        Relay(feeds[2], feeds[3], name="hop-3").run()


def test_non_blocks_are_dropped_and_damaged_blocks_forwarded() -> None:
    feeds = chain(heartbeat_ns=PLAIN_BEAT_NS)
    subscriber, got = collected(feeds[-1])
    with RawPublisher(feeds[0]) as publisher, relayed(feeds) as (relay,):
        subscriber.start(PATIENCE_S)
        good = publisher.encode([(b"T", b"good")])
        for frames in ([b""], [b"", b""], [b"", good.header], [b"", good.header[:-1], b""], [b"", *[good.header] * 5]):
            publisher.send_frames(frames)
        publisher.send_frames([b"", good.header[:40] + b"damaged!" + good.header[48:], bytes(good.body)])
        publisher.send_frames([HEARTBEAT_KEY, good.header, bytes(good.body)])
        publisher.send(good)
        got.wait(1)
        wait_until(lambda: subscriber.statistics().received.faults, what="the subscriber rejects the damaged block")
        assert line_of(relay).refused == 5
        assert line_of(relay).faults == 2
        subscriber.stop()
    assert got.payloads == [b"good"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"key_bytes": 2}, "key_bytes of feed 'chain' below the relay was 2, expected 0"),
        ({"slices": 2}, "had 2 slices, expected 1"),
        ({"lines": 2}, "had lines A and B, expected line A alone"),
        ({"heartbeat_ns": 10_000_000}, "heartbeat_ns of feed 'chain' below the relay was 10000000, expected 100000000"),
        ({"separator": "/"}, "separator of feed 'chain' below the relay was '/', expected '.'"),
    ],
)
def test_feeds_that_do_not_fit_are_rejected(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Relay(chain(0)[0], chain(0, **changes)[0])
    with pytest.raises(ConfigError, match="the relay would be its own source"):
        Relay(*chain(0, **changes) * 2)


@pytest.mark.parametrize(
    ("settings", "text"),
    [({"when_full": "block"}, "'drop' or 'wait'"), ({"hold": -1.0}, "hold was -1.0, expected 0 ")],
)
def test_wrong_arguments_are_rejected(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Relay(*chain(), **settings)


def test_a_relay_is_used_once_at_a_free_endpoint() -> None:
    feeds = chain()
    relay = Relay(*feeds)
    with relay, pytest.raises(EndpointError, match=f"endpoint {feeds[1].slices[0].endpoints[0]} is in use"):
        Relay(*feeds).start()
    with pytest.raises(RelayError, match="closed; a relay is used once"):
        relay.start()
    relay.close()


def test_an_unexpected_end_of_the_loop_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slice_relay, "forward_until", lambda *_: CLOSED)
    monkeypatch.setattr(SliceRelay, "_warm_up", lambda *_: None)
    with pytest.raises(RelayError, match="libzmq's context has ended, or memory is exhausted"):
        Relay(*chain()).run()


def test_compiling_does_not_count_as_starting_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    (each,) = Relay(*chain())._slices
    looks = count(1)

    def compiles() -> bool:
        if next(looks) == 9:
            each._ready.set()
        return True

    monkeypatch.setattr(slice_relay, "start_thread", lambda _: None)
    monkeypatch.setattr(slice_relay, "_LOOK_S", 0.0)
    monkeypatch.setattr(compiling, "is_compiling", compiles)
    each.start(timeout=0.0)
    each._ready.clear()
    monkeypatch.setattr(compiling, "COMPILE_S", 0.0)
    with pytest.raises(RelayError, match="did not start in 0.0 s"):
        each.start(timeout=0.0)
