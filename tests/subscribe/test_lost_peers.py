"""Publishers that restart or fall silent, and subscribers that are killed."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import msgspec
import numpy
import pytest
import zmq

from blackbox import Feed, Publisher, SlowPolicy, Subscriber
from blackbox.block.format import ACCEPT_KEY, CONFIRM_KEY
from blackbox.errors import SubscriberError
from blackbox.feed.feed import Slice
from blackbox.subscribe import subscription
from blackbox.subscribe.subscription import Subscription
from blackbox.testing import Collector, RawPublisher, wait_until
from tests.subscribe.subscribers import PATIENT, nothing, one_slice
from tests.support import Script
from tests.zmtp import PlainPublisher

TOPICS = [b"%08d" % number for number in range(2_000)]


def subscribed_to_topics(slices: int) -> tuple[Feed, Subscriber, Collector]:
    """Return a feed, and a subscriber with a subscription to each of TOPICS."""
    feed = Feed.local("subscriber", slices=slices, key_bytes=8)
    subscriber = Subscriber(feed, slow=PATIENT)
    got = Collector()
    for topic in TOPICS:
        subscriber.on(topic)(got.message)
    return feed, subscriber, got


def test_two_thousand_subscriptions_survive_a_restart_of_the_publisher() -> None:
    feed, subscriber, got = subscribed_to_topics(slices=2)
    for run in range(3):
        with Publisher(feed, when_full="wait") as publisher:
            if run == 0:
                subscriber.start(timeout=60)
                assert subscriber.statistics().received.subscriptions == 4_000
            for topic in TOPICS:
                publisher.wait_for_subscribers(topic, timeout=60)
            for topic in TOPICS:
                publisher.publish(topic, b"%d" % run)
            messages = got.wait(2_000 * (run + 1), timeout=30)
            assert sorted(m.topic for m in messages[2_000 * run :]) == TOPICS
    subscriber.run(until_end=True)
    assert len(got) == 6_000
    assert subscriber.statistics().received.gaps == 0


def test_wait_for_subscribers_after_a_restart_means_all_their_filters() -> None:
    """libzmq sends the filters again in any order, so the first one does not imply the others."""
    feed, subscriber, got = subscribed_to_topics(slices=1)
    for run in range(3):
        with Publisher(feed, when_full="wait") as publisher:
            if run == 0:
                subscriber.start(timeout=60)
            publisher.wait_for_subscribers(TOPICS[0])
            for topic in reversed(TOPICS):
                publisher.publish(topic, b"%d" % run)
            got.wait(2_000 * (run + 1))
    subscriber.run(until_end=True)
    assert len(got) == 6_000


def test_a_killed_subscriber_affects_neither_publisher_nor_other_subscribers() -> None:
    feed = one_slice(block_bytes=4_096)
    code = """
        subscriber = Subscriber(feed, slow=SlowPolicy(max_lag=3_600), queue_blocks=1, hwm_blocks=1)
        @subscriber.on(b"")
        def stuck(message):
            say("stuck")
            time.sleep(1000)
        subscriber.start(timeout=60)
        subscriber.run()
    """
    survivor = Subscriber(feed, slow=SlowPolicy(max_lag=3_600))
    got = Collector()
    survivor.on_batch(b"")(got.batch)
    with Publisher(feed, when_full="wait", hwm_blocks=2) as publisher, Script(code, feed) as script:
        survivor.start()
        publisher.wait_for_subscribers(b"", timeout=60, count=2)
        publisher.publish(b"T", b"0")
        script.expect("stuck")
        publishing = threading.Thread(
            target=publisher.publish_many,
            args=((b"T",), numpy.zeros(20_000, int), numpy.zeros((20_000, 1_000), numpy.uint8)),
        )
        publishing.start()
        wait_until(lambda: publisher.statistics().waits > 2)
        script.kill()
        publishing.join(60)
        assert not publishing.is_alive()
        publisher.publish(b"T", b"last")
        wait_until(lambda: publisher.statistics().subscribers == 1)
    survivor.run(until_end=True)
    assert len(got) == 20_002
    assert got.payloads[-1] == b"last"
    assert survivor.statistics().received.gaps == 0


def test_a_subscriber_on_inproc_survives_a_restart_of_the_publisher() -> None:
    feed = Feed(name="restarted", slices=(Slice(endpoints=("inproc://restarted",)),), heartbeat_ns=50_000_000)
    subscriber = Subscriber(feed, slow=PATIENT)
    got = Collector()
    subscriber.on(b"")(got.message)
    with Publisher(feed) as publisher:
        subscriber.start()
        publisher.publish(b"A", b"1")
    time.sleep(0.5)  # silent for longer than three heartbeats
    with Publisher(feed) as publisher:
        publisher.wait_for_subscribers(b"A", timeout=60)
        publisher.publish(b"A", b"2")
    subscriber.run(until_end=True)
    got.wait(2)


def test_a_subscriber_on_inproc_stays_with_a_silent_publisher(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reconnect would lose what a slow publisher sends meanwhile."""
    looks, connected = [0], [0]
    look, connect = Subscription.reconnect_silent_lines, Subscription._connect_again

    def note_look(self: Subscription) -> None:
        looks[0] += 1
        look(self)

    def note_connection(self: Subscription, line: int) -> None:
        connected[0] += 1
        connect(self, line)

    monkeypatch.setattr(Subscription, "reconnect_silent_lines", note_look)
    monkeypatch.setattr(Subscription, "_connect_again", note_connection)
    feed = Feed(name="slow", slices=(Slice(endpoints=("inproc://slow",)),), heartbeat_ns=10_000_000)
    subscriber = Subscriber(feed, slow=PATIENT)
    subscriber.on(b"")(nothing)
    with RawPublisher(feed), subscriber:
        looks_before = looks[0]
        wait_until(lambda: looks[0] > looks_before + 5, what="looks at a silent publisher")
    assert connected[0] == 0


def test_a_new_epoch_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    feed = one_slice()
    subscriber = Subscriber(feed, slow=PATIENT)
    subscriber.on(b"")(nothing)
    with caplog.at_level(logging.INFO, "blackbox"), RawPublisher(feed, epoch=17_000) as publisher:
        subscriber.start()
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert "slice 0: publisher epoch 17000 began" in caplog.text


def test_a_silent_publisher_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    feed = one_slice(heartbeat_ns=10_000_000)
    subscriber = Subscriber(feed, slow=PATIENT)
    subscriber.on(b"")(print)
    with RawPublisher(feed), subscriber:
        wait_until(lambda: "is silent but has not closed" in caplog.text, what="the silence is logged")
        told = caplog.text.count("is silent")
    assert told == 1


def test_a_silent_line_is_asked_again_until_it_answers(caplog: pytest.LogCaptureFixture) -> None:
    """A publisher with an outbox continues its epoch, so only the silence shows that it was restarted."""
    feed = one_slice(heartbeat_ns=10_000_000)
    subscriber = Subscriber(feed, slow=PATIENT)
    subscriber.on(b"")(nothing)

    def asked(publisher: RawPublisher) -> set[bytes]:
        return {each for each in publisher.subscriptions() if each.startswith(CONFIRM_KEY)}

    with RawPublisher(feed) as publisher:
        subscriber.start()
        before = asked(publisher)
    wait_until(lambda: "is silent but has not closed" in caplog.text, what="the silence is logged")
    with subscriber, RawPublisher(feed) as publisher:
        publisher.confirms = False
        wait_until(lambda: asked(publisher) == before, what="the subscriber is reconnected")

        def asks_again() -> bool:
            publisher.heartbeat()
            return bool(asked(publisher) - before)

        wait_until(asks_again)


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_a_silent_publisher_keeps_its_open_connection(transport: Any) -> None:
    """A publisher that waits for a slow subscriber is silent: a reconnect would lose what it sends meanwhile."""
    feed = msgspec.structs.replace(Feed.local("silent", slices=1, transport=transport), heartbeat_ns=10_000_000)
    subscriber = Subscriber(feed, slow=PATIENT)
    subscriber.on(b"")(nothing)
    with RawPublisher(feed) as publisher:
        socket = publisher._sockets[0, 0]
        news = publisher._call(lambda: socket.get_monitor_socket(zmq.EVENT_ACCEPTED))
        with subscriber:
            state = subscriber._supervisor._slices[0].state
            for _ in range(5):
                looked_ns = state.look_again_at_ns
                wait_until(lambda: state.look_again_at_ns != looked_ns, what="a check of a silent line")
        is_again = publisher._call(lambda: news.recv_multipart() and news.poll(0))
        publisher._call(socket.disable_monitor)
        publisher._call(news.close)
    assert not is_again


def test_both_lines_are_reconnected_if_neither_was_ever_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription, "_UNHEARD_NS", 100_000_000)
    feed = msgspec.structs.replace(Feed.local("subscriber", slices=1, lines=2), heartbeat_ns=20_000_000)
    subscriber = Subscriber(feed, slow=PATIENT)
    subscriber.on(b"")(nothing)
    first, second = feed.slices[0].endpoints
    with PlainPublisher(first) as one, PlainPublisher(second) as other:
        starting = threading.Thread(target=start_in_vain, args=(subscriber,))
        starting.start()
        try:
            for _ in range(3):
                one.accept().close()
            with other.accept(), other.accept():
                pass
        finally:
            subscriber.terminate()
            starting.join()


def start_in_vain(subscriber: Subscriber) -> None:
    with pytest.raises(SubscriberError, match="ended before its subscriptions were confirmed"):
        subscriber.start(60)


def accepted_by(publisher: RawPublisher) -> set[bytes]:
    """Return the acceptances of the subscriber; a new connection repeats earlier ones."""
    return {said for said in publisher.subscriptions() if said.startswith(ACCEPT_KEY)}


@pytest.mark.parametrize("is_killed", [False, True])
def test_first_messages_of_a_key_lost_with_their_connection_are_a_gap(is_killed: bool) -> None:
    """The publisher had sent nothing when it confirmed, so the subscriber expects its first message."""
    feed = one_slice()
    subscriber, got = Subscriber(feed, slow=PATIENT), Collector()
    subscriber.on(b"")(got.message)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        wait_until(lambda: accepted_by(publisher), 60, "it is confirmed")
        before = accepted_by(publisher)
    with RawPublisher(feed, publisher.epoch + is_killed) as publisher:
        wait_until(lambda: accepted_by(publisher) - before, 60, "it is confirmed again")
        publisher.sequences[0] = 5
        publisher.send(publisher.encode([(b"T", b"sixth")]))
        publisher.send(publisher.encode([(b"T", b"seventh")]))
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert got.payloads == [b"sixth", b"seventh"]
    assert subscriber.statistics().received.gaps == 5
