"""`wants` and `on_demand` follow subscriptions, and a confirmed subscriber misses nothing."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import zmq
from hypothesis import example, given
from hypothesis import strategies as st

from blackbox import Publisher, Recorder, Subscriber
from blackbox.block.form.format import MOST_WANT_BYTES, WANT_KEY
from blackbox.errors import RightsError
from blackbox.publish.listeners.demand import Demand
from blackbox.receive.supervise import slice_plan
from blackbox.services.relay import requests_below as below
from blackbox.testing import wait_until
from tests.gate import Gate
from tests.publish.hostile import Peer, subscription
from tests.publish.subscribers import one_slice
from tests.receive.subscribers import subscribed
from tests.relay.relays import PATIENCE_S, chain, relayed
from tests.threads import in_threads

PREFIXES = st.text("AB", max_size=3).map(str.encode)


def not_wanted(publisher: Publisher, topic: bytes) -> None:
    wait_until(lambda: not publisher.wants(topic), PATIENCE_S, f"{topic!r} unwanted")


@given(st.lists(st.tuples(st.booleans(), PREFIXES)), st.lists(PREFIXES))
@example([(True, b"A"), (True, b"A"), (False, b"A")], [b"A", b"AB", b"B"])
def test_a_topic_is_wanted_while_a_prefix_of_it_is(changes: list[tuple[bool, bytes]], topics: list[bytes]) -> None:
    demand, counts = Demand(), Counter[bytes]()
    for comes, prefix in changes:
        if comes or counts[prefix]:
            counts[prefix] += 1 if comes else -1
            demand.change(prefix, 1 if comes else -1)
    wanted = [prefix for prefix, count in counts.items() if count]
    for topic in topics:
        assert demand.wants(topic) == any(topic.startswith(prefix) for prefix in wanted)


@pytest.mark.parametrize("key_bytes", [0, 2])
def test_wants_follows_callbacks(key_bytes: int) -> None:
    feed = one_slice(key_bytes=key_bytes)
    heard: list[tuple[bytes, bool]] = []
    with Publisher(feed) as publisher:
        publisher.on_demand(lambda prefix, is_wanted: heard.append((prefix, is_wanted)))
        assert not publisher.wants(b"AAPL.trade")
        subscriber, _ = subscribed(feed, b"AAPL.trade", b"AAPL.trade.x")
        with subscriber:
            assert heard == [(b"AAPL.trade", True)], "a shorter prefix covers longer ones"
            assert publisher.wants(b"AAPL.trade")
            assert not publisher.wants(b"AAPL.quote")
            assert not publisher.wants(b"AAPL")
            later = subscriber.on(b"MSFT")(lambda _: None)
            wait_until(lambda: publisher.wants(b"MSFT.trade"), PATIENCE_S)
            subscriber.remove(later)
            not_wanted(publisher, b"MSFT.trade")
            assert publisher.wants(b"AAPL.trade")
        not_wanted(publisher, b"AAPL.trade")


def test_a_recorder_wants_all(tmp_path: Any) -> None:
    feed = one_slice()
    with Publisher(feed) as publisher:
        with Recorder(feed, tmp_path):
            assert publisher.wants(b"whatever")
        not_wanted(publisher, b"whatever")


def test_a_connection_that_is_closed_without_a_withdrawal_wants_nothing() -> None:
    """As that of a killed process."""
    feed = one_slice()
    with Publisher(feed) as publisher:
        with Peer(feed) as peer:
            peer.ask(subscription(WANT_KEY + b"A"))
            assert publisher.wants(b"A.x")
        not_wanted(publisher, b"A.x")


def test_a_plain_socket_wants_the_prefixes_it_names_and_long_ones_are_cut() -> None:
    feed = one_slice()
    long = bytes(range(1, MOST_WANT_BYTES + 2))  # one byte too long for a prefix
    with Publisher(feed) as publisher, zmq.Context() as context, context.socket(zmq.SUB) as sub:
        sub.subscribe(b"")
        sub.subscribe(WANT_KEY + b"A")
        sub.connect(feed.slices[0].endpoints[0])
        wait_until(lambda: publisher.wants(b"A.x"), PATIENCE_S)
        assert not publisher.wants(b"B.x")
        sub.subscribe(WANT_KEY + long)
        sub.subscribe(WANT_KEY + b"B")
        wait_until(lambda: publisher.wants(b"B.x"), PATIENCE_S)
        assert not publisher.wants(long)
        with subscribed(feed, long)[0]:
            assert publisher.wants(long)
            assert not publisher.wants(long[: MOST_WANT_BYTES - 1])


def test_a_subscriber_is_confirmed_after_on_demand_has_returned() -> None:
    feed = one_slice()
    gate = Gate()
    subscriber, got = subscribed(feed, b"A")
    with Publisher(feed) as publisher:
        publisher.on_demand(lambda _prefix, is_wanted: gate.wait() if is_wanted else None)
        with in_threads(lambda: subscriber.start(PATIENCE_S)) as (thread,):
            assert gate.entered.wait(PATIENCE_S)
            assert thread.is_alive()
            assert publisher.statistics().subscribers == 0
            gate.open.set()
        publisher.publish(b"A.x", b"1")
        got.wait(1)
        subscriber.stop()


def test_on_demand_is_called_for_earlier_prefixes_in_order() -> None:
    feed = one_slice()
    heard: list[tuple[bytes, bool]] = []
    with Publisher(feed) as publisher:
        first, _ = subscribed(feed, b"A")
        with first:
            publisher.on_demand(lambda prefix, is_wanted: heard.append((prefix, is_wanted)))
            second, _ = subscribed(feed, b"A", b"B")
            with second:
                assert heard == [(b"A", True), (b"B", True)]
            wait_until(lambda: len(heard) == 3, PATIENCE_S)
        wait_until(lambda: len(heard) == 4, PATIENCE_S)
    assert heard[2:] == [(b"B", False), (b"A", False)]


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_an_on_demand_function_that_raises_is_called_again_and_does_not_block_subscribers(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    feed = one_slice()
    heard: list[bytes] = []
    with Publisher(feed) as publisher:

        @publisher.on_demand
        def broken(prefix: bytes, is_wanted: bool) -> None:
            heard.extend([prefix] * is_wanted)
            raise error(prefix, is_wanted)

        publisher.on_demand(lambda prefix, is_wanted: heard.extend([prefix] * is_wanted))
        for prefix in (b"A", b"B"):
            with subscribed(feed, prefix)[0]:
                assert heard[-2:] == [prefix, prefix]
    assert "on_demand raised when it was called with b'A', True" in caplog.text


def test_a_refusal_holds_if_a_later_function_accepts() -> None:
    demand, was_called = Demand(), threading.Event()

    def refuse(_prefix: bytes, _is_wanted: bool) -> None:
        raise RightsError("not available")

    demand.listen(refuse)
    demand.listen(lambda _prefix, _is_wanted: was_called.set())
    demand.start()
    demand.change(b"A", 1)
    assert was_called.wait(PATIENCE_S)
    demand.end()
    demand.join(PATIENCE_S)
    assert demand.refused == {b"A"}


def test_on_demand_takes_a_function_of_two_arguments() -> None:
    with pytest.raises(TypeError, match=r"expected a function of \(prefix, is_wanted\)"):
        Publisher(one_slice()).on_demand(lambda prefix: None)  # type: ignore[type-var,misc]


@pytest.mark.parametrize("relays", [0, 2])
def test_publishing_only_wanted_topics_loses_nothing_for_confirmed_subscribers(relays: int) -> None:
    """One thread publishes wanted topics while subscribers come and go."""
    feeds = chain(relays)
    topics = [b"A.x", b"A.y", b"B.x"]
    published: dict[bytes, int] = dict.fromkeys(topics, 0)
    is_over = threading.Event()

    def publish() -> None:
        while not is_over.wait(0.0005):
            for topic in topics:
                if publisher.wants(topic):
                    published[topic] += 1
                    publisher.publish(topic, b"%d" % published[topic])

    source = Publisher(feeds[0], hwm_blocks=100_000)
    with source as publisher, relayed(feeds, hwm_blocks=100_000), in_threads(publish):
        for prefix in (b"A", b"B.x", b"A.y", b"B", b"A.x"):
            subscriber, got = subscribed(feeds[-1], prefix)
            with subscriber.start(PATIENCE_S):
                before = dict(published)
                got.wait(20, PATIENCE_S)
            for topic in (topic for topic in topics if topic.startswith(prefix)):
                numbers = [int(message.payload) for message in got.messages if message.topic == topic]
                assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
                assert numbers[0] <= before[topic] + 1
        is_over.set()


def test_an_on_demand_call_blocked_in_publish_does_not_delay_close(caplog: pytest.LogCaptureFixture) -> None:
    """The messages that it publishes are not read; `close` ends the senders first, which ends the call."""
    feed = one_slice(block_bytes=4_096, max_lag_ns=3_600 * 10**9)
    gate = Gate()
    begun = threading.Event()
    subscriber = Subscriber(feed)
    subscriber.on(b"A")(gate.message)
    with Publisher(feed, when_full="wait", hwm_blocks=1) as publisher, subscriber.start(PATIENCE_S):

        @publisher.on_demand
        def fill(_prefix: bytes, _is_wanted: bool) -> None:
            while True:
                publisher.publish(b"A", bytes(1_000))
                begun.set()

        assert begun.wait(PATIENCE_S)
        assert gate.entered.wait(PATIENCE_S)
        publisher.close(timeout=0.5)
        gate.open.set()
        subscriber.stop()
    assert "on_demand raised when it was called with b'A', True" in caplog.text


def test_a_subscriber_with_too_many_prefixes_wants_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slice_plan, "_MOST_WANTS", 3)
    feed = one_slice()
    with Publisher(feed) as publisher:
        with subscribed(feed, b"A", b"B", b"C")[0]:
            assert not publisher.wants(b"D")
        with subscribed(feed, b"A", b"B", b"C", b"E")[0]:
            assert publisher.wants(b"D")


def test_demand_passes_relays_and_too_many_prefixes_below_one_want_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(below, "_MOST_WANTS_ABOVE", 3)
    feeds = chain(2, key_bytes=2)
    with Publisher(feeds[0]) as publisher, relayed(feeds):
        first, _ = subscribed(feeds[-1], b"A", b"B", b"C.trade")
        second, _ = subscribed(feeds[-1], b"E")
        with first.start(PATIENCE_S):
            assert publisher.wants(b"C.trade")
            assert not publisher.wants(b"C.quote")
            with second.start(PATIENCE_S):
                assert publisher.wants(b"C.quote")
            not_wanted(publisher, b"C.quote")
            assert publisher.wants(b"C.trade")
        not_wanted(publisher, b"C.trade")


def test_threads_may_close_a_publisher_at_the_same_time() -> None:
    with Publisher(one_slice()) as publisher, ThreadPoolExecutor(4) as pool:
        for closing in [pool.submit(publisher.close) for _ in range(4)]:
            closing.result()
