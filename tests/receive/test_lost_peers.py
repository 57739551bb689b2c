"""Publishers that restart or fall silent; `tests/torture` kills publishers and subscribers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
import zmq

from blackbox import Feed, Publisher
from blackbox.block.form.format import ACCEPT_KEY, CONFIRM_KEY, NONCE_BYTES
from blackbox.feed.slice import Slice
from blackbox.receive.publishers import lines
from blackbox.receive.publishers.lines import Lines
from blackbox.testing import RawPublisher, wait_until
from tests.receive.subscribers import one_slice, start_in_vain, subscribed
from tests.zmtp import MORE, PlainPublisher, frame


def test_a_subscriber_of_a_restarted_publisher_counts_once_all_its_filters_are_active() -> None:
    """libzmq sends the filters again in any order, so the first one does not imply the others."""
    topics = [b"%08d" % number for number in range(2_000)]
    feed = Feed.local("subscriber", slices=1, key_bytes=8)
    subscriber, got = subscribed(feed, *topics)
    for run in range(3):
        with Publisher(feed, when_full="wait") as publisher:
            if run == 0:
                subscriber.start(timeout=60)
                assert subscriber.statistics().received.subscriptions == 2_000
            publisher.wait_for_subscribers(topics[0])
            for topic in reversed(topics):
                publisher.publish(topic, b"%d" % run)
            messages = got.wait(2_000 * (run + 1))
            assert sorted(m.topic for m in messages[2_000 * run :]) == topics
    subscriber.run(until_end=True)
    assert len(got) == 6_000
    assert subscriber.statistics().received.gaps == 0


def test_a_subscriber_on_inproc_reconnects_to_a_restarted_publisher_but_not_to_a_silent_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reconnect to a slow publisher would lose what it sends meanwhile."""
    looks, connections = [0], [0]
    look, connect = Lines.reconnect_silent, Lines._reconnect

    def note_look(self: Lines) -> None:
        look(self)
        looks[0] += 1

    def note_connection(self: Lines, line: int) -> None:
        connections[0] += 1
        connect(self, line)

    def wait_for_looks() -> None:
        before = looks[0]
        wait_until(lambda: looks[0] > before + 5, what="looks at a silent publisher")

    monkeypatch.setattr(Lines, "reconnect_silent", note_look)
    monkeypatch.setattr(Lines, "_reconnect", note_connection)
    feed = Feed(name="restarted", slices=(Slice(endpoints=("inproc://restarted",)),), heartbeat_ns=10_000_000)
    subscriber, got = subscribed(feed)
    with RawPublisher(feed) as raw:
        subscriber.start()
        raw.send(raw.encode([(b"A", b"1")]))
        wait_for_looks()
        assert connections == [0]
    wait_for_looks()
    with Publisher(feed) as publisher:
        publisher.wait_for_subscribers(b"A", timeout=60)
        publisher.publish(b"A", b"2")
    subscriber.run(until_end=True)
    assert got.payloads == [b"1", b"2"]


def test_a_silent_line_is_logged_once_and_asked_again_until_it_answers(caplog: pytest.LogCaptureFixture) -> None:
    """A publisher with an outbox continues its epoch, so only the silence shows that it was restarted."""
    subscriber, _ = subscribed(feed := one_slice(heartbeat_ns=10_000_000))

    def asked(publisher: RawPublisher) -> set[bytes]:
        return {each for each in publisher.subscriptions() if each.startswith(CONFIRM_KEY)}

    with RawPublisher(feed) as publisher:
        subscriber.start()
        before = asked(publisher)
    wait_until(lambda: "is silent but has not closed" in caplog.text, what="the silence is logged")
    with subscriber, RawPublisher(feed) as publisher:
        publisher.confirms = False
        wait_until(lambda: asked(publisher) == before, what="the subscriber is reconnected")
        assert caplog.text.count("is silent") == 1

        def asks_again() -> bool:
            publisher.heartbeat()
            return bool(asked(publisher) - before)

        wait_until(asks_again)
        assert f"feed {feed.name!r} slice 0 epoch {publisher.epoch}: the publisher at" in caplog.text

        def is_back() -> bool:
            publisher.heartbeat()
            return "sends again" in caplog.text

        wait_until(is_back, what="the end of the silence is logged")
        assert caplog.text.count("sends again") == 1


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_a_silent_publisher_keeps_its_open_connection(transport: Any) -> None:
    """A publisher that waits for a slow subscriber is silent: a reconnect would lose what it sends meanwhile."""
    feed = msgspec.structs.replace(Feed.local("silent", slices=1, transport=transport), heartbeat_ns=10_000_000)
    subscriber, _ = subscribed(feed)
    with RawPublisher(feed) as publisher:
        socket = publisher._sockets[0, 0]
        news = publisher._call(lambda: socket.get_monitor_socket(zmq.EVENT_ACCEPTED))
        with subscriber:
            state = subscriber._supervisor.slices.running[0].status.state
            for _ in range(5):
                looked_ns = state.look_again_at_ns
                wait_until(lambda: state.look_again_at_ns != looked_ns, what="a check of a silent line")
        is_again = publisher._call(lambda: news.recv_multipart() and news.poll(0))
        publisher._call(socket.disable_monitor)
        publisher._call(news.close)
    assert not is_again


@pytest.mark.parametrize("junk_bytes", [8, 9])
def test_a_silent_publisher_keeps_the_connection_of_an_unaligned_answer(junk_bytes: int) -> None:
    """An answer that shares libzmq's buffer with earlier bytes is copied before it is read."""
    feed = msgspec.structs.replace(Feed.local("silent", slices=1), heartbeat_ns=10_000_000)
    subscriber, _ = subscribed(feed)
    with PlainPublisher(feed.slices[0].endpoints[0]) as publisher, ThreadPoolExecutor(1) as pool:
        started = pool.submit(subscriber.start, 60)
        with publisher.accept() as peer:
            heard = b""
            while len(heard.partition(CONFIRM_KEY)[2]) < NONCE_BYTES:
                heard += peer.recv(4_096)
            key = CONFIRM_KEY + heard.partition(CONFIRM_KEY)[2][:NONCE_BYTES]
            answer = RawPublisher(feed)._control(key, (0, {}), 0, 0)
            parts = [frame(bytes(part), flags) for part, flags in zip(answer.frames, (MORE, MORE, 0), strict=True)]
            peer.sendall(frame(bytes(junk_bytes)) + b"".join(parts))
            started.result()
            state = subscriber._supervisor.slices.running[0].status.state
            for _ in range(10):
                looked_ns = state.look_again_at_ns
                wait_until(lambda: state.look_again_at_ns != looked_ns, what="a check of a silent line")
            assert not publisher.has_another
            subscriber.terminate()


def test_both_lines_are_reconnected_if_neither_was_ever_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_UNHEARD_NS", 100_000_000)
    feed = msgspec.structs.replace(Feed.local("subscriber", slices=1, lines=2), heartbeat_ns=20_000_000)
    subscriber, _ = subscribed(feed)
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


@pytest.mark.parametrize("is_killed", [False, True])
def test_first_messages_of_a_key_lost_with_their_connection_are_a_gap(is_killed: bool) -> None:
    """The publisher had sent nothing when it confirmed, so the subscriber expects its first message."""
    subscriber, got = subscribed(feed := one_slice())

    def accepted_by(publisher: RawPublisher) -> set[bytes]:
        """Return the acceptances of the subscriber; a new connection repeats earlier ones."""
        return {said for said in publisher.subscriptions() if said.startswith(ACCEPT_KEY)}

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
