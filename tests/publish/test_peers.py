"""Individual connections: their filters, their refusals, and the effect of misbehaviour on others."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import zmq

from blackbox import Feed, Publisher
from blackbox.block.form.format import CONFIRM_KEY, FLAG_REFUSED
from blackbox.publish.listeners.ack_tracker import Acknowledgements
from blackbox.publish.listeners.peer_sockets import open_xpub
from blackbox.publish.listeners.queue_policy import QueuePolicy
from blackbox.publish.listeners.subscription_reader import SubscriptionReader
from blackbox.publish.listeners.subscriptions import Subscriptions
from blackbox.testing import wait_until
from tests.publish.hostile import MORE, Peer, confirmation, frame, subscription, unsubscription, withdrawal
from tests.publish.subscribers import NUMBERS, of, one_slice, serves
from tests.receive.shared import sender_of


def test_statistics_list_the_subscriptions_of_each_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = one_slice(key_bytes=4)
    with Publisher(feed) as publisher, Peer(feed) as few, Peer(feed) as most:
        few.ask(*[subscription(b"0001")] * 3)
        most.ask(*(subscription(b"%04d" % number) for number in range(50)), unsubscription(b"0000"))
        first, second = (of(publisher, each.address) for each in (few, most))
        assert (first.subscriptions, second.subscriptions) == (1, 49)
        assert publisher.statistics().subscriptions == 50
        assert first.key == ""
        assert 0 < first.since_ns <= second.since_ns
        with monkeypatch.context() as patch:
            patch.setattr("blackbox.publish.listeners.peers.MOST_SHOWN_PEERS", 1)
            statistics = publisher.statistics()
            assert [each.address for each in statistics.peers] == [most.address]
            assert (statistics.other_peers, statistics.subscriptions) == (1, 50)
        few.close()
        wait_until(lambda: [each.address for each in publisher.statistics().peers] == [most.address])
        assert sender_of(publisher).subscriptions.filter_count() == 49


def test_endless_subscriptions_stop_at_the_limit_and_others_go_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("blackbox.publish.listeners.subscriptions._MOST_REFUSED", 20_000)
    feed = one_slice(key_bytes=8, max_subscriptions=1_000)
    with Publisher(feed) as publisher, Peer(feed) as greedy:
        for start in range(0, 200_000, 10_000):
            filters = (subscription(b"%08d" % number) for number in range(start, start + 10_000))
            if not greedy.send(*filters, timeout=200):
                break
            serves(publisher, feed, b"AAPL.x", NUMBERS[:10])
        statistics = publisher.statistics()
        assert statistics.subscriptions < 1_600, "1,000, and some that came before the limit was applied"
        assert statistics.refused > 10_000
        assert "expected at most 1000 (max_subscriptions)" in caplog.text
        assert caplog.text.count("refused 127.0.0.1") == 1
        assert "more than 20000 of its subscriptions were refused" in caplog.text
        greedy.close()
        wait_until(lambda: publisher.statistics().subscriptions == 0, what="its filters are gone")
        serves(publisher, feed, b"AAPL.x")


def test_a_refused_subscription_is_in_force_if_repeated_when_there_is_room() -> None:
    """A refusal counts as bytes sent: it also goes to every peer that subscribes to all."""
    feed = one_slice(key_bytes=4, max_subscriptions=10, heartbeat_ns=3_600 * 10**9)
    with Publisher(feed) as publisher, Peer(feed) as peer:

        def is_refused(*changes: bytes) -> bool:
            return bool(peer.answer(*changes)[1].flags & FLAG_REFUSED)

        def counts() -> tuple[int, int]:
            found = of(publisher, peer.address)
            return found.subscriptions, found.refused

        assert is_refused(*(subscription(b"%04d" % number) for number in range(10)), subscription(b"MORE"))
        wait_until(lambda: sender_of(publisher).sent.wire_bytes > 0, what="the refusal is counted")
        assert counts() == (10, 1)
        assert not is_refused(unsubscription(b"0000"), unsubscription(b"MORE"), subscription(b"MORE"))
        assert counts() == (10, 1)
        publisher.publish(b"MORE", b"x")
        assert peer.read_block()[0] == b"MORE"
        assert not is_refused(subscription(b"LAST"), unsubscription(b"LAST")), "the refused one was withdrawn"
        assert not is_refused(subscription(b"LAST"), unsubscription(b"0001"), subscription(b"LAST"))
        assert counts() == (10, 3)
        peer.ask(unsubscription(b"LAST"))
        assert counts() == (9, 3)


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
    with (
        zmq.Context() as context,
        open_xpub(context, feed.slices[0].lines[0], QueuePolicy(waits=False, hwm_blocks=100)) as xpub,
    ):
        xpub.bind(feed.slices[0].lines[0])
        subscriptions = Subscriptions(feed, 1, Acknowledgements())
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
    with Publisher(feed) as publisher:
        invalid = [frame(b"garbage"), frame(b""), frame(b"x", MORE) + frame(b"\1AAPL")]
        for number, words in enumerate(invalid * 2, 1):
            with Peer(feed) as peer:
                peer.send(words)
                serves(publisher, feed, b"AAPL.x", NUMBERS[:10])
                assert peer.was_ended()
            wait_until(lambda number=number: publisher.statistics().put_out == number)  # type: ignore[misc]
    assert "it sent a message that is not a subscription" in caplog.text
