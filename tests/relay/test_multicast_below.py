"""Relays with ZeroMQ above and multicast below: what is sent there, and what they ask for above."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from blackbox import Feed, Publisher, Relay
from blackbox.testing import wait_until
from tests.process_state import linux_only
from tests.receive.multicast import multicast_feed, tcp_endpoint
from tests.receive.subscribers import numbers_of, subscribed
from tests.receive.test_multicast import WAYS, check_counts, check_received, publish_both, secured

pytestmark = linux_only


def above(below: Feed, **settings: Any) -> Feed:
    """The same feed on tcp, with as many lines."""
    part = msgspec.structs.replace(
        below.slices[0], endpoints=tuple(tcp_endpoint() for _ in range(below.slices[0].data_lines)), bind=()
    )
    return msgspec.structs.replace(below, slices=(part,), **settings)


@pytest.mark.parametrize("way", WAYS)
def test_every_message_reaches_subscribers_below_once_and_in_order(way: str, tmp_path: Path) -> None:
    below = multicast_feed(*WAYS[way](), key_bytes=1)
    if way == "with control":
        below = secured(below, tmp_path)
    source = above(below)
    (first, all_of_it), (second, some) = subscribed(below), subscribed(below, b"B")
    with Publisher(source, when_full="wait") as publisher, Relay(source, below, when_full="wait") as relay:
        first.start()
        second.start()
        publisher.wait_for_subscribers(b"A")
        publish_both(publisher)
        publisher.close()
        first.run(until_end=True)
        second.run(until_end=True)
        sent = relay.statistics()
    check_received(way, (first, all_of_it), (second, some))
    assert sent.messages == publisher.statistics().messages * below.slices[0].data_lines
    assert sent.datagrams >= first.statistics().received.datagrams.datagrams
    assert (sent.datagrams_failed, sent.faults) == (0, 0)


def test_a_relay_asks_for_what_its_receivers_report_on_tcp_and_for_everything_if_they_cannot() -> None:
    with_control = multicast_feed(*WAYS["with control"](), key_bytes=1)
    one_way = multicast_feed(*WAYS["one way"](), key_bytes=1)
    source = above(with_control)
    subscriber, got = subscribed(with_control, b"B")
    with Publisher(source) as publisher, Relay(source, with_control) as asking, subscriber:
        publisher.wait_for_subscribers(b"B")
        for number in range(100):
            publisher.publish(b"AB"[number % 2 : number % 2 + 1], b"%d" % number)
        got.wait(50)
        publisher.flush()  # messages are counted after they are sent
        assert publisher.statistics().unwanted == 50
        assert asking.statistics().messages == 50
        with Relay(source, one_way) as taking:
            publisher.wait_for_subscribers(b"A")
            for number in range(100, 200):
                publisher.publish(b"AB"[number % 2 : number % 2 + 1], b"%d" % number)
            got.wait(100)
            wait_until(lambda: taking.statistics().messages == 100)
            publisher.flush()
            assert publisher.statistics().unwanted == 50
            assert asking.statistics().messages == 100
        subscriber.stop()
        wait_until(lambda: asking.statistics().lines[0].filters_above == 0)
    assert numbers_of(got) == list(range(1, 200, 2))


def test_channels_are_sent_to_their_groups() -> None:
    below = multicast_feed(*WAYS["with control"](), channels=8, separator=".")
    source = above(below)
    topics = [b"S%d.t" % number for number in range(40)]
    subscriber, got = subscribed(below, b"S7.")
    with Publisher(source) as publisher, Relay(source, below) as relay:
        subscriber.start()
        publisher.wait_for_subscribers(b"S7.")
        for topic in topics:
            publisher.publish(topic, topic)
        publisher.close()
        subscriber.run(until_end=True)
        assert relay.statistics().faults == 0
    assert got.payloads == [b"S7.t"]
    assert subscriber.statistics().received.gaps == 0
    assert check_counts(subscriber).unwanted == 0


def test_a_second_source_replaces_the_first_one_below_a_single_multicast_line() -> None:
    below = multicast_feed(*WAYS["with control"]())
    first, second = (above(below, heartbeat_ns=1_000_000_000) for _ in range(2))
    below = msgspec.structs.replace(below, heartbeat_ns=1_000_000_000)
    subscriber, got = subscribed(below)
    with Relay(first, below, spares=[second]) as relay:
        for number, source in enumerate((first, second), 1):
            with Publisher(source) as publisher:
                if number == 1:
                    subscriber.start()
                publisher.wait_for_subscribers()
                publisher.publish(b"T", b"%d" % number)
                got.wait(number)
        wait_until(lambda: relay.statistics().lines[0].reconnects > 0)
        subscriber.stop()
    assert numbers_of(got) == [1, 2]
