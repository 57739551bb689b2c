"""Taps show the chosen messages, and count the others."""

from __future__ import annotations

import random
import re
from collections import Counter

import numpy
import pytest

from blackbox import Feed, Publisher, Relay
from blackbox.block.batch.batch import Batch
from blackbox.block.form.block import Block, HeaderFields
from blackbox.block.form.rows import PayloadColumns
from blackbox.block.position import End
from blackbox.errors import ConfigError, NotConfirmedError
from blackbox.services.monitor import tap as tap_module
from blackbox.services.monitor.key_counts import KeyCounts
from blackbox.services.monitor.tap import Tap
from blackbox.services.monitor.tap_budget import MOST_BYTES_PER_S, Budget
from blackbox.testing import wait_until
from tests.cli.commands import ROOT, beside

TOPICS = [b"AAPL.trade", b"AAPLW.trade", b"MSFT.quote", b"MSFT.trade"]


def published(publisher: Publisher, count: int) -> list[tuple[bytes, bytes]]:
    messages = [(TOPICS[number % len(TOPICS)], b"%d" % number) for number in range(count)]
    for topic, payload in messages:
        publisher.publish(topic, payload)
    publisher.flush()
    return messages


def texts(batches: list[Batch]) -> list[tuple[bytes, bytes]]:
    return [(message.topic, message.payload) for batch in batches for message in batch]


def read_all(tap: Tap, count: int) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = []

    def is_enough() -> bool:
        found.extend(texts(tap.read()))
        return len(found) >= count

    wait_until(is_enough)
    return found


@pytest.mark.parametrize("key_bytes", [0, 4])
def test_a_tap_chooses_messages_at_a_publisher_and_below_a_relay(key_bytes: int) -> None:
    feed, below = (Feed.local("tapped", slices=2, key_bytes=key_bytes) for _ in range(2))
    with (
        Publisher(feed) as publisher,
        Relay(feed, below),
        Tap(feed, b"MSFT.") as prefixed,
        Tap(below, symbols=["AAPL"]) as symbol,
    ):
        for tap in (prefixed, symbol):
            tap.wait_confirmed()
        assert publisher.statistics().subscribers <= 1, "the relay's"
        sent = published(publisher, 200)
        wanted = [each for each in sent if each[0].startswith(b"MSFT.")]
        assert Counter(read_all(prefixed, len(wanted))) == Counter(wanted)
        wanted = [each for each in sent if each[0] == b"AAPL.trade"]
        assert Counter(read_all(symbol, len(wanted))) == Counter(wanted)
        done = prefixed.statistics()
        assert (done.chosen, done.missed, done.skipped, done.dropped, done.malformed) == (100, 0, 0, 0, 0)


def test_a_reader_that_is_too_slow_gets_the_newest_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tap_module, "_MOST_WAITING", 3)
    feed = Feed.local("tapped", slices=1)
    with Publisher(feed) as publisher, Tap(feed) as tap:
        tap.wait_confirmed()
        for number in range(50):
            publisher.publish(b"T", b"%d" % number)
            publisher.flush()
        wait_until(lambda: tap.statistics().chosen == 50)
        found = [payload for _, payload in texts(tap.read())]
        assert found == [b"%d" % number for number in range(50)][-len(found) :]
        assert tap.statistics().skipped == 50 - len(found) > 0


def test_a_tap_that_pauses_counts_what_it_does_not_receive(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = Feed.local("tapped", slices=1)
    with Publisher(feed) as publisher, Tap(feed) as tap:
        tap.wait_confirmed()
        monkeypatch.setattr(tap._budget, "is_paused", False)
        published(publisher, 10)
        wait_until(lambda: tap.statistics().received == 10)
        monkeypatch.setattr(tap._budget, "has_changed", lambda _: True)
        monkeypatch.setattr(tap._budget, "is_paused", True)
        wait_until(lambda: all(b"" not in peer.filters for peer in publisher._slices[0].sender.subscriptions.peers()))
        published(publisher, 25)
        monkeypatch.setattr(tap._budget, "is_paused", False)
        wait_until(lambda: any(b"" in peer.filters for peer in publisher._slices[0].sender.subscriptions.peers()))
        monkeypatch.setattr(tap._budget, "has_changed", lambda _: False)
        published(publisher, 5)
        wait_until(lambda: tap.statistics().received == 15)
        assert tap.statistics().missed == 25


def test_the_snippet_of_the_page_shows_batches(capsys: pytest.CaptureFixture[str]) -> None:
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "watching.md").read_text(), re.DOTALL)
    (code,) = [each for each in snippets if "Tap(" in each]
    feed = Feed.local("tapped", slices=1)
    with Publisher(feed) as publisher, beside(lambda: published_to_a_tap(publisher)):
        exec(compile(code.replace("timeout=1.0", "timeout=200"), "a page", "exec"), {"feed": feed})
    assert capsys.readouterr().out == "0 1\n0\n"


def published_to_a_tap(publisher: Publisher) -> None:
    def is_tapped() -> bool:
        return any(peer.is_tap and peer.subscriptions > 2 for peer in publisher.statistics().peers)

    wait_until(is_tapped)
    publisher.publish(b"AAPL.trade", b"")


def test_without_a_publisher_or_a_topic_it_ends_with_an_error() -> None:
    feed = Feed.local("tapped", slices=1)
    with Tap(feed) as tap, pytest.raises(NotConfirmedError, match="slice 0 at tcp://.* did not confirm the tap in 0"):
        tap.wait_confirmed(0.0)
    with pytest.raises(ConfigError, match="symbols was empty"):
        Tap(feed, symbols=[])


def test_missed_messages_are_those_of_hidden_blocks() -> None:
    """The model hides some of all blocks, and counts their messages."""
    for seed in range(50):
        chance = random.Random(seed)
        keys, counts, ends, sequence = [b"AA", b"AB", b"B"], KeyCounts((b"A",)), dict[bytes, End](), 0
        hidden, has_begun, epoch, seen = 0, False, 1, set[bytes]()
        for _ in range(100):
            key, count = chance.choice(keys), chance.randint(1, 5)
            if chance.random() < 0.1:
                counts.settle(epoch, ends)
                has_begun = True
            if chance.random() < 0.02 and has_begun:
                counts.settle(epoch, ends)
                epoch, ends, sequence = epoch + 1, {}, 0
            before = ends.get(key, End(0, 0))
            fields = HeaderFields(epoch=epoch, sequence=sequence, previous=before.sequence, key_sequence=before.count)
            columns = PayloadColumns(numpy.zeros((count, 1), numpy.uint8))
            block = Block.encode([key + b".x"], [0] * count, columns, fields, key=key)
            sequence += count
            ends[key] = End(sequence, before.count + count)
            if chance.random() < 0.7:
                if key != b"B":
                    counts.take(block)
                    seen.add(key)
            elif key != b"B" and (has_begun or key in seen):
                hidden += count
        if not has_begun:
            continue
        counts.settle(epoch, ends)
        assert counts.missed == hidden, seed


def test_a_budget_pauses_above_its_rate_and_not_below() -> None:
    block_bytes = 1 << 20
    for factor in (0.5, 2.0):
        budget, now, taken, paused = Budget(), 0, 0, 0
        while now < 10_000_000_000:
            now += int(block_bytes / (factor * MOST_BYTES_PER_S) * 1e9)
            budget.has_changed(now)
            paused += budget.is_paused
            if not budget.is_paused:
                taken += block_bytes
                budget.charge(block_bytes, now)
        assert taken / 10 <= 1.1 * MOST_BYTES_PER_S
        assert (paused > 0) == (factor > 1)
