"""Callbacks, streams and tables with chosen symbols get exactly their messages; channels carry few others."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blackbox import ConfigError, Feed, Gap, Publisher, Recorder, Recording, Replay, SlowPolicy, Subscriber
from blackbox.feed.routing.symbol import RULES, SymbolRule
from blackbox.testing import Collector, wait_until
from tests.archive.archives import archived_feed
from tests.archive.recorders import wait_recorded
from tests.callbacks import count_rows
from tests.examples import examples
from tests.journals import Day, Put, Row, feed_of
from tests.receive import subscribers
from tests.receive.subscribers import PATIENT, one_slice, publishing, sliced
from tests.relay.relays import chain, relayed

CHANNELS: Final = 8
SYMBOLS: Final = [b"S%02d" % number for number in range(40)]
ONE, OTHER = b"S00", b"S01"
"""Symbols of different channels."""
Sent = list[tuple[bytes, bytes]]


TOPICS = [b"AAPL.x", b"AAPLW.x", b"AAPL", b"BRK.x", b"BRK.B.x", b"BRK.B", b"B.x", b"AAPL.y.x"]
words = st.text("AB.", min_size=1, max_size=5).map(str.encode)
wishes_strategy = st.lists(
    st.tuples(st.sampled_from([b"", b"A", b"B.", b"AB"]), st.none() | st.lists(words, min_size=1, max_size=3)),
    min_size=1,
    max_size=4,
)


@settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.lists(words, min_size=1, max_size=8), min_size=1, max_size=4), wishes_strategy, st.sampled_from(RULES)
)
def test_a_replay_gives_each_callback_the_messages_of_its_symbols(
    blocks: list[list[bytes]], wishes: list[tuple[bytes, list[bytes] | None]], rule: str
) -> None:
    with TemporaryDirectory() as directory:
        day = Day(Path(directory) / "2026-11-20", feed_of(symbol=rule))
        topics = [topic for block in blocks for topic in block]
        rows = [Row(topic, b"%d" % number, 10 + number) for number, topic in enumerate(topics)]
        left = iter(rows)
        for block in blocks:
            mine = tuple(next(left) for _ in block)
            day.put(0, Put(mine, sequence=rows.index(mine[0])))
        recording = Recording.open(day.path)
        subscriber, got, expected = Subscriber(recording.feed), list[Collector](), list[list[bytes]]()
        split = SymbolRule(rule)
        for prefix, symbols in wishes:
            collector = Collector()
            try:
                subscriber.on(prefix, symbols=symbols)(collector.message)
            except ConfigError:
                continue
            got.append(collector)
            expected.append(
                [
                    row.payload or b""
                    for row in rows
                    if row.topic.startswith(prefix) and (symbols is None or split.symbol_of(row.topic) in symbols)
                ]
            )
        if got:
            subscriber.replay(recording)
        assert [collector.payloads for collector in got] == expected


@pytest.mark.parametrize(("slices", "key_bytes"), [(1, 0), (3, 4)])
def test_live_each_kind_of_callback_gets_the_messages_of_its_symbols(slices: int, key_bytes: int) -> None:
    feed = sliced(slices, key_bytes=key_bytes)
    subscriber, one, many = Subscriber(feed), Collector(), Collector()
    symbols: list[str | bytes] = ["AAPL", b"BRK"]
    subscriber.on(symbols=symbols)(one.message)
    subscriber.on_batch("", symbols=["BRK.B"])(many.batch)
    stream = subscriber.stream(symbols=["BRK.B", "none"])
    counted = subscriber.on_compiled(symbols=symbols, state=numpy.zeros(1, numpy.int64))(count_rows)
    everything = Collector()
    with Publisher(feed, when_full="wait") as publisher, subscriber:
        for number, topic in enumerate(TOPICS):
            publisher.publish(topic, b"%d" % number)
        subscriber.on("")(everything.message)
        subscriber.wait_confirmed()
        for number, topic in enumerate(TOPICS):
            publisher.publish(topic, b"%d" % (10 + number))
        everything.wait(len(TOPICS))
        publisher.flush()
        assert sorted(stream.get(60).payload for _ in range(2)) == [b"14", b"4"]
        one.wait(8)
        many.wait(2)
        wait_until(lambda: counted.total().tolist() == [8])
    expected = [n for n, topic in enumerate(TOPICS) if feed.symbol_rule.symbol_of(topic) in (b"AAPL", b"BRK")]
    assert expected == [0, 2, 3, 5]
    assert sorted(map(int, one.payloads)) == sorted([*expected, *(10 + n for n in expected)])
    assert sorted(many.payloads) == [b"14", b"4"]
    assert counted.total().tolist() == [2 * len(expected)]


@pytest.mark.parametrize("action", ["warn", "conflate"])
def test_messages_of_other_symbols_do_not_count_as_matched(action: Literal["warn", "conflate"]) -> None:
    subscriber, got = Subscriber(feed := one_slice(), slow=SlowPolicy(action, start_grace=0)), Collector()
    subscriber.on(symbols=["AAPL"])(got.message)
    with publishing(feed, subscriber) as publisher:
        rows = [(b"AAPL.x", b"1"), (b"BRK.x", b"2"), (b"BRK.x", b"3")]
        publisher.send(publisher.encode(rows, ts_out=time.time_ns() - subscribers.LATE_NS))
    delivery = subscriber.statistics().delivery
    assert (delivery.matched, delivery.due, delivery.delivered) == (1, 1, 1)


def test_a_table_has_only_the_topics_of_its_symbols(tmp_path: Path) -> None:
    feed = archived_feed()
    topics = [b"AAPL.x", b"AAPLW.x", b"BRK.B.x"]
    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        for topic in topics:
            publisher.publish(topic, b"1")
        wait_recorded(recorder, len(topics))
        subscriber = Subscriber(feed)
        table = subscriber.table(symbols=["AAPL", "BRK.B"])
        with subscriber.start(snapshot="latest"):
            assert table.wait_synced(200)
            assert dict(table) == {b"AAPL.x": b"1", b"BRK.B.x": b"1"}


def test_a_replay_of_a_feed_with_another_rule_is_rejected(tmp_path: Path) -> None:
    day = Day(tmp_path / "2026-11-20", feed_of(symbol="whole"))
    day.put(0, Put((Row(b"A.x", b"1", 10),)))
    subscriber = Subscriber(feed_of())
    subscriber.on(symbols=["A"])(Collector().message)
    with pytest.raises(
        ConfigError, match="callbacks chose symbols by .*before_last.*, but feed 'recorded' has .*whole"
    ):
        subscriber.replay(Recording.open(day.path))


def publish(publisher: Publisher, first: int, count: int) -> Sent:
    """Publish messages of all symbols, with and without a type; return each topic with its number."""
    sent = []
    for number in range(first, first + count):
        topic = SYMBOLS[number % len(SYMBOLS)] + (b".trade", b".quote", b"")[number % 3]
        publisher.publish(topic, b"%d" % number)
        sent.append((topic, b"%d" % number))
    publisher.flush()
    return sent


def of(symbol: bytes, sent: Sent) -> Sent:
    return [(topic, payload) for topic, payload in sent if topic.partition(b".")[0] == symbol]


def subscribed(feed: Feed, *symbols: bytes, **options: Any) -> tuple[Subscriber, Collector]:
    subscriber, got = Subscriber(feed, slow=PATIENT, **options), Collector()
    for symbol in symbols:
        subscriber.on(b"", symbols=[symbol])(got.message)
    return subscriber, got


def came(got: Collector) -> Sent:
    return [(message.topic, message.payload) for message in got.messages]


def test_a_subscriber_of_one_symbol_receives_one_channel_also_through_relays() -> None:
    feeds = chain(2, channels=CHANNELS)
    feed, below = feeds[0], feeds[-1]
    with relayed(feeds), Publisher(feed, when_full="wait") as publisher:
        wanted = [(subscribed(below, ONE), [ONE + b".", ONE])]
        wanted += [(subscribers.subscribed(below, prefix), [prefix]) for prefix in (b"S0", ONE + b".", b"")]
        for (subscriber, _), _ in wanted:
            subscriber.start()
        sent = publish(publisher, 0, 600)
        publisher.close()
        for (subscriber, _), _ in wanted:
            subscriber.run(until_end=True)
    for (_, got), prefixes in wanted:
        assert sorted(came(got)) == sorted(each for each in sent if each[0].startswith(tuple(prefixes)))
    assert came(wanted[0][0][1]) == of(ONE, sent)
    in_channel = sum(feed.key_of(topic) == feed.key_of(ONE) for topic, _ in sent)
    assert in_channel < len(sent) / 4
    received = [subscriber.statistics().received for (subscriber, _), _ in wanted]
    assert [each.messages for each in received] == [in_channel, len(sent), in_channel, len(sent)]
    assert [each.gaps for each in received] == [0, 0, 0, 0]


@pytest.mark.parametrize("keys", [{"channels": CHANNELS}, {"key_bytes": 3}], ids=["channels", "prefixes"])
def test_a_gap_of_a_key_is_reported_to_its_callbacks_alone(keys: dict[str, int]) -> None:
    subscriber, _ = subscribed(feed := one_slice(**keys), ONE, OTHER)
    found: dict[bytes, list[Gap]] = {ONE: [], OTHER: []}
    for symbol, gaps in found.items():
        subscriber.on_gap(symbol + b".")(gaps.append)
        subscriber.on_gap(b"", symbols=[symbol])(gaps.append)
    with publishing(feed, subscriber) as publisher:
        for number in range(6):
            block = publisher.encode([((ONE, OTHER)[number % 2] + b".trade", b"%d" % number)])
            if number != 2:
                publisher.send(block)
    gap = Gap(0, publisher.epoch, feed.key_of(ONE), 1, 1, found[ONE][0].ts_out)
    assert found == {ONE: [gap, gap], OTHER: []}


def test_a_named_subscriber_that_starts_late_and_adds_a_symbol_continues_at_its_position(tmp_path: Path) -> None:
    feed = archived_feed(channels=CHANNELS)
    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, tmp_path / "days", serve=True) as recorder:
        first = publish(publisher, 0, 400)
        wait_recorded(recorder, 400)
        named: dict[str, Any] = {"name": "desk", "positions": tmp_path / "positions"}
        subscriber, got = subscribed(feed, ONE, **named)
        subscriber.start(since=0)

        def is_past_first() -> bool:
            with subscriber.checkpoint() as positions:
                return bool(positions[0].sequence == 400)

        wait_until(is_past_first)  # only a heartbeat shows that later messages are of other channels
        assert came(got) == of(ONE, first)
        subscriber.stop()
        second = publish(publisher, 400, 400)
        wait_recorded(recorder, 800)
        subscriber, got = subscribed(feed, ONE, OTHER, **named)
        subscriber.start()
        third = publish(publisher, 800, 400)
        publisher.close()
        subscriber.run(until_end=True)
    for symbol in (ONE, OTHER):
        assert of(symbol, came(got)) == of(symbol, second + third)
    assert subscriber.statistics().received.gaps == 0


def test_a_recorded_day_is_read_and_replayed(tmp_path: Path) -> None:
    feed = one_slice(channels=CHANNELS)
    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, tmp_path) as recorder:
        sent = publish(publisher, 0, 600)
        wait_recorded(recorder, len(sent))
        publisher.close()
        recorder.run(until_end=True)
    day = Recording.open(next(tmp_path.glob("*/*/manifest.json")).parent)
    assert day.verify() == []
    for name, wanted in (("symbols", {"symbols": [ONE]}), ("prefix", {"prefix": ONE + b"."})):
        found = [(message.topic, message.payload) for batch in day.batches(**wanted) for message in batch]
        assert found == [each for each in of(ONE, sent) if name == "symbols" or b"." in each[0]]
    subscriber, got = subscribed(feed, ONE)
    subscriber.replay(day)
    assert came(got) == of(ONE, sent)
    for target in (one_slice(channels=CHANNELS), one_slice(channels=3), one_slice(key_bytes=3)):
        subscriber, got = subscribed(target, ONE, OTHER)
        with Publisher(target, when_full="wait") as publisher:
            subscriber.start()
            Replay(day).publish(publisher)
        subscriber.run(until_end=True)
        assert [of(symbol, came(got)) for symbol in (ONE, OTHER)] == [of(symbol, sent) for symbol in (ONE, OTHER)]
        assert subscriber.statistics().received.gaps == 0
