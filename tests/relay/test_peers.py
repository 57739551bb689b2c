"""Slow, greedy and hostile peers below a relay lose their connection, and affect no other peer."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest

from blackbox import Publisher, Recorder
from blackbox.errors import NotRecordedError
from blackbox.testing import wait_until
from tests.gate import Gate
from tests.publish.hostile import Peer, subscription, unsubscription
from tests.publish.subscribers import serves
from tests.relay.relays import PATIENCE_S, chain, collected, line_of, relayed


def test_a_flood_of_subscriptions_costs_its_sender_the_connection() -> None:
    feeds = chain(key_bytes=4, max_topics=1_000)
    with Publisher(feeds[0]) as publisher, relayed(feeds) as (relay,), Peer(feeds[-1]) as peer:
        number = 0
        filters = [subscription(b"%04d" % number) for number in range(10_000)]
        while peer.send(*filters[number : number + 1_000], timeout=PATIENCE_S):
            number = (number + 1_000) % 10_000
        wait_until(lambda: relay.statistics().put_out == 1, PATIENCE_S)
        wait_until(lambda: line_of(relay).filters_above == 0, PATIENCE_S, "its filters are removed with it")
        serves(publisher, feeds[-1], b"AAPL.x")
        assert (publisher.statistics().put_out, line_of(relay).reconnects) == (0, 0)


def test_a_forged_unsubscription_affects_no_other_peer() -> None:
    feeds = chain(key_bytes=4)
    subscriber, got = collected(feeds[-1], b"AAPL.")
    with Publisher(feeds[0]) as publisher, relayed(feeds) as (relay,), Peer(feeds[-1]) as peer:
        subscriber.start(PATIENCE_S)
        peer.ask(subscription(b"X"), *[unsubscription(b"AAPL")] * 1_000, subscription(b"YY"))
        assert line_of(relay).filters_above == 3
        publisher.publish(b"AAPL.x", b"1")
        got.wait(1)
        assert line_of(relay).filters_above == 3
        subscriber.stop()


def test_a_peer_that_reads_nothing_loses_only_its_own_messages() -> None:
    feeds = chain()
    subscriber, got = collected(feeds[-1], workers=1)
    rows = numpy.zeros((100, 1_000), numpy.uint8)
    with (
        Publisher(feeds[0], when_full="wait") as publisher,
        relayed(feeds, hwm_blocks=20),
        Peer(feeds[-1]) as peer,
    ):
        subscriber.start(PATIENCE_S)
        peer.ask(subscription(b""))
        for number in range(1, 301):
            publisher.publish_many((b"T",), numpy.zeros(100, numpy.int32), rows)
            got.wait(100 * number)
        publisher.close()
        subscriber.run(until_end=True)
    assert subscriber.statistics().received.gaps == 0
    assert len(got) == 30_000


def test_a_relay_that_waits_loses_nothing_for_a_slow_subscriber() -> None:
    feeds = chain(2)
    subscriber, _ = collected(feeds[-1], queue_blocks=1, hwm_blocks=1, workers=1)
    gate = Gate()
    subscriber.on_batch(b"")(gate.batch)
    rows = numpy.zeros((100, 10_000), numpy.uint8)
    with (
        relayed(feeds, when_full="wait", hwm_blocks=1) as relays,
        Publisher(feeds[0], when_full="wait", hwm_blocks=1) as publisher,
    ):
        subscriber.start(PATIENCE_S)
        sent = 0
        while not relays[-1].statistics().waits:
            publisher.publish_many((b"T",), numpy.zeros(100, numpy.int32), rows)
            sent += 100
        gate.open.set()
        publisher.close()
        subscriber.run(until_end=True)
    assert gate.messages == sent
    assert subscriber.statistics().received.gaps == 0


def test_a_recorder_behind_relays_acknowledges_to_the_source(tmp_path: Path) -> None:
    feeds = chain(2, key_bytes=2, lines=2)
    with Publisher(feeds[0]) as publisher, relayed(feeds):
        publisher.publish(b"before", b"anybody listens")
        with Recorder(feeds[-1], tmp_path, fsync="block").start(timeout=PATIENCE_S):
            wait_until(
                lambda: [(each.recorded, each.synced) for each in publisher.statistics().recorders] == [(1, 1)],
                PATIENCE_S,
                "its first acknowledgement",
            )
            for wait in (publisher.wait_recorded, publisher.wait_synced):
                with pytest.raises(NotRecordedError, match="began at 1"):
                    wait(0.1)
            for number in range(5):
                publisher.publish(b"%02d.x" % number, b"x")
                publisher.wait_recorded(PATIENCE_S)
                publisher.wait_synced(PATIENCE_S)
            (position,) = publisher.statistics().recorders
            assert (position.begin, position.recorded, position.is_connected) == (1, 6, True)
        wait_until(
            lambda: not publisher.statistics().recorders[0].is_connected, PATIENCE_S, "the recorder is disconnected"
        )
