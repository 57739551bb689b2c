"""A publisher that sends bytes without end but no block cannot fill the memory of its subscribers."""

from __future__ import annotations

import select
import threading
from contextlib import ExitStack, suppress

import msgspec
import pytest
import zmq

from blackbox import Feed, SlowPolicy
from blackbox.feed.slice import Slice
from blackbox.receive.publishers.flood_guard import FloodGuard
from blackbox.receive.slices.options import Options, SliceSettings
from blackbox.receive.slices.slice_status import SliceStatus
from blackbox.testing import RawPublisher, wait_until
from blackbox.transport.tcp_info import Connection
from blackbox.transport.wakeup import Pipe
from tests.receive.subscribers import numbers_of, one_slice, start_in_vain, subscribed
from tests.zmtp import MORE, PlainPublisher, frame

PART = memoryview(frame(bytes(1 << 20), MORE))
MOST_MIB = 4_000


def send_without_end(publisher: PlainPublisher) -> int:
    """Send one endless message to the next subscriber; return the MiB sent until it disconnected.

    Its replies are read: a peer that disconnects with a full window may otherwise be noticed a minute later.
    """
    with publisher.accept() as peer:
        peer.setblocking(False)
        poller, sent = select.poll(), 0
        poller.register(peer, select.POLLIN | select.POLLOUT)
        while sent < MOST_MIB * len(PART):
            events = dict(poller.poll(60_000)).get(peer.fileno(), 0)
            try:
                if events & ~select.POLLOUT and not peer.recv(1 << 16):
                    break
                if events & select.POLLOUT:
                    sent += peer.send(PART[sent % len(PART) :])
            except OSError:
                break
    return sent // len(PART)


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


def test_the_other_line_of_an_endless_message_continues() -> None:
    feed = Feed.local("floods", slices=1, lines=2)
    feed = msgspec.structs.replace(feed, heartbeat_ns=3_600 * 10**9)  # a silent line would reconnect
    one_line = Feed(name=feed.name, slices=(Slice(endpoints=feed.slices[0].endpoints[:1]),))
    subscriber, got = subscribed(feed, hwm_blocks=16)
    sent: list[int] = []
    with PlainPublisher(feed.slices[0].endpoints[1]) as other, RawPublisher(one_line) as publisher:
        flooding = threading.Thread(target=lambda: sent.append(send_without_end(other)))
        subscriber.start(timeout=3.0)  # with one line only
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
        with suppress(OSError):
            for _ in range(mib):
                self._peer.sendall(PART)


def test_no_peer_is_disconnected_while_the_slice_thread_does_not_read() -> None:
    with Flooded() as flooded:
        guard = flooded.guard

        def has_seen(too_much: bool) -> bool:
            guard.look()
            return any(mark.reads or not too_much for mark in guard._marks.values())

        wait_until(lambda: has_seen(False), 60, "it is connected")
        flooded.flood(120)
        wait_until(lambda: has_seen(True), 60, "more bytes arrived than allowed")
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
        wait_until(lambda: flooded.guard._marks, 60, "a check succeeded")

        def is_ended() -> bool:
            flooded.flood(10)
            flooded.status.state.reads += 1
            return flooded.status.counters.slice.ended_connections == 1

        wait_until(is_ended, 60)
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
