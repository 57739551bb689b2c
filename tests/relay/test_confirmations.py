"""A relay confirms a request from below once all relays above have confirmed it."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

import pytest

from blackbox import Publisher, Relay
from blackbox.block.form.block import Block
from blackbox.block.form.format import CONFIRM_KEY
from blackbox.block.position import End
from blackbox.publish.listeners.confirmations import Asked
from blackbox.publish.listeners.subscriptions import SUBSCRIBE
from blackbox.publish.send.confirm_subscribers import Answers
from blackbox.services.relay import failover
from blackbox.services.relay.failover import Failover
from blackbox.testing import Collector, RawPublisher, wait_until
from tests.late_answers import late_answers
from tests.relay.relays import PATIENCE_S, PLAIN_BEAT_NS, chain, collected, line_of, relayed
from tests.relay.test_rights import asking
from tests.threads import in_threads

JOINS = 2
TOPICS = 7


def test_a_loss_above_a_relay_is_reported_below_after_a_change_of_filters() -> None:
    feeds = chain(key_bytes=1, heartbeat_ns=PLAIN_BEAT_NS)
    all_keys, _ = collected(feeds[-1])
    subscriber, got = collected(feeds[-1], b"A", b"B")
    with RawPublisher(feeds[0]) as publisher, relayed(feeds):
        all_keys.start(PATIENCE_S)
        subscriber.start(PATIENCE_S)
        publisher.sequences[0], publisher.ends[0][b"B"] = 1, End(1, 1)  # its block is lost on the way to the relay
        publisher.send(publisher.encode([(b"A", b"1")]))
        got.wait(1)
        subscriber.on_batch(b"C")(got.batch)
        wait_until(lambda: subscriber.statistics().received.gaps == 1, what="a report of the loss")
        subscriber.stop()
        all_keys.stop()


def test_a_confirmation_has_the_keys_of_this_run_only() -> None:
    feeds = chain(key_bytes=1, max_topics=4)
    with relayed(feeds), asking(feeds[-1]) as sub:
        for keys in (b"ABCD", b"EFGH"):
            everything, got = collected(feeds[-1])
            with Publisher(feeds[0]) as publisher:
                everything.start(PATIENCE_S)
                for key in keys:
                    publisher.publish(bytes([key]), b"1")
                got.wait(4)
                sub.subscribe(CONFIRM_KEY + 2 * keys)
                ends = Block.decode(*sub.recv_multipart()).ends()
                everything.stop()
            assert ends == {bytes([key]): End(number, 1) for number, key in enumerate(keys, start=1)}


def test_a_crowd_that_waits_is_judged_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    (each,) = Relay(*chain())._slices
    (line,) = each.lines
    judged = list[Asked]()

    def judge(ask: Asked) -> bool:
        judged.append(ask)
        return False

    monkeypatch.setattr(line.way, "look", lambda _is_needed: None)  # there is no socket
    monkeypatch.setattr(line, "send_path", lambda *_: time.monotonic_ns())
    monkeypatch.setattr(each, "_is_due", judge)
    for number in range(1_000):
        each.below.note(0, -1, SUBSCRIBE + CONFIRM_KEY + b"%08d" % number, 11, 0)
    each._send_due(Answers(each.below, []))
    assert len(judged) == 2
    line.close()


def test_an_answer_after_a_long_queue_is_in_time() -> None:
    feeds = chain(heartbeat_ns=20_000_000)
    subscriber, _ = collected(feeds[-1])
    with late_answers(feeds[0], beats=20), relayed(feeds):
        subscriber.start(PATIENCE_S)
        subscriber.stop()


@pytest.mark.parametrize("transport", ["tcp", "ipc", "inproc"])
def test_a_silent_source_keeps_its_open_connection(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that waits for a slow subscriber is silent: a reconnect would lose what it sends."""
    looks: list[float] = []
    why_switch = Failover.why_switch

    def note(source: Failover, silent_since: float, now: float, has_unread: bool, is_answered: bool | None) -> str:
        looks.append(now)
        return why_switch(source, silent_since, now, has_unread, is_answered)

    monkeypatch.setattr(Failover, "why_switch", note)
    feeds = chain(heartbeat_ns=10_000_000, transport=transport)
    with RawPublisher(feeds[0]), relayed(feeds) as (relay,):
        wait_until(lambda: line_of(relay).is_connected, what="a connection")
        monkeypatch.setattr(failover, "_ALONE_S", 0.0)  # not earlier: it also limits the time to connect
        so_far = len(looks)
        wait_until(lambda: len(looks) > so_far + 5, what="looks at a silent source")
        assert line_of(relay).reconnects == 0


@pytest.mark.parametrize(("relays", "key_bytes"), [(1, 0), (3, 2)])
def test_nothing_published_after_the_confirmation_is_missing_at_a_join(relays: int, key_bytes: int) -> None:
    """Messages published before `start` returns may be missing at the start of a join, later ones may not.

    Each relay requests more above while other filters are active, and forgets them when the last subscriber has left:
    each join takes its filters through the whole chain again.
    """
    feeds = chain(relays, key_bytes=key_bytes)
    published, over = [0], threading.Event()
    with relayed(feeds, when_full="wait"), Publisher(feeds[0], when_full="wait") as publisher:

        def publish() -> None:
            while not over.is_set():
                publisher.publish(b"A%d" % (published[0] % TOPICS), b"%d" % published[0])
                published[0] += 1

        with in_threads(publish), ExitStack() as stack:
            for join in range(JOINS):
                subscriber, got = collected(feeds[-1], b"A")
                gaps: list[int] = []
                subscriber.on_gap(b"")(lambda gap, gaps=gaps: gaps.append(gap.count))  # type: ignore[misc]
                subscriber.start(timeout=PATIENCE_S)
                first = published[0] + 1  # one message may be on its way into the publisher
                got.wait(1, PATIENCE_S)

                def has_all(got: Collector = got, first: int = first) -> bool:
                    """Return True if every topic has been received past the confirmation."""
                    numbers = map(int, got.payloads)
                    return len({number % TOPICS for number in numbers if number > first + 300}) == TOPICS

                wait_until(has_all, PATIENCE_S)
                if join % 2:
                    stack.callback(subscriber.stop)  # it stays, so that the next one finds active filters
                else:
                    subscriber.stop()
                numbers = [int(payload) for payload in got.payloads]
                assert gaps == []
                for topic in range(TOPICS):
                    mine = [number for number in numbers if number % TOPICS == topic and number >= first]
                    begin = first + (topic - first) % TOPICS
                    assert mine == list(range(begin, begin + TOPICS * len(mine), TOPICS))
                    assert mine
            over.set()
