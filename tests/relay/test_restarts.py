"""Restarts of relays, sources and subscribers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import zmq

from blackbox import Feed, Publisher, Relay
from blackbox.block.form.format import HEARTBEAT_KEY
from blackbox.errors import NotConfirmedError
from blackbox.testing import RawPublisher, wait_until
from blackbox.transport.context import MAX_SUBSCRIPTIONS
from tests.relay.relays import PATIENCE_S, chain, collected, line_of, relayed


@contextmanager
def asking(feed: Feed, filters: list[bytes]) -> Iterator[zmq.Socket[bytes]]:
    """A plain SUB socket, which repeats its filters whenever it is connected."""
    with zmq.Context() as context, context.socket(zmq.SUB) as sub:
        sub.sndhwm = MAX_SUBSCRIPTIONS
        sub.linger = 0
        for prefix in (HEARTBEAT_KEY, *filters):
            sub.subscribe(prefix)
        sub.connect(feed.slices[0].endpoints[0])
        yield sub


@pytest.mark.long
@pytest.mark.timeout(300)
def test_many_subscriptions_survive_a_restart_of_either_side() -> None:
    count = 100_000
    feeds = chain(2, key_bytes=8, max_topics=2 * count, heartbeat_ns=2_000_000_000)
    filters = [b"%08d" % number for number in range(count)]

    def has_all(publisher: Publisher) -> bool:
        return publisher._slices[0].sender.subscriptions.filter_count() == count + 2

    with Publisher(feeds[0]) as publisher, asking(feeds[-1], filters), Relay(feeds[1], feeds[2]):
        with Relay(feeds[0], feeds[1]) as relay:
            wait_until(lambda: has_all(publisher), PATIENCE_S, "all are active at the source")
            assert line_of(relay).filters_above == count
        with Relay(feeds[0], feeds[1]):
            wait_until(lambda: has_all(publisher), PATIENCE_S, "they are active again after a restart of the relay")
            publisher.close(timeout=1.0)
            with Publisher(feeds[0]) as second:
                wait_until(lambda: has_all(second), PATIENCE_S, "they are active after a restart of the source")


def test_subscribers_of_a_restarted_relay_continue_and_report_gaps() -> None:
    feeds = chain(3, key_bytes=1)
    subscriber, got = collected(feeds[-1])
    with Publisher(feeds[0]) as publisher, relayed(feeds[:2]), relayed(feeds[2:]):
        relay = Relay(feeds[1], feeds[2]).start()
        subscriber.start(PATIENCE_S)
        for number in range(10):
            publisher.publish(b"A", b"%d" % number)
        got.wait(10)
        relay.close()
        for number in range(7):
            publisher.publish(b"B", b"lost %d" % number)
        publisher.flush()
        with Relay(feeds[1], feeds[2]) as relay:
            wait_until(lambda: line_of(relay).filters_above and line_of(relay).is_confirmed, PATIENCE_S)
            publisher.publish(b"A", b"10")
            got.wait(11)
            publisher.close()
            subscriber.run(until_end=True)
    assert [payload for payload in got.payloads if not payload.startswith(b"lost")] == [b"%d" % n for n in range(11)]
    assert subscriber.statistics().received.gaps == 7 - (len(got) - 11)


def test_no_answer_without_a_source_and_while_the_connection_above_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    feeds = chain()
    first, _ = collected(feeds[-1])
    with relayed(feeds) as (relay,):
        with pytest.raises(NotConfirmedError):
            collected(feeds[-1])[0].start(timeout=0.5)
        with RawPublisher(feeds[0]):
            first.start(PATIENCE_S)
            assert line_of(relay).is_confirmed
        wait_until(lambda: not line_of(relay).is_confirmed, what="confirmations are void")
        with pytest.raises(NotConfirmedError):
            collected(feeds[-1])[0].start(timeout=0.5)
        with RawPublisher(feeds[0]) as publisher:
            wait_until(lambda: line_of(relay).is_confirmed, PATIENCE_S)
            assert publisher.subscriptions() >= {b"", HEARTBEAT_KEY}
            said = f"the connection to {feeds[0].slices[0].endpoints[0]} is"
            assert [caplog.text.count(f"{said} {what}\n") for what in ("gone", "restored")] == [1, 1]
        first.stop()
