"""Individual connections: their filters, their refusals, and the effect of misbehaviour on others."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import zmq

from blackbox import Feed, Publisher, Subscriber
from blackbox.block.form.format import CONFIRM_KEY, FLAG_REFUSED
from blackbox.errors import RightsError
from blackbox.publish.listeners.peer_sockets import open_xpub
from blackbox.publish.listeners.peers import PeerStatistics, most_of
from blackbox.publish.listeners.queue_policy import QueuePolicy
from blackbox.publish.listeners.subscription_reader import SubscriptionReader
from blackbox.publish.listeners.subscriptions import Subscriptions
from blackbox.testing import wait_until
from tests.publish.hostile import MORE, Peer, confirmation, frame, subscription, unsubscription, withdrawal
from tests.publish.subscribers import collected, one_slice


def serves(publisher: Publisher, feed: Feed, count: int = 100) -> None:
    """Check that a new subscriber is confirmed and receives what is published next."""
    subscriber, got = collected(feed, b"AAPL.")
    with subscriber.start(timeout=200):
        for number in range(count):
            publisher.publish(b"AAPL.x", b"%d" % number)
        got.wait(count)
    assert subscriber.statistics().received.gaps == 0


def of(publisher: Publisher, peer: Peer) -> PeerStatistics:
    (found,) = [each for each in publisher.statistics().peers if each.address == peer.address]
    return found


def test_statistics_list_the_subscriptions_of_each_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = one_slice(key_bytes=4)
    with Publisher(feed) as publisher, Peer(feed) as first, Peer(feed) as second:
        first.send(*(subscription(b"%04d" % number) for number in range(50)), unsubscription(b"0000"))
        first.ask()
        second.send(*[subscription(b"0001")] * 3)
        second.ask()
        assert (of(publisher, first).subscriptions, of(publisher, second).subscriptions) == (49, 1)
        assert publisher.statistics().subscriptions == 50
        assert of(publisher, first).key == ""
        assert 0 < of(publisher, first).since_ns <= of(publisher, second).since_ns
        with monkeypatch.context() as patch:
            patch.setattr("blackbox.publish.listeners.peers.MOST_SHOWN_PEERS", 1)
            statistics = publisher.statistics()
            assert [each.address for each in statistics.peers] == [first.address]
            assert (statistics.other_peers, statistics.subscriptions) == (1, 50)
        second.close()
        wait_until(lambda: [each.address for each in publisher.statistics().peers] == [first.address])
        assert publisher._slices[0].sender.subscriptions.filter_count() == 49


def test_a_peer_that_takes_nothing_is_behind_and_the_others_are_not() -> None:
    feed = one_slice(block_bytes=65_536)
    quick, got = collected(feed)
    with Publisher(feed, hwm_blocks=200) as publisher, Peer(feed) as slow:
        quick.start()
        slow.send(subscription(b""))
        slow.ask()
        sent = 0
        while of(publisher, slow).behind_s < 0.5:
            publisher.publish(b"T", bytes(20_000))
            sent += 1
            got.wait(sent)
        assert of(publisher, slow).unsent_bytes > 0
        (other,) = [each for each in publisher.statistics().peers if each.address != slow.address]
        assert other.behind_s < 0.5
        quick.stop()
    assert quick.statistics().received.gaps == 0


def test_endless_subscriptions_stop_at_the_limit_and_others_go_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("blackbox.publish.listeners.subscriptions._MOST_REFUSED", 20_000)
    feed = one_slice(key_bytes=8, max_subscriptions=1_000)
    with Publisher(feed) as publisher, Peer(feed) as greedy:
        for start in range(0, 200_000, 10_000):
            filters = (subscription(b"%08d" % number) for number in range(start, start + 10_000))
            if not greedy.send(*filters, timeout=60):
                break
            serves(publisher, feed, 10)
        statistics = publisher.statistics()
        assert statistics.subscriptions < 1_600, "1,000, and some that came before the limit was applied"
        assert statistics.refused > 10_000
        assert "expected at most 1000 (max_subscriptions)" in caplog.text
        assert caplog.text.count("refused 127.0.0.1") == 1
        assert "more than 20000 of its subscriptions were refused" in caplog.text
        greedy.close()
        wait_until(lambda: publisher.statistics().subscriptions == 0, 60, "its filters are gone")
        serves(publisher, feed)


def test_a_subscriber_with_too_many_prefixes_gets_an_error() -> None:
    feed = one_slice(key_bytes=4, max_subscriptions=10)
    subscriber = Subscriber(feed)
    for number in range(2_000):
        subscriber.on_batch(b"%04d" % number)(len)
    with (
        Publisher(feed),
        pytest.raises(RightsError, match=r"refused the topics .*: there are more subscriptions than its max_subscr"),
    ):
        subscriber.start(600)


def test_a_withdrawn_subscription_makes_room() -> None:
    feed = one_slice(key_bytes=4, max_subscriptions=10)
    with Publisher(feed) as publisher, Peer(feed) as peer:
        peer.send(*(subscription(b"%04d" % number) for number in range(10)))
        peer.ask()
        peer.send(subscription(b"MORE"))
        peer.ask()
        assert (of(publisher, peer).subscriptions, of(publisher, peer).refused) == (10, 1)
        peer.send(unsubscription(b"0000"), unsubscription(b"MORE"), subscription(b"MORE"))
        peer.ask()
        assert (of(publisher, peer).subscriptions, of(publisher, peer).refused) == (10, 1)
        publisher.publish(b"MORE", b"x")
        assert peer.read_block()[0] == b"MORE"
        peer.send(subscription(b"LAST"), unsubscription(b"LAST"), confirmation(b"12345678"))
        while (block := peer.read_block())[0] != CONFIRM_KEY + b"12345678":
            pass
        assert not block[1].flags & FLAG_REFUSED, "the refused one was withdrawn"


def test_a_refused_subscription_that_is_repeated_when_there_is_room_is_in_force_until_withdrawn() -> None:
    feed = one_slice(key_bytes=4, max_subscriptions=10)
    with Publisher(feed) as publisher, Peer(feed) as peer:
        peer.send(*(subscription(b"%04d" % number) for number in range(10)))
        peer.ask()
        peer.send(subscription(b"MORE"), unsubscription(b"0000"), subscription(b"MORE"), confirmation(b"12345678"))
        while (block := peer.read_block())[0] != CONFIRM_KEY + b"12345678":
            pass
        assert not block[1].flags & FLAG_REFUSED
        peer.send(unsubscription(b"MORE"))
        peer.ask()
        assert (of(publisher, peer).subscriptions, of(publisher, peer).refused) == (9, 1)


def test_refusals_count_as_bytes_sent() -> None:
    """They also go to every peer that subscribes to all."""
    feed = one_slice(key_bytes=4, max_subscriptions=10, heartbeat_ns=3_600 * 10**9)
    with Publisher(feed) as publisher, Peer(feed) as peer:
        peer.send(*(subscription(b"%04d" % number) for number in range(11)), confirmation(b"12345678"))
        key, header = peer.read_block()
        assert key == CONFIRM_KEY + b"12345678"
        assert header.flags & FLAG_REFUSED
        wait_until(lambda: publisher._slices[0].sender.sent.wire_bytes > 0, what="the refusal is counted")


def test_a_peer_that_never_withdraws_confirmations_is_disconnected(caplog: pytest.LogCaptureFixture) -> None:
    feed = one_slice(key_bytes=4)
    with Publisher(feed) as publisher, Peer(feed) as greedy, Peer(feed) as honest:
        greedy.send(*(confirmation() for _ in range(2_000)))
        wait_until(lambda: publisher.statistics().put_out == 1)
        assert "it requested 1024 confirmations and withdrew none" in caplog.text
        for _ in range(20):
            nonces = [secrets.token_bytes(8) for _ in range(100)]
            honest.send(*(word for nonce in nonces for word in (confirmation(nonce), withdrawal(nonce))))
            honest.ask()
        assert publisher.statistics().put_out == 1


@contextmanager
def read_by_hand(feed: Feed) -> Iterator[tuple[zmq.Socket[bytes], Subscriptions, SubscriptionReader]]:
    """A line's socket that is read when the test calls the reader."""

    class Recorders:
        def begin_epoch(self, epoch: int) -> None:
            pass

        def note(self, line: int, said: bytes, what: object) -> None:
            pass

        def withdraw(self, line: int, said: bytes) -> None:
            pass

    with (
        zmq.Context() as context,
        open_xpub(context, feed.slices[0].lines[0], QueuePolicy(waits=False, hwm_blocks=100)) as xpub,
    ):
        xpub.bind(feed.slices[0].lines[0])
        subscriptions = Subscriptions(feed, 1, Recorders())
        reader = SubscriptionReader(subscriptions, [xpub], feed.slices[0].lines, None, 1 << 16, lambda _line: 0)
        yield xpub, subscriptions, reader
        reader.close()


def has_come(xpub: zmq.Socket[bytes]) -> None:
    """Wait until the peer's messages are queued unread in libzmq, after earlier ones."""
    assert xpub.poll(60_000)
    for _ in range(20):
        xpub.poll(10)  # lets libzmq process its I/O thread's input


def read_until(reader: SubscriptionReader, condition: Callable[[], bool]) -> None:
    def look() -> bool:
        reader.read()
        return condition()

    wait_until(look)


def test_an_invalid_message_gives_its_sender_no_subscriptions_of_others() -> None:
    feed = one_slice(key_bytes=4)
    with read_by_hand(feed) as (xpub, subscriptions, reader), Peer(feed) as hostile, Peer(feed) as honest:
        for sender, words in (
            (honest, [subscription(b"EVEN")]),
            (hostile, [frame(b"garbage"), frame(b""), frame(b"\7")]),
            (honest, [subscription(b"MINE"), subscription(b"ALSO")]),
            (hostile, [subscription(b"ITS")]),
        ):
            sender.send(*words)
            has_come(xpub)
        read_until(reader, lambda: len(subscriptions.unwelcome) == 1)
        for key in (b"MINE", b"ALSO", b"EVEN"):
            xpub.send(key)
        assert honest.read_frame() == b"EVEN", "the filters wait for its next message"
        honest.send(confirmation(b"12345678"))
        read_until(reader, lambda: bool(subscriptions.confirmations.asked))
        for key in (b"MINE", b"ALSO", b"EVEN", CONFIRM_KEY + b"12345678"):
            xpub.send(key)
        assert [honest.read_frame() for _ in range(4)] == [b"MINE", b"ALSO", b"EVEN", CONFIRM_KEY + b"12345678"]
        hostile.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            hostile.socket.recv(1)


def test_subscriptions_of_a_closed_connection_do_not_stay() -> None:
    feed = one_slice(key_bytes=4)
    with read_by_hand(feed) as (xpub, subscriptions, reader):
        with Peer(feed) as peer:
            peer.send(subscription(b"GONE"), subscription(b"ALSO"))
            has_come(xpub)
        has_come(xpub)
        read_until(reader, lambda: not (xpub.poll(0) or subscriptions.peers(0) or subscriptions.filter_count()))


def test_the_sender_of_an_invalid_message_is_disconnected_and_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    feed = one_slice(key_bytes=4, heartbeat_ns=100_000_000)
    with caplog.at_level(logging.WARNING, "blackbox"), Publisher(feed) as publisher:
        invalid = [frame(b"garbage"), frame(b""), frame(b"x", MORE) + frame(b"\1AAPL")]
        for number, words in enumerate(invalid * 2, 1):
            with Peer(feed) as peer:
                peer.send(words)
                serves(publisher, feed, 10)
                assert peer.was_ended()
            wait_until(lambda number=number: publisher.statistics().put_out == number)  # type: ignore[misc]
    assert "it sent a message that is not a subscription" in caplog.text


def test_connections_with_most_subscriptions_are_shown() -> None:
    every = [
        PeerStatistics(slice_id=0, line="A", address=str(n), key="", since_ns=1, subscriptions=n, refused=0)
        for n in range(250)
    ]
    found = most_of(every)
    assert [each.subscriptions for each in found.shown] == list(range(249, 149, -1))
    assert (found.others, found.subscriptions) == (150, sum(range(250)))
