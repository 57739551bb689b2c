"""Multicast lines, on the loopback interface: one-way, redundant, and next to a tcp line for control."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest

from blackbox import ConfigError, Feed, Gap, Publisher, Recorder, Relay, Subscriber
from blackbox.errors import SubscriberError
from blackbox.feed.security import Security
from blackbox.services.monitor.heartbeats import Heartbeats
from blackbox.services.monitor.tap import Tap
from blackbox.testing import Collector, wait_until
from blackbox.transport.security.curve import make_pair
from blackbox.transport.security.group_key import make_group_key
from tests.archive.archives import free_endpoint
from tests.process_state import linux_only
from tests.receive.multicast import LossyGroup, free_group, free_port, is_data, multicast_feed, tcp_endpoint
from tests.receive.shared import sender_of
from tests.receive.subscribers import PATIENT, numbers_of, published, subscribed
from tests.transport.udp.slow_assembly import Part

pytestmark = linux_only

WAYS: dict[str, Callable[[], Sequence[str]]] = {
    "one way": lambda: [free_group()],
    "two lines": lambda: [free_group(port := free_port()), free_group(port)],
    "with control": lambda: [tcp_endpoint(), free_group()],
}


def secured(feed: Feed, directory: Path, name: str = "floor") -> Feed:
    _, public, secret = make_pair(directory, name)
    make_group_key(directory / f"{name}.group_key")
    security = Security(
        key=str(secret),
        server_keys=(str(public),),
        allowed_keys=str(directory),
        group_key=str(directory / f"{name}.group_key"),
    )
    return msgspec.structs.replace(feed, security=security)


def check_counts(subscriber: Subscriber) -> Any:
    """Return the counters of datagrams, whose parts must sum up."""
    counts = subscriber.statistics().received.datagrams
    kinds = counts.parts, counts.malformed, counts.unauthentic, counts.foreign, counts.stale, counts.repeated
    assert counts.datagrams == sum(kinds)
    return counts


def publish_both(publisher: Publisher, first: int = 0) -> None:
    """Publish 300 small messages of keys A and B in turn, then large ones of B, in blocks of many parts."""
    for number in range(first, first + 300):
        publisher.publish(b"AB"[number % 2 : number % 2 + 1] + b".t", b"%d" % number)
    rows = numpy.zeros((40, 1_000), numpy.int64)
    publisher.publish_many((b"B.large",), numpy.zeros(40, numpy.int32), rows.view(numpy.uint8))


def check_received(
    way: str, everything: tuple[Subscriber, Collector], of_b: tuple[Subscriber, Collector], first: int = 0
) -> None:
    """Check that subscribers of all keys and of key B have received what `publish_both` published, by datagrams."""
    numbers = range(first, first + 300)
    assert sorted(int(m.payload) for m in everything[1].messages if m.topic != b"B.large") == list(numbers)
    assert [int(m.payload) for m in of_b[1].messages if m.topic != b"B.large"] == list(numbers[1::2])
    for subscriber, got in (everything, of_b):
        assert [m.payload for m in got.messages if m.topic == b"B.large"] == [bytes(8_000)] * 40
        received, counts = subscriber.statistics().received, check_counts(subscriber)
        assert (received.transport, received.gaps, received.malformed) == ("udp", 0, 0)
        assert counts.malformed == counts.unauthentic == counts.incomplete == counts.dropped == 0
        assert received.duplicates == (received.messages // 2 if way == "two lines" else 0)


@pytest.mark.parametrize("way", WAYS)
def test_subscribers_receive_every_later_message_in_order_and_sockets_carry_no_data(way: str, tmp_path: Path) -> None:
    feed = multicast_feed(*WAYS[way](), key_bytes=1)
    if way == "with control":
        feed = secured(feed, tmp_path)
    (first, all_of_it), (second, some) = subscribed(feed), subscribed(feed, b"B")
    with Publisher(feed) as publisher:
        for number in range(100):
            publisher.publish(b"B.t", b"%d" % number)
        publisher.flush()
        first.start()
        second.start()
        if way == "with control":
            publisher.wait_for_subscribers(b"B", count=2)
        publish_both(publisher, 100)
        publisher.flush()
        assert all(int(wanted) % 256 == 0 for wanted in sender_of(publisher).subscriptions.wanted)
        assert publisher.statistics().unwanted == 0
    first.run(until_end=True)
    second.run(until_end=True)
    check_received(way, (first, all_of_it), (second, some), 100)
    assert second.statistics().received.datagrams.unwanted > 0
    sent = publisher.statistics()
    assert sent.datagrams >= first.statistics().received.datagrams.datagrams
    assert sent.datagrams_failed == 0


def test_losses_of_one_line_come_by_the_other() -> None:
    port = free_port()
    source, target = [free_group(port) for _ in "AB"], [free_group(port) for _ in "AB"]
    published, received = (multicast_feed(*each, heartbeat_ns=2_000_000_000) for each in (source, target))
    subscriber, got = subscribed(received, line_wait=60)

    def loses(line: int) -> Callable[[Part], bool]:
        return lambda part: is_data(part) and part.block % 4 == line

    with (
        LossyGroup(source[0], target[0], loses(0)) as a,
        LossyGroup(source[1], target[1], loses(2)) as b,
        Publisher(published) as publisher,
    ):
        subscriber.start()
        for number in range(200):
            publisher.publish(b"T", b"%d" % number)
            publisher.flush()
        publisher.close()
        subscriber.run(until_end=True)
    assert a.lost
    assert b.lost
    assert numbers_of(got) == list(range(200))
    assert subscriber.statistics().received.gaps == 0
    assert check_counts(subscriber).incomplete == 0  # whole blocks were lost, of one part each


def test_losses_on_a_one_way_line_are_reported_where_they_are_and_at_the_end() -> None:
    source, target = free_group(), free_group()
    subscriber, got = subscribed(multicast_feed(target))
    gaps: list[Gap] = []
    subscriber.on_gap(b"")(gaps.append)
    lost = threading.Event()
    with LossyGroup(source, target, lambda part: is_data(part) and lost.is_set()) as path:
        with Publisher(multicast_feed(source)) as publisher:
            subscriber.start()
            for number in range(30):
                (lost.set if number in range(10, 13) or number >= 25 else lost.clear)()
                publisher.publish(b"T", b"%d" % number)
                publisher.flush()
                wait_until(lambda: len(got) + len(path.lost) == number + 1)
        subscriber.run(until_end=True)
    assert numbers_of(got) == [*range(10), *range(13, 25)]
    assert [(gap.sequence, gap.count) for gap in gaps] == [(10, 3), (25, 5)]
    assert subscriber.statistics().received.gaps == 8


def test_losses_next_to_a_control_line_are_repaired_from_an_archive(tmp_path: Path) -> None:
    control, source, target, archive = tcp_endpoint(), free_group(), free_group(), free_endpoint()
    published, received = (multicast_feed(control, each, archives=(archive,)) for each in (source, target))
    subscriber, got = subscribed(received, on_gap="repair")
    with (
        LossyGroup(source, target, lambda part: is_data(part) and part.block % 5 == 3) as path,
        Publisher(published) as publisher,
        Recorder(published, tmp_path, serve=True),
    ):
        subscriber.start()
        for number in range(100):
            publisher.publish(b"T", b"%d" % number)
            publisher.flush()
        publisher.publish(b"T", b"%d" % 100 + bytes(100_000))
        publisher.wait_recorded()
        got.wait(101)
        publisher.close()
        subscriber.run(until_end=True)
    assert [int(payload.rstrip(b"\0")) for payload in got.payloads] == list(range(101))
    assert path.lost
    statistics = subscriber.statistics().received
    assert statistics.gaps == 0
    assert statistics.repaired > 0


def test_a_restarted_publisher_is_followed() -> None:
    for endpoints in ((free_group(),), (tcp_endpoint(), free_group())):
        feed = multicast_feed(*endpoints, heartbeat_ns=100_000_000)
        subscriber, got = subscribed(feed)
        for run in range(2):
            with Publisher(feed) as publisher:
                if run == 0:
                    subscriber.start()
                else:
                    wait_until(lambda: subscriber.statistics().received.epochs == 2)
                for number in range(50):
                    publisher.publish(b"T", b"%d" % (50 * run + number))
                got.wait(50 * run + 50)
        subscriber.run(until_end=True)
        assert numbers_of(got) == list(range(100))
        assert subscriber.statistics().received.gaps == 0


def test_datagrams_without_the_group_key_are_counted_and_confirm_nothing(tmp_path: Path) -> None:
    feed = multicast_feed(free_group(), heartbeat_ns=20_000_000)
    ours, theirs = secured(feed, tmp_path, "ours"), secured(feed, tmp_path, "theirs")
    for sends, takes in ((ours, theirs), (feed, ours), (ours, feed)):
        subscriber, _ = subscribed(takes)
        with Publisher(sends) as publisher, ThreadPoolExecutor(1) as pool:
            started = pool.submit(subscriber.start)
            publisher.publish(b"T", b"0")
            wait_until(lambda: getattr(subscriber.statistics().received.datagrams, "unauthentic", 0) > 2)
            assert not started.done()
            subscriber.terminate()
            with pytest.raises(SubscriberError, match="ended before its subscriptions were confirmed"):
                started.result()
        counts = check_counts(subscriber)
        assert counts.parts == counts.blocks == 0
        assert subscriber.statistics().received.messages == 0


def test_with_channels_a_subscriber_joins_the_groups_of_its_symbols_only() -> None:
    feed = multicast_feed(free_group(), channels=8)
    topics = [b"S%d.t" % number for number in range(64)]
    subscriber, got = subscribed(feed, b"S7.")
    mine = [topic for topic in topics if feed.key_of(topic) == feed.key_of(b"S7.t")]
    assert len(mine) < len(topics) / 2
    more = Collector()
    with published(feed, subscriber) as publisher:
        for topic in topics:
            publisher.publish(topic, topic)
        wait_until(lambda: subscriber.statistics().received.messages == len(mine))
        before = subscriber.statistics().received
        subscriber.on(b"")(more.message)
        wait_until(lambda: subscriber._supervisor.slices.running[0].status.is_confirmed)
        for topic in topics:
            publisher.publish(topic, topic)
    assert before.datagrams.unwanted == 0
    assert got.payloads == [b"S7.t"] * 2
    assert sorted(more.payloads) == sorted(topics)  # in order within a channel only
    assert subscriber.statistics().received.gaps == 0


def test_sending_keeps_to_its_rate() -> None:
    subscriber, got = subscribed(feed := multicast_feed(free_group(), udp_rate_bytes=1_000_000))
    with published(feed, subscriber) as publisher:
        began = time.monotonic()
        for number in range(10):
            publisher.publish(b"T", b"%d" % number + bytes(50_000))
        publisher.flush()
        assert time.monotonic() - began >= 0.4  # half a megabyte, but for a batch and what a pause allows
    assert len(got) == 10


def test_tools_and_relays_use_the_tcp_line_or_say_that_they_need_one() -> None:
    one_way, both = multicast_feed(free_group()), multicast_feed(tcp_endpoint(), free_group())
    below = msgspec.structs.replace(Feed.local("cast", slices=1), heartbeat_ns=both.heartbeat_ns)
    below = msgspec.structs.replace(below, slices=(msgspec.structs.replace(below.slices[0], share=None),))
    with pytest.raises(ConfigError, match="had only multicast lines, expected one on tcp"), Heartbeats(one_way):
        pass
    with pytest.raises(ConfigError, match="slice 0 of feed .* had only multicast lines"), Tap(one_way):
        pass
    with pytest.raises(ConfigError, match=r"slice 0 above the relay had 'udp://.*expected tcp"):
        Relay(one_way, below)
    subscriber, got = Subscriber(below, slow=PATIENT), Collector()
    subscriber.on(b"")(got.message)
    with Publisher(both) as publisher, Relay(both, below), Heartbeats(both) as heartbeats:
        subscriber.start()
        publisher.wait_for_subscribers()
        publisher.publish(b"T", b"0")
        got.wait(1)
        while heartbeats.lines[0].heard == 0:
            heartbeats.listen(1.0)
        assert len(heartbeats.lines) == 1
        subscriber.stop()
    assert numbers_of(got) == [0]


def test_a_tap_on_the_tcp_line_does_not_disturb_the_multicast_line() -> None:
    subscriber, got = subscribed(feed := multicast_feed(tcp_endpoint(), free_group()))
    with published(feed, subscriber, when_full="drop") as publisher:
        publisher.publish(b"T", b"0")
        got.wait(1)
        with Tap(feed) as tap:
            tap.wait_confirmed()
            for number in range(1, 100):
                publisher.publish(b"T", b"%1000d" % number)
                publisher.flush()
            got.wait(100)
            seen: list[int] = []
            while len(seen) < 99:
                seen.extend(int(message.payload) for batch in tap.read() for message in batch)
            assert seen == list(range(1, 100))
            # The bytes of the tcp line show what the tap lost; the subscriber reports its own losses.
            wait_until(lambda: {each.how_sure for each in publisher.statistics().peers if each.is_tap} == {"settled"})
            for each in publisher.statistics().peers:
                assert (each.dropped_blocks, each.lost_messages) == (0, 0)
                assert each.is_tap or each.how_sure == "unknown"
            assert tap.statistics().missed == 0
        publisher.publish(b"T", b"100")
    assert numbers_of(got) == list(range(101))
    assert publisher.statistics().messages == 101
    assert check_counts(subscriber).malformed == subscriber.statistics().received.gaps == 0
