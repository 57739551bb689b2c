"""Hosts that vanish close nothing: TCP probes distinguish them from slow peers."""

from __future__ import annotations

import os
import sys
import textwrap

import pytest

from blackbox.block.form.ack_format import MOST_BYTES
from blackbox.publish.listeners.demand import Demand
from blackbox.publish.listeners.queue_policy import QueuePolicy
from blackbox.publish.listeners.traffic import Traffic, TrafficLimits
from blackbox.publish.listeners.wanted import WantedKeys
from blackbox.publish.send.sender_state import SenderState
from blackbox.testing import RawPublisher, wait_until
from blackbox.transport.tcp_info import Connection
from tests.publish.subscribers import one_slice
from tests.support import Script

_PING_BYTES = 9
_LOOPBACK = """
import subprocess
def let_loopback_be(state):
    subprocess.run(["ip", "link", "set", "lo", state], check=True)
let_loopback_be("up")
"""
"""While it is down every packet is lost without an error."""


def limits_of() -> tuple[TrafficLimits, WantedKeys]:
    subscriptions = WantedKeys(one_slice(), 0, 1, Demand())
    return TrafficLimits(subscriptions, SenderState(), QueuePolicy(waits=False, hwm_blocks=100)), subscriptions


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root makes network namespaces, on Linux")
def test_a_vanished_host_is_given_up_after_seconds() -> None:
    """By a publisher that waits for a subscriber, and by a sender."""
    code = """
        import zmq
        from blackbox.transport.keep_alive import keep_alive
        subscriber, got = Subscriber(feed, slow=SlowPolicy(max_lag=3_600)), Collector()
        subscriber.on_batch(b"")(got.batch)
        more_than_fits = numpy.zeros((60_000, 1_000), numpy.uint8)
        with Publisher(feed, when_full="wait", hwm_blocks=2) as publisher:
            subscriber.start(timeout=120)
            let_loopback_be("down")
            publisher.publish_many((b"T",), numpy.zeros(len(more_than_fits), int), more_than_fits)
            publisher.flush()
            say(publisher.statistics().subscribers)  # the guard or TCP itself, whoever came first
            let_loopback_be("up")
            publisher.wait_for_subscribers(b"")
            publisher.publish(b"T", b"after")
            wait_until(lambda: got.payloads[-1:] == [b"after"], what="the subscriber is back")
        subscriber.run(until_end=True)
        say(subscriber.statistics().received.gaps > 0)
        with zmq.Context() as context, context.socket(zmq.PUSH) as push, context.socket(zmq.PULL) as pull:
            push.linger = pull.linger = 0
            keep_alive(push, must_take=True)
            news = push.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
            push.connect(f"tcp://127.0.0.1:{pull.bind_to_random_port('tcp://127.0.0.1')}")
            say(news.poll(60_000) and len(news.recv_multipart()))
            let_loopback_be("down")
            push.send(b"not taken")
            say(news.poll(60_000) and len(news.recv_multipart()))
            push.disable_monitor()
    """
    feed = one_slice(block_bytes=65_536)
    with Script(_LOOPBACK + textwrap.dedent(code), feed, ("unshare", "-n")) as script:
        for line in ("0", "True", "2", "2"):
            script.expect(line)


def test_a_host_that_answers_is_kept_however_slow_the_peer_is() -> None:
    limits, _ = limits_of()
    connection, traffic = Connection(-1, (), ("127.0.0.1", 1)), Traffic(1 << 20, 0.0)

    def look(at: float) -> str:
        limits.now = at
        return limits._judge_answered(connection, traffic)

    for second in range(100):
        connection.unsent, connection.unanswered = 1 << 20, second % 2
        connection.segments += 1
        assert look(float(second)) == ""
    connection.unanswered = 0
    assert look(200.0) == ""
    connection.unanswered = 1
    assert [look(float(second)) for second in range(200, 205)] == [""] * 5
    assert look(205.0) == "its host has not answered for 5.0 s"


def test_a_killed_publisher_does_not_end_a_subscriber_with_full_queues() -> None:
    """With ZMTP pings libzmq would end the process here: https://github.com/zeromq/libzmq/issues/4364."""
    feed = one_slice(block_bytes=4_096, heartbeat_ns=100_000_000)
    code = """
        subscriber = Subscriber(feed, workers=1, queue_blocks=1, hwm_blocks=1, slow=SlowPolicy(max_lag=3_600))
        opened = threading.Event()
        @subscriber.on_batch(b"")
        def held_up(batch):
            say("held up") if not opened.is_set() else None
            opened.wait()
        subscriber.start(timeout=120)
        input()
        opened.set()
        input()
        subscriber.stop()
        say("stopped")
    """
    publishing = """
        payloads = numpy.zeros((20_000, 1_000), numpy.uint8)
        with Publisher(feed, when_full="wait", hwm_blocks=1) as publisher:
            publisher.wait_for_subscribers(b"", timeout=120)
            threading.Thread(
                target=publisher.publish_many, args=((b"T",), numpy.zeros(len(payloads), int), payloads), daemon=True
            ).start()
            wait_until(lambda: publisher.statistics().waits > 3, what="the queues are full")
            say("full")
            input()
    """
    with Script(publishing, feed) as publisher, Script(code, feed) as subscriber:
        subscriber.expect("held up")
        publisher.expect("full")
        publisher.kill()
        with pytest.raises(TimeoutError):
            wait_until(lambda: subscriber.process.poll() is not None, 3.0, "the subscriber has ended")
        subscriber.tell("open")
        with RawPublisher(feed):
            subscriber.tell("stop")
            subscriber.expect("stopped")


def test_months_of_pings_and_requested_answers_are_not_a_flood() -> None:
    limits, subscriptions = limits_of()
    connection, traffic = Connection(-1, (), ("127.0.0.1", 1)), Traffic(1 << 20, 0.0)

    def look(seconds: float) -> str:
        limits.begin_look()
        limits._seconds = seconds
        return limits.judge(connection, traffic)

    for _ in range(90 * 24):
        connection.received += 3_600 * _PING_BYTES
        assert look(3_600.0) == ""
    assert traffic.doubted is None
    for _ in range(100):
        subscriptions.times_asked += 2_000
        connection.received += 2_000 * 2 * MOST_BYTES
        subscriptions.heard[-1] = subscriptions.times_asked
        assert look(0.0) == ""
    assert traffic.burst > 0
    for _ in range(3):
        connection.received += 1 << 20
        look(4.0)
    assert traffic.doubted is not None
