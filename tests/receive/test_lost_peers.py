"""Publishers that restart, fall silent or send bytes without end; `tests/torture` kills publishers and subscribers."""

from __future__ import annotations

import logging
import select
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
import zmq

from blackbox import Feed, Publisher, SlowPolicy, Subscriber
from blackbox.block.form.format import ACCEPT_KEY, CONFIRM_KEY, NONCE_BYTES
from blackbox.feed.slice import Slice
from blackbox.receive.publishers import lines
from blackbox.receive.publishers.flood_guard import FloodGuard
from blackbox.receive.publishers.lines import Lines
from blackbox.receive.slices.options import Options, SliceSettings
from blackbox.receive.slices.slice_status import SliceStatus
from blackbox.receive.supervise import confirmation_wait
from blackbox.testing import RawPublisher, wait_until
from blackbox.transport.tcp_info import Connection
from blackbox.transport.wakeup import Pipe
from tests.receive.subscribers import numbers_of, one_slice, start_in_vain, subscribed
from tests.zmtp import MORE, PlainPublisher, frame

PART = memoryview(frame(bytes(1 << 20), MORE))
MOST_MIB = 4_000


def test_a_restarted_publisher_is_a_new_epoch_without_a_gap_once_all_filters_are_active(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """libzmq sends the filters again in any order, so the first one does not imply the others."""
    topics = [b"%08d" % number for number in range(2_000)]
    subscriber, got = subscribed(feed := one_slice(key_bytes=8), *topics)
    for run in range(3):
        with caplog.at_level(logging.INFO, "blackbox"), Publisher(feed, when_full="wait") as publisher:
            if run == 0:
                subscriber.start(timeout=200)
                assert subscriber.statistics().received.subscriptions == 2_000
            publisher.wait_for_subscribers(topics[0])
            for topic in reversed(topics):
                publisher.publish(topic, b"%d" % run)
            messages = got.wait(2_000 * (run + 1))[2_000 * run :]
            assert sorted((m.topic, 1_999 - m.sequence) for m in messages) == list(
                zip(topics, range(2_000), strict=True)
            )
        assert f"slice 0: publisher epoch {publisher.epoch} began" in caplog.text
    subscriber.run(until_end=True)
    received = subscriber.statistics().received
    assert (len(got), received.epochs, received.gaps, received.stale) == (6_000, 3, 0, 0)


def wait_for_checks(subscriber: Subscriber) -> None:
    """Wait until a silent line was checked ten times."""
    state = subscriber._supervisor.slices.running[0].status.state
    for _ in range(10):
        looked_ns = state.look_again_at_ns
        wait_until(lambda: state.look_again_at_ns != looked_ns, what="a check of a silent line")


def test_a_subscriber_on_inproc_reconnects_to_a_restarted_publisher_but_not_to_a_silent_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reconnect to a slow publisher would lose what it sends meanwhile."""
    connections, connect = [0], Lines._reconnect

    def note_connection(self: Lines, line: int) -> None:
        connections[0] += 1
        connect(self, line)

    monkeypatch.setattr(Lines, "_reconnect", note_connection)
    feed = Feed(name="restarted", slices=(Slice(endpoints=("inproc://restarted",)),), heartbeat_ns=10_000_000)
    subscriber, got = subscribed(feed)
    with RawPublisher(feed) as raw:
        subscriber.start()
        raw.send(raw.encode([(b"A", b"1")]))
        wait_for_checks(subscriber)
        assert connections == [0]
    wait_for_checks(subscriber)
    with Publisher(feed) as publisher:
        publisher.wait_for_subscribers(b"A")
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
    subscriber, _ = subscribed(feed := one_slice(transport=transport, heartbeat_ns=10_000_000))
    with RawPublisher(feed) as publisher:
        socket = publisher._sockets[0, 0]
        news = publisher._call(lambda: socket.get_monitor_socket(zmq.EVENT_ACCEPTED))
        with subscriber:
            wait_for_checks(subscriber)
        is_again = publisher._call(lambda: news.recv_multipart() and news.poll(0))
        publisher._call(socket.disable_monitor)
        publisher._call(news.close)
    assert not is_again


@pytest.mark.parametrize("junk_bytes", [8, 9])
def test_a_silent_publisher_keeps_the_connection_of_an_unaligned_answer(junk_bytes: int) -> None:
    """An answer that shares libzmq's buffer with earlier bytes is copied before it is read."""
    subscriber, _ = subscribed(feed := one_slice(heartbeat_ns=10_000_000))
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
            wait_for_checks(subscriber)
            assert not publisher.has_another
            subscriber.terminate()


def test_both_lines_are_reconnected_if_neither_was_ever_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_UNHEARD_NS", 100_000_000)
    subscriber, _ = subscribed(feed := one_slice(lines=2, heartbeat_ns=20_000_000))
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
        wait_until(lambda: accepted_by(publisher), what="it is confirmed")
        before = accepted_by(publisher)
    with RawPublisher(feed, publisher.epoch + is_killed) as publisher:
        wait_until(lambda: accepted_by(publisher) - before, what="it is confirmed again")
        publisher.sequences[0] = 5
        publisher.send(publisher.encode([(b"T", b"sixth")]))
        publisher.send(publisher.encode([(b"T", b"seventh")]))
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert got.payloads == [b"sixth", b"seventh"]
    assert subscriber.statistics().received.gaps == 5


def send_parts(peer: socket.socket, most_mib: int) -> int:
    """Send parts of an endless message; return the MiB sent until the peer disconnected, at most `most_mib`.

    Its replies are read: a peer that disconnects with a full window may otherwise be noticed a minute later.
    """
    peer.setblocking(False)
    poller, sent = select.poll(), 0
    poller.register(peer, select.POLLIN | select.POLLOUT)
    while sent < most_mib * len(PART):
        events = dict(poller.poll(60_000)).get(peer.fileno(), 0)
        assert events, "it neither reads nor disconnects"
        try:
            if events & ~select.POLLOUT and not peer.recv(1 << 16):
                break
            if events & select.POLLOUT:
                sent += peer.send(PART[sent % len(PART) :])
        except OSError:
            break
    return sent // len(PART)


def send_without_end(publisher: PlainPublisher) -> int:
    """Send one endless message to the next subscriber; return the MiB sent until it disconnected."""
    with publisher.accept() as peer:
        return send_parts(peer, MOST_MIB)


def test_a_message_that_never_ends_costs_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    subscriber, _ = subscribed(feed := one_slice(), hwm_blocks=16)
    with PlainPublisher(feed.slices[0].endpoints[0]) as publisher:
        starting = threading.Thread(target=start_in_vain, args=(subscriber,))
        starting.start()
        sent = [send_without_end(publisher) for _ in range(2)]
        wait_until(lambda: subscriber.statistics().received.ended_connections == 2)
        subscriber.terminate()
        starting.join()
    assert all(80 <= each < MOST_MIB for each in sent)
    assert f"slice 0: closed the connection to {feed.slices[0].endpoints[0][6:]}: " in caplog.text


def test_the_other_line_of_an_endless_message_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirmation_wait, "_SECOND_LINE_S", 0.3)
    feed = one_slice(lines=2, heartbeat_ns=3_600 * 10**9)  # a silent line would reconnect
    one_line = Feed(name=feed.name, slices=(Slice(endpoints=feed.slices[0].endpoints[:1]),))
    subscriber, got = subscribed(feed, hwm_blocks=16)
    sent: list[int] = []
    with PlainPublisher(feed.slices[0].endpoints[1]) as other, RawPublisher(one_line) as publisher:
        flooding = threading.Thread(target=lambda: sent.append(send_without_end(other)))
        subscriber.start()  # with one line only
        flooding.start()
        number = 0
        while flooding.is_alive():
            publisher.send(publisher.encode([(b"T", b"%d" % number)]))
            number += 1
            got.wait(number)
        subscriber.stop()
    assert sent[0] < MOST_MIB
    assert numbers_of(got) == list(range(number))
    assert subscriber.statistics().received.ended_connections == 1


def status_of(*endpoints: str) -> SliceStatus:
    feed = Feed(name="floods", slices=(Slice(endpoints=endpoints),))
    options = Options(workers=1, slow=SlowPolicy())
    return SliceStatus(SliceSettings(feed, options, Pipe()), 0, None, None)


class Flooded:
    """A SUB socket, a publisher that floods it, and its guard."""

    def __init__(self) -> None:
        (endpoint,) = one_slice().slices[0].endpoints
        self.status = status_of(endpoint)
        self.status.state.reads = 1
        with ExitStack() as stack:
            publisher = stack.enter_context(PlainPublisher(endpoint))
            context = stack.enter_context(zmq.Context())
            sub = stack.enter_context(context.socket(zmq.SUB))
            self.guard = FloodGuard(sub, self.status, hwm_blocks=0)
            stack.callback(self.guard.close)
            sub.connect(endpoint)
            sub.subscribe(b"")
            self._peer = stack.enter_context(publisher.accept())
            self._stack = stack.pop_all()

    def __enter__(self) -> Flooded:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def flood(self, mib: int) -> None:
        send_parts(self._peer, mib)


def test_no_peer_is_disconnected_while_the_slice_thread_does_not_read() -> None:
    with Flooded() as flooded:
        guard = flooded.guard

        def has_seen(too_much: bool) -> bool:
            guard.look()
            return any(mark.reads or not too_much for mark in guard._marks.values())

        wait_until(lambda: has_seen(False), what="it is connected")
        flooded.flood(120)
        wait_until(lambda: has_seen(True), what="more bytes arrived than allowed")
        state, counters = flooded.status.state, flooded.status.counters.slice
        for state.reads in (1, 2):  # at least one block may be on its way to it
            for _ in range(20):
                guard.look()
            assert counters.ended_connections == 0
        state.reads = 3
        guard.look()
        assert counters.ended_connections == 1


def test_a_failed_check_is_logged_once_and_the_next_ones_continue(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures, look = iter(range(3)), FloodGuard.look

    def fail_first(self: FloodGuard) -> None:
        if next(failures, None) is not None:
            raise OSError("the system does not tell")
        look(self)

    monkeypatch.setattr(FloodGuard, "look", fail_first)
    with Flooded() as flooded:
        flooded.guard.start()
        wait_until(lambda: flooded.guard._marks, what="a check succeeded")

        def is_ended() -> bool:
            flooded.flood(10)
            flooded.status.state.reads += 1
            return flooded.status.counters.slice.ended_connections == 1

        wait_until(is_ended)
    assert next(failures, None) is None
    assert caplog.text.count("slice 0: the flood guard's check failed, it continues") == 1


@pytest.mark.parametrize("host", ["127.0.0.2", "localhost"])
def test_lines_on_the_same_port_of_different_hosts_are_distinguished(host: str) -> None:
    """If the feed names the host differently, it may be either; the line heard last counts."""
    (endpoint,) = one_slice().slices[0].endpoints
    port = int(endpoint.rpartition(":")[2])
    with zmq.Context() as context, context.socket(zmq.SUB) as sub:
        other = f"tcp://{host}:{port}"
        guard = FloodGuard(sub, status_of(endpoint, other), hwm_blocks=0)
        assert guard._lines_of(Connection(-1, (), ("127.0.0.1", port))) == [0]
        assert guard._lines_of(Connection(-1, (), ("127.0.0.2", port))) == ([1] if host == "127.0.0.2" else [0, 1])
        guard.close()
