"""A replay delivers and publishes a message of several topics once for each slice."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Literal

import pytest

from blackbox import Feed, Publisher, Recording, Replay, Subscriber
from blackbox.replay.play import to_wire
from blackbox.replay.tables import market_order
from blackbox.testing import Collector
from tests.receive.subscribers import PATIENT
from tests.receive.test_several_topics import PREFIXES, Message, messages_of, publish, told
from tests.replay.test_to_wire import record


def by_slice(feed: Feed, messages: list[Message], chosen: bytes, prefix: bytes) -> list[list[tuple[bytes, bytes]]]:
    """Return what a callback gets of each slice, if only topics of `chosen` are played."""
    found: list[list[tuple[bytes, bytes]]] = [[] for _ in feed.slices]
    for slice_id, mine in enumerate(found):
        for topics, payload in messages:
            wanted = [topic for topic in topics if topic.startswith(chosen) and feed.slice_of(topic) == slice_id]
            mine.extend([(topic, payload) for topic in wanted if topic.startswith(prefix)][:1])
    return found


def check(feed: Feed, got: dict[bytes, Collector], messages: list[Message], chosen: bytes = b"") -> None:
    for prefix, each in got.items():
        found: list[list[tuple[bytes, bytes]]] = [[] for _ in feed.slices]
        for topic, payload in told(each):
            found[feed.slice_of(topic)].append((topic, payload))
        assert found == by_slice(feed, messages, chosen, prefix)


@pytest.mark.parametrize("order", ["event", "sent"])
def test_each_callback_gets_a_replayed_message_once(
    tmp_path: Path, order: Literal["event", "sent"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few messages are listed at a time, so that lists end within messages."""
    monkeypatch.setattr(market_order, "_ROWS", 300)
    monkeypatch.setattr(market_order, "_LONG_RUN", 260)
    feed = Feed.local("topics", slices=2)
    choice, messages = random.Random(3), messages_of(seed=3, count=1_500)
    times = sorted(choice.randint(1, 700) for _ in messages)

    def send(publisher: Publisher) -> None:
        for start in range(0, len(messages), 100):
            publish(publisher, messages[start : start + 100], times[start : start + 100])

    day = record(feed, tmp_path, send)
    for chosen in (b"", b"A", b"B"):
        subscriber = Subscriber(feed)
        got = {prefix: Collector() for prefix in PREFIXES}
        for prefix, each in got.items():
            subscriber.on(prefix)(each.message)
        subscriber.replay(Recording.open(day), order=order, prefix=chosen)
        check(feed, got, messages, chosen)
        delivery = subscriber.statistics().delivery
        assert delivery.due == delivery.delivered


@pytest.mark.parametrize("chosen", [b"", b"A"])
@pytest.mark.parametrize("least_stored", [0, 1 << 30])
def test_published_again_it_is_still_one_message(
    tmp_path: Path, chosen: bytes, least_stored: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole blocks are sent as recorded, or all messages are gathered into new ones."""
    monkeypatch.setattr(to_wire, "LEAST_STORED_BYTES", least_stored)
    feed = Feed.local("topics", slices=1)
    messages = messages_of(seed=4, count=500)

    def send(publisher: Publisher) -> None:
        for start in range(0, len(messages), 50):
            publish(publisher, messages[start : start + 50])

    day = record(feed, tmp_path, send)
    again = Feed.local("topics", slices=1)
    subscriber = Subscriber(again, slow=PATIENT)
    got = {prefix: Collector() for prefix in PREFIXES}
    for prefix, each in got.items():
        subscriber.on(prefix)(each.message)
    with Publisher(again, when_full="wait") as publisher:
        subscriber.start()
        Replay(Recording.open(day), prefix=chosen).publish(publisher)
    subscriber.run(until_end=True)
    check(again, got, messages, chosen)
