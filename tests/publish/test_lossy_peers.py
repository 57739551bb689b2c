"""Which peer lost what, and what happens to peers that stay behind."""

from __future__ import annotations

import time

import pytest

from blackbox import Publisher
from blackbox.publish.listeners.dropped_estimate import Certainty, DataAge, Drops, LineTotals
from blackbox.publish.listeners.queue_policy import QueuePolicy
from blackbox.testing import wait_until
from blackbox.transport.wakeup import readable
from tests.publish.hostile import Peer, subscription
from tests.publish.subscribers import collected, of, one_slice

PAYLOAD = bytes(20_000)


def test_the_drops_of_a_peer_are_counted_and_those_of_others_are_none() -> None:
    """The peer itself counts the blocks that reach it."""
    feed = one_slice(block_bytes=65_536, heartbeat_ns=60_000_000_000)
    quick, got = collected(feed)
    with Publisher(feed, hwm_blocks=10) as publisher, Peer(feed) as slow:
        quick.start()
        slow.ask(subscription(b""))
        wait_until(lambda: of(publisher, slow.address).how_sure is Certainty.SETTLED)
        assert of(publisher, slow.address).dropped_blocks == 0
        sent = 0
        while of(publisher, slow.address).dropped_blocks < 200 or of(publisher, slow.address).behind_s < 0.5:
            publisher.publish(b"T", PAYLOAD)
            sent += 1
            got.wait(sent)
        assert of(publisher, slow.address).how_sure is Certainty.BEHIND
        (other,) = [each for each in publisher.statistics().peers if each.address != slow.address]
        wait_until(lambda: of(publisher, other.address).behind_s < 0.5, what="only the slow peer is behind")
        assert of(publisher, slow.address).unsent_bytes > 0
        at_least, blocks = of(publisher, slow.address).dropped_blocks, publisher.statistics().blocks
        received, is_quiet, until = 0, False, time.monotonic() + 200
        while not (is_quiet and of(publisher, slow.address).how_sure is Certainty.SETTLED):
            assert time.monotonic() < until, of(publisher, slow.address)
            is_quiet = not readable(slow.socket.fileno(), timeout=2.0)
            if not is_quiet:
                received += slow.read_block()[0] == b""  # heartbeats come every minute
        assert at_least <= of(publisher, slow.address).dropped_blocks == blocks - received
        other = of(publisher, other.address)
        assert (other.dropped_blocks, other.lost_messages) == (0, 0)
        assert other.behind_s < 0.5
        quick.stop()
    assert quick.statistics().received.gaps == 0


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_a_subscriber_reports_its_losses(transport: str) -> None:
    feed = one_slice(transport=transport)
    subscriber, got = collected(feed)
    with Publisher(feed) as publisher, subscriber.start():
        for missing in (5, 7):
            publisher.publish(b"T", b"")
            publisher.skip(missing)
        publisher.publish(b"T", b"")
        got.wait(3)
        assert subscriber.statistics().received.gaps == 12
        wait_until(lambda: [each.lost_messages for each in publisher.statistics().peers] == [12])


def test_a_peer_that_stays_behind_is_disconnected(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing else ends the wait of the publisher."""
    feed = one_slice(block_bytes=65_536)
    with (
        Publisher(feed, when_full="wait", slow_peer="disconnect", max_peer_age=0.5) as publisher,
        Peer(feed) as slow,
    ):
        slow.ask(subscription(b""))
        for _ in range(2_000):
            publisher.publish(b"T", PAYLOAD)
        publisher.flush()
        assert slow.was_ended()
        wait_until(lambda: publisher.statistics().put_out == 1)
    assert "expected at most 0.5 s (max_peer_age)" in caplog.text


def test_a_slow_peer_has_five_seconds_or_no_limit() -> None:
    assert QueuePolicy.of("drop", None, "disconnect").max_peer_age_s == 5.0
    assert QueuePolicy.of("drop", None).max_peer_age_s is None


def test_drops_are_a_lower_bound_while_a_peer_is_behind_and_settle_afterwards() -> None:
    drops, block = Drops(), LineTotals(0, 1, 899).block_bytes
    assert block == 1_000

    def look(blocks: int, handed_blocks: int, unsent: int = 0) -> tuple[int, Certainty]:
        drops.look(LineTotals(1_000 * blocks, blocks, 899 * blocks), 70 + 1_000 * handed_blocks, unsent, 10)
        return drops.blocks, drops.certainty

    assert look(5, 5, 1) == (0, Certainty.UNKNOWN), "blocks may have been dropped before"
    for blocks in range(6, 9):
        assert look(blocks, blocks) == (0, Certainty.UNKNOWN)
    assert look(30, 29) == (0, Certainty.SETTLED), "one is on its way"
    assert look(50, 30, 1) == (10, Certainty.BEHIND), "ten are queued"
    assert look(50, 40) == (10, Certainty.BEHIND)
    for blocks in range(51, 54):
        found = look(blocks, blocks - 10)
    assert found == (10, Certainty.SETTLED)


def test_age_is_that_of_the_oldest_data_that_is_not_acknowledged() -> None:
    age = DataAge()
    assert age.look(1.0, 100, 100) == 0.0
    assert age.look(2.0, 200, 100) == 0.0
    assert age.look(3.0, 300, 150) == 1.0
    assert age.look(4.0, 300, 200) == 1.0, "the bytes handed over at 3.0 are the oldest"
    assert age.look(9.0, 300, 299) == 6.0
    assert age.look(10.0, 300, 300) == 0.0
