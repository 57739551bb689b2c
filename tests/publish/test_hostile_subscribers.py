"""Misbehaving and hostile peers lose their connection and do not affect others."""

from __future__ import annotations

import math
import secrets
import socket
import threading
from contextlib import ExitStack, suppress
from typing import Any
from urllib.parse import urlsplit

import numpy
import pytest
import zmq

from blackbox import Publisher
from blackbox.block.form.format import CONFIRM_KEY, HEARTBEAT_KEY
from blackbox.errors import NoSubscriberError
from blackbox.publish.listeners import traffic
from blackbox.publish.listeners.peer_guard import Guard
from blackbox.testing import wait_until
from blackbox.transport.socket_cookie import COOKIE_SCRATCH_WORDS, socket_cookie
from blackbox.transport.tcp_info import Connection
from tests.examples import first_of
from tests.publish.hostile import OLD_GREETINGS, Peer, acceptance, confirmation, subscription, unsubscription
from tests.publish.subscribers import collected, one_slice, serves
from tests.receive.shared import sender_of
from tests.threads import in_threads


def put_out(publisher: Publisher, count: int) -> None:
    """Wait until `count` peers were disconnected."""
    wait_until(lambda: publisher.statistics().put_out == count, what="the disconnects are counted")


def test_a_forged_unsubscription_affects_no_other_peer() -> None:
    feed = one_slice(key_bytes=4)
    subscriber, got = collected(feed, b"AAPL.")
    with Publisher(feed) as publisher, Peer(feed) as peer:
        subscribers = sender_of(publisher).subscriptions.subscribers
        subscriber.start()
        peer.ask(subscription(b"X"), *[unsubscription(b"AAPL")] * 5_000, unsubscription(HEARTBEAT_KEY))
        publisher.publish(b"AAPL.x", b"")
        got.wait(1)
        assert publisher.statistics().unwanted == 0
        subscriber.on_batch(b"MSFT.")(len)
        subscriber.remove(got.batch)
        wait_until(lambda: subscribers(b"AAPL.") == 0, what="an honest change")
        publisher.publish(b"AAPL.x", b"")
        publisher.flush()
        assert publisher.statistics().unwanted == 1
        subscriber.stop()


@pytest.mark.parametrize("version", first_of(OLD_GREETINGS))
def test_an_old_protocol_without_descriptors_affects_no_other_peer(version: str) -> None:
    feed = one_slice(key_bytes=4)
    place = urlsplit(feed.slices[0].endpoints[0])
    subscriber, got = collected(feed, b"AAPL.")
    with Publisher(feed) as publisher, socket.socket() as peer:
        subscriber.start()
        peer.settimeout(60)
        peer.connect((place.hostname, place.port))
        text = b"\0AAPL"
        with suppress(ConnectionError):
            peer.sendall(OLD_GREETINGS[version])
            peer.sendall(unsubscription(b"AAPL") if version == "2.0" else bytes([1 + len(text), 0]) + text)
            while peer.recv(1_000):
                pass
        publisher.publish(b"AAPL.x", b"")
        got.wait(1)
        assert publisher.statistics().unwanted == 0
        assert publisher.statistics().put_out == 0, "libzmq closed the connection, see docs/strangers.md"
        subscriber.stop()


def test_confirmations_that_a_peer_never_reads_block_no_other() -> None:
    """It requests many confirmations and subscribes to those of all others."""
    feed = one_slice(key_bytes=8)
    topics = tuple(b"%08d" % number for number in range(5_000))
    with Publisher(feed, hwm_blocks=2) as publisher, Peer(feed) as peer:
        publisher.publish_many(topics, numpy.arange(5_000), numpy.zeros((5_000, 1), numpy.uint8))
        peer.send(subscription(CONFIRM_KEY))
        for _ in range(100):
            with Peer(feed) as asking:
                asking.send(confirmation())
                asking.read_block()
        assert peer.send(subscription(b""), *(confirmation() for _ in range(1_000)))
        for _ in range(3):
            serves(publisher, feed, b"00000001", [b"x"])


def test_only_the_newest_confirmation_of_a_connection_is_sent() -> None:
    feed = one_slice()
    with Publisher(feed) as publisher, Peer(feed) as peer:
        nonces = [secrets.token_bytes(8) for _ in range(300)]
        peer.send(*map(confirmation, nonces))
        while (key := peer.read_block()[0]) != CONFIRM_KEY + nonces[-1]:
            assert key[2:] in nonces
        confirmations = sender_of(publisher).subscriptions.confirmations
        wait_until(lambda: not confirmations.asked, what="nothing else to send")


def test_a_flood_of_subscriptions_does_not_stop_data_and_heartbeats() -> None:
    feed = one_slice(key_bytes=8, heartbeat_ns=100_000_000)  # if three are late, the subscriber reconnects
    subscriber, got = collected(feed, b"AAPL.")
    over = threading.Event()

    def flood() -> None:
        with Peer(feed) as peer:
            filters = [secrets.token_bytes(7) for _ in range(1_000)]
            both = b"".join(change(b"\1" + text) for text in filters for change in (subscription, unsubscription))
            while not over.is_set() and peer.send(both):
                pass

    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        with in_threads(flood):
            heard = sender_of(publisher).subscriptions.heard
            wait_until(lambda: max(tuple(heard.values()), default=0) > 2_000, what="the flood")
            for number in range(500):
                publisher.publish(b"AAPL.x", b"%d" % number)
                if number % 100 == 0:
                    publisher.flush(timeout=200)
                    last = subscriber.statistics().received.last_ns
                    wait_until(lambda last=last: subscriber.statistics().received.last_ns > last)  # type: ignore[misc]
            got.wait(500)
            over.set()
        subscriber.stop()
    assert subscriber.statistics().received.gaps == 0


def test_forged_acceptances_do_not_count_as_subscribers_or_delay_close(caplog: pytest.LogCaptureFixture) -> None:
    feed = one_slice()
    publisher = Publisher(feed).start()
    with Peer(feed) as peer:
        forged = [acceptance(secrets.token_bytes(8), publisher.epoch) for _ in range(10)]
        peer.ask(subscription(HEARTBEAT_KEY), subscription(b""), *forged)
        with pytest.raises(NoSubscriberError, match=r"0 subscribers to b'' after 0.2 s, expected 3"):
            publisher.wait_for_subscribers(timeout=0.2, count=3)
        assert publisher.statistics().subscribers == 0
        for _ in range(3):
            peer.send(acceptance(peer.ask(), publisher.epoch))
        peer.ask()
        assert publisher.statistics().subscribers == 1, "a connection counts once"
    publisher.close(timeout=600)
    assert "subscribers had received everything" not in caplog.text


def deaf_of(guard: Guard) -> list[Connection]:
    """Return the deaf peers that are connected."""
    since = guard.limits.now - traffic._DEAF_S
    return [each for each, record in guard._traffic.items() if record.moved_at <= since and not each.ended]


@pytest.mark.parametrize("when_full", ["drop", "wait"])
def test_a_peer_that_never_reads_does_not_delay_close_until_the_timeout(
    when_full: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(traffic, "PATIENCE_S", 0.5)
    feed = one_slice(block_bytes=65_536)
    publisher = Publisher(feed, when_full=when_full, hwm_blocks=8).start()  # type: ignore[arg-type]
    with Peer(feed) as peer:
        peer.send(acceptance(peer.ask(subscription(b""), subscription(HEARTBEAT_KEY)), publisher.epoch))
        publisher.wait_for_subscribers()
        for _ in range(200):  # messages beyond the kernel's and libzmq's queues stay in the ring
            publisher.publish(b"T", bytes(20_000))
        publisher.close(timeout=600)
        assert peer.was_ended()
    put_out(publisher, 1)
    assert f"disconnected {peer.address}: it took next to nothing" in caplog.text


def test_the_longest_deaf_peers_are_disconnected_first(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(traffic, "_DEAF_S", 0.5)
    monkeypatch.setattr(traffic, "_MOST_DEAF", 2)
    feed = one_slice(block_bytes=65_536)
    quick, got = collected(feed)
    with Publisher(feed, hwm_blocks=200) as publisher:
        quick.start()
        peers: list[Peer] = []
        looks = sender_of(publisher).sockets.guard

        def found_deaf() -> int:
            publisher.publish_many((b"T",), numpy.zeros(3, int), numpy.zeros((3, 20_000), numpy.uint8))
            got.wait(publisher.statistics().messages)
            return len(deaf_of(looks)) + looks.put_out

        for number in range(4):
            peers.append(Peer(feed))
            peers[-1].send(subscription(b""), subscription(b"%d" % number))
            wait_until(lambda number=number: found_deaf() > number, what="one more deaf peer")  # type: ignore[misc]
        wait_until(lambda: found_deaf() and looks.put_out >= 2, what="two are disconnected")
        assert peers[0].was_ended()
        assert peers[1].was_ended()
        put_out(publisher, 2)
        for peer in peers[2:]:
            assert peer.send(subscription(b"still there"))
        for peer in peers:
            peer.close()
        quick.stop()
    assert quick.statistics().received.gaps == 0
    assert peers[0].address in caplog.text  # the second one of this host is counted in the next warning
    assert not any(peer.address in caplog.text for peer in peers[2:])


def test_the_holder_of_most_filters_is_disconnected_and_a_newcomer_stays(caplog: pytest.LogCaptureFixture) -> None:
    feed = one_slice(key_bytes=8, max_topics=1_000)
    with Publisher(feed) as publisher, Peer(feed) as greedy, Peer(feed) as modest, Peer(feed) as newcomer:
        greedy.ask(*(subscription(b"%08d" % number) for number in range(5_000)))
        modest.ask(*(subscription(b"M%07d" % number) for number in range(90)))
        newcomer.send(*(subscription(b"N%07d" % number) for number in range(10)))
        assert greedy.was_ended()
        put_out(publisher, 1)
        assert f"disconnected {greedy.address}: the line had more than 5096 distinct filters" in caplog.text
        modest.ask()
        newcomer.ask()
        wait_until(lambda: sender_of(publisher).subscriptions.filter_count() == 100, what="its filters are gone")
        serves(publisher, feed, b"00000001")


def test_a_peer_that_repeats_another_peers_filters_is_found_by_its_bytes() -> None:
    feed = one_slice(key_bytes=8, max_topics=1_000)
    same = [subscription(b"%08d" % number) for number in range(5_000)]
    with Publisher(feed) as publisher, Peer(feed) as greedy, Peer(feed) as repeater, Peer(feed) as newcomer:
        greedy.ask(*same)
        repeater.ask(*same)
        newcomer.send(*(subscription(b"N%07d" % number) for number in range(100)))
        assert greedy.was_ended()
        assert repeater.was_ended()
        put_out(publisher, 2)
        newcomer.ask()
        wait_until(lambda: sender_of(publisher).subscriptions.filter_count() == 100, what="their filters are gone")


@pytest.mark.parametrize("count", first_of([20_000, 300_000]))
def test_honest_subscribers_with_many_equal_filters_are_left_alone(count: int) -> None:
    feed = one_slice(key_bytes=8)
    filters = [b"A" + number.to_bytes(7, "big") for number in range(count)]
    with Publisher(feed) as publisher, zmq.Context() as context, ExitStack() as stack:
        subscribers = [stack.enter_context(context.socket(zmq.SUB)) for _ in range(3)]
        for subscriber in subscribers:
            subscriber.linger = subscriber.sndhwm = 0
            subscriber.rcvtimeo = 60_000
            subscriber.connect(feed.slices[0].endpoints[0])
            for text in (*filters, CONFIRM_KEY + secrets.token_bytes(8)):
                subscriber.subscribe(text)
        for subscriber in subscribers:
            assert subscriber.recv_multipart()[0].startswith(CONFIRM_KEY)
        assert publisher.statistics().put_out == 0


@pytest.mark.parametrize("words", [subscription(b"AA"), subscription(b"AA") + unsubscription(b"AA")])
def test_a_peer_that_repeats_filters_forever_is_disconnected(words: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "_BURST_OF_WANTS_BYTES", 0)
    monkeypatch.setattr(traffic, "_BYTES_PER_S", 0)  # a busy publisher might read less in a second
    feed = one_slice(key_bytes=2, max_topics=100)
    with Publisher(feed) as publisher, Peer(feed) as honest, Peer(feed) as peer:
        honest.ask(*(subscription(b"%02d" % number) for number in range(100)))
        while peer.send(words * 10_000, timeout=200):
            pass
        put_out(publisher, 1)
        honest.ask()
        serves(publisher, feed, b"AA")


def test_a_connections_filters_do_not_count_for_the_next_one() -> None:
    feed = one_slice(key_bytes=2)
    with Publisher(feed) as publisher:
        looks = sender_of(publisher).sockets.guard
        for _ in range(6):
            with Peer(feed) as peer:
                peer.ask(*(subscription(secrets.token_bytes(200)) for _ in range(200)))
                wait_until(lambda: looks._traffic, what="a look at it")
            wait_until(lambda: not looks._traffic, what="its end")
        assert publisher.statistics().put_out == 0


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
def test_late_messages_do_not_count_for_the_next_owner_of_a_descriptor(is_known: bool) -> None:
    """If the earlier connection was unknown, the noted cookie is that of the present one."""
    feed = one_slice(key_bytes=2)
    with Publisher(feed) as publisher, Peer(feed) as peer:
        sender = sender_of(publisher)
        wait_until(lambda: sender.sockets.guard._traffic, what="a look at it")
        (connection,) = sender.sockets.guard._traffic
        scratch = numpy.zeros(COOKIE_SCRATCH_WORDS, numpy.int64)
        cookie = 0 if is_known else int(socket_cookie(connection.fd, scratch.ctypes.data))
        sender.subscriptions.unwelcome[connection.fd, cookie] = "the previous connection sent too much"
        wait_until(lambda: not sender.subscriptions.unwelcome, what="another look")
        peer.ask()
        assert publisher.statistics().put_out == 0


def test_filters_longer_than_any_key_are_not_kept_and_a_guard_that_fails_once_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failed = threading.Event()
    judge = traffic.TrafficLimits.judge

    def fail_once(*of: Any) -> str:
        if not failed.is_set():
            failed.set()
            raise OSError("fails once")
        return judge(*of)

    monkeypatch.setattr(traffic.TrafficLimits, "judge", fail_once)
    feed = one_slice(key_bytes=2)
    with Publisher(feed) as publisher, Peer(feed) as peer:
        assert failed.wait(200)
        peer.send(*(subscription(secrets.token_bytes(400)) for _ in range(1_000)))
        assert peer.was_ended()
        put_out(publisher, 1)
        assert f"disconnected {peer.address}: it sent 65536 bytes of filters longer than any key" in caplog.text
        serves(publisher, feed, b"AA")
    assert "slice 0: the guard's look failed" in caplog.text


def test_a_peer_already_deaf_gets_the_full_patience_of_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "_DEAF_S", 0.5)
    monkeypatch.setattr(traffic, "PATIENCE_S", 120.0)
    feed = one_slice(block_bytes=65_536)
    with Publisher(feed, hwm_blocks=8) as publisher, Peer(feed) as peer:
        looks = sender_of(publisher).sockets.guard
        nonce = peer.ask(subscription(b""), subscription(HEARTBEAT_KEY))
        peer.send(acceptance(nonce, publisher.epoch))
        publisher.wait_for_subscribers()
        for _ in range(200):
            publisher.publish(b"T", bytes(20_000))
        wait_until(lambda: deaf_of(looks), what="a deaf peer")
        for record in tuple(looks._traffic.values()):
            record.moved_at -= 3_600
        with in_threads(lambda: publisher.close(200.0)):
            wait_until(lambda: math.inf > looks.limits.closing_since < looks.limits.now, what="a look while it closes")
            wait_until(lambda: len(looks._traffic) == 1 and looks.limits.deaf(looks._traffic) == [])
            assert looks.put_out == 0
            peer.send(unsubscription(acceptance(nonce, publisher.epoch)[3:]))
            assert peer.was_ended()
        assert publisher.statistics().put_out == 0
