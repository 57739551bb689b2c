"""Hosts that vanish close nothing: pings tell them from peers that are slow."""

from __future__ import annotations

import threading

import numpy
import zmq

from blackbox import Publisher, SlowPolicy
from blackbox.block.acknowledgement import MOST_BYTES
from blackbox.block.encode import TopicTable
from blackbox.monitor.heartbeats import Heartbeats, LineState
from blackbox.publish.guard import Guard, _Record
from blackbox.publish.sender_state import SenderState
from blackbox.publish.subscriptions import Subscriptions
from blackbox.subscribe.slow_subscriber import Alerts
from blackbox.testing import wait_until
from blackbox.transport.connections import Connection
from tests.black_hole import BlackHole
from tests.publish.subscribers import collected, held_up, one_slice

_PING_BYTES = 9
_MORE_THAN_ARE_WAITED_FOR = 8
_LARGE = numpy.zeros((60_000, 1_000), numpy.uint8)
"""More than the sockets' buffers and the queues hold."""


def publishing(publisher: Publisher) -> threading.Thread:
    """Start to publish `_LARGE`, and return when the publisher waits."""
    rows = (b"T",), numpy.zeros(len(_LARGE), int), _LARGE
    thread = threading.Thread(target=publisher.publish_many, args=rows)
    thread.start()
    wait_until(lambda: publisher.statistics().waits > 2, 60, "the publisher waits")
    return thread


def test_a_vanished_subscriber_holds_up_a_waiting_publisher_for_some_pings_only() -> None:
    feed = one_slice(block_bytes=65_536)
    with BlackHole(feed.slices[0].endpoints[0]) as hole, Publisher(feed, when_full="wait", hwm_blocks=2) as publisher:
        subscriber, got = collected(hole.feed(feed))
        with subscriber:
            publisher.wait_for_subscribers(b"")
            pinged = hole.sent_up + _PING_BYTES
            wait_until(lambda: hole.sent_up >= pinged, 30, "it pings")
            hole.lose()
            thread = publishing(publisher)
            thread.join(60)
            assert not thread.is_alive()
            publisher.flush()
            assert publisher.statistics().subscribers == 0
            hole.recover()
            publisher.wait_for_subscribers(b"", timeout=30)
            publisher.publish(b"T", b"after")
            wait_until(lambda: got.payloads[-1:] == [b"after"], 30, "the subscriber is back")
    assert subscriber.statistics().received.gaps > 0


def test_a_slow_subscriber_is_not_taken_for_a_vanished_one() -> None:
    """It reads nothing for longer than a vanished one is waited for, but it pings."""
    feed = one_slice(block_bytes=65_536)
    with BlackHole(feed.slices[0].endpoints[0]) as hole:
        subscriber, gate = held_up(hole.feed(feed))
        with Publisher(feed, when_full="wait", hwm_blocks=2) as publisher:
            subscriber.start()
            thread = publishing(publisher)
            enough = hole.sent_up + _MORE_THAN_ARE_WAITED_FOR * _PING_BYTES
            wait_until(lambda: hole.sent_up >= enough, 60, "it pings on")
            gate.open.set()
            thread.join()
        subscriber.run(until_end=True)
        assert hole.connections == 1
    assert gate.messages == len(_LARGE)
    assert subscriber.statistics().received.gaps == 0


def test_who_watches_heartbeats_hears_a_publisher_whose_host_came_back() -> None:
    feed = one_slice(heartbeat_ns=50_000_000)
    with BlackHole(feed.slices[0].endpoints[0]) as hole, Publisher(feed), Heartbeats(hole.feed(feed)) as heartbeats:
        (line,) = heartbeats.lines

        def is_(state: LineState) -> bool:
            heartbeats.listen(0.01)
            return line.state is state

        wait_until(lambda: is_(LineState.ALIVE), what="it is heard")
        hole.lose()
        wait_until(lambda: is_(LineState.SILENT), what="it is silent")
        hole.recover()
        wait_until(lambda: is_(LineState.ALIVE), 60, "it is heard again")
    assert hole.connections == 2


def test_alerts_reach_a_console_whose_host_came_back() -> None:
    with zmq.Context() as context, context.socket(zmq.PULL) as console:
        console.linger = 0
        port = console.bind_to_random_port("tcp://127.0.0.1")
        with BlackHole(f"tcp://127.0.0.1:{port}") as hole:
            alerts = Alerts(one_slice(), SlowPolicy("warn", console=hole.endpoint, max_lag_ns=1))
            alerts.open()
            wait_until(lambda: hole.connections == 1, what="the console is reached")
            hole.lose()
            hole.recover()
            wait_until(lambda: hole.connections == 2, 60, "the console is reached anew")
            alerts.check(0, lambda: (2, 2))
            assert console.poll(10_000)
            assert console.recv().startswith(b"slow subscriber: feed 'publisher' slice 0 lags")
            alerts.close()


def test_pings_of_months_are_no_bytes_without_a_subscription() -> None:
    key = TopicTable(numpy.zeros(8, numpy.uint8), numpy.zeros(1, numpy.int64), numpy.zeros(1, numpy.int32))
    subscriptions = Subscriptions(one_slice(), 1, 1, key)
    guard = Guard(0, subscriptions, SenderState(), lambda: None, drop=True)
    connection, record = Connection(-1, (), ("127.0.0.1", 1)), _Record(1 << 20, 0.0)
    for _ in range(90 * 24):
        connection.received += 3_600 * _PING_BYTES
        guard._judge_sent(connection, record, 3_600.0)
    assert record.doubted is None
    for _ in range(3):
        connection.received += 1 << 20
        guard._judge_sent(connection, record, 4.0)
    assert record.doubted is not None
    guard.close()


def test_answers_that_were_asked_for_are_no_flood() -> None:
    key = TopicTable(numpy.zeros(8, numpy.uint8), numpy.zeros(1, numpy.int64), numpy.zeros(1, numpy.int32))
    subscriptions = Subscriptions(one_slice(), 1, 1, key)
    guard = Guard(0, subscriptions, SenderState(), lambda: None, drop=True)
    connection, record = Connection(-1, (), ("127.0.0.1", 1)), _Record(1 << 20, 0.0)
    for _ in range(100):
        subscriptions.times_asked += 2_000
        guard.look()
        connection.received += 2_000 * 2 * MOST_BYTES
        subscriptions.heard[-1] = subscriptions.times_asked
        guard._judge_sent(connection, record, 0.0)
    assert guard.put_out == 0
    assert record.burst > 0
    guard.close()
