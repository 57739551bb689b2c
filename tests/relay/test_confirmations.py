"""A relay confirms a request from below once all relays above have confirmed it."""

from __future__ import annotations

from typing import Literal

import pytest

from blackbox import Publisher
from blackbox.block.position import End
from blackbox.errors import NotConfirmedError
from blackbox.relay import upstream
from blackbox.relay.upstream import Upstream
from blackbox.testing import RawPublisher, wait_until
from tests.late_answers import late_answers
from tests.relay.relays import PATIENCE_S, PLAIN_BEAT_NS, chain, collected, line_of, relayed


def test_no_answer_before_the_source_is_there() -> None:
    feeds = chain(2)
    subscriber, got = collected(feeds[-1])
    with relayed(feeds):
        with pytest.raises(NotConfirmedError):
            subscriber.start(timeout=0.5)
        subscriber, got = collected(feeds[-1])
        with Publisher(feeds[0]) as publisher:
            subscriber.start(PATIENCE_S)
            publisher.publish(b"T", b"1")
            got.wait(1)
        subscriber.run(until_end=True)


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


def test_an_answer_after_a_long_queue_is_in_time() -> None:
    feeds = chain(heartbeat_ns=20_000_000)
    subscriber, _ = collected(feeds[-1])
    with late_answers(feeds[0], beats=20), relayed(feeds):
        subscriber.start(PATIENCE_S)
        subscriber.stop()


@pytest.mark.parametrize("transport", ["tcp", "ipc", "inproc"])
def test_a_silent_source_keeps_its_open_connection(
    transport: Literal["tcp", "ipc", "inproc"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source that waits for a slow subscriber is silent: a reconnect would lose what it sends."""
    looks: list[float] = []
    why_switch = Upstream.why_switch

    def note(way: Upstream, silent_since: float, now: float, has_unread: bool, is_answered: bool | None) -> str:
        looks.append(now)
        return why_switch(way, silent_since, now, has_unread, is_answered)

    monkeypatch.setattr(Upstream, "why_switch", note)
    monkeypatch.setattr(upstream, "_ALONE_S", 0.0)
    feeds = chain(heartbeat_ns=10_000_000, transport=transport)
    with RawPublisher(feeds[0]), relayed(feeds) as (relay,):
        wait_until(lambda: line_of(relay).is_connected, what="a connection")
        so_far = len(looks)
        wait_until(lambda: len(looks) > so_far + 5, what="looks at a silent source")
        assert line_of(relay).reconnects == 0
