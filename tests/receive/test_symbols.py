"""Callbacks, streams and tables with chosen symbols get exactly their messages, live and in replays."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blackbox import ConfigError, Feed, Gap, Publisher, Recorder, Recording, Subscriber
from blackbox.feed.routing.symbol import RULES, SymbolRule
from blackbox.testing import Collector, RawPublisher, wait_until
from tests.archive.archives import archived_feed
from tests.archive.recorders import wait_recorded
from tests.callbacks import count_rows
from tests.examples import examples
from tests.journals import Day, Put, Row, feed_of
from tests.receive.subscribers import one_slice

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
    local = Feed.local("symbols", slices=slices)
    feed = msgspec.structs.replace(local, key_bytes=key_bytes, max_lag_ns=60 * 10**9)
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
            assert table.wait_synced(60)
            assert dict(table) == {b"AAPL.x": b"1", b"BRK.B.x": b"1"}


def test_symbols_that_a_callback_cannot_choose_are_rejected() -> None:
    subscriber = Subscriber(one_slice(symbol="before_first"))
    with pytest.raises(
        ConfigError, match="symbols had b'BRK.B', but a symbol of feed 'subscriber' ends before the first"
    ):
        subscriber.on(symbols=["BRK.B"])
    assert subscriber.callbacks == ()


def test_a_replay_of_a_feed_with_another_rule_is_rejected(tmp_path: Path) -> None:
    day = Day(tmp_path / "2026-11-20", feed_of(symbol="whole"))
    day.put(0, Put((Row(b"A.x", b"1", 10),)))
    subscriber = Subscriber(feed_of())
    subscriber.on(symbols=["A"])(Collector().message)
    with pytest.raises(
        ConfigError, match="callbacks chose symbols by .*before_last.*, but feed 'recorded' has .*whole"
    ):
        subscriber.replay(Recording.open(day.path))


def test_a_gap_of_one_key_is_reported_to_the_hooks_of_its_symbols() -> None:
    feed = one_slice(key_bytes=5)
    subscriber = Subscriber(feed)
    gaps: dict[str, list[Gap]] = {"AAPL": [], "BRK": []}
    for symbol, of_symbol in gaps.items():
        subscriber.on(f"{symbol}.")(Collector().message)
        subscriber.on_gap(symbols=[symbol])(of_symbol.append)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        for topic in (b"AAPL.x", b"BRK..x"):
            publisher.send(publisher.encode([(topic, b"first")]))
        publisher.encode([(b"AAPL.x", b"lost")])
        for topic in (b"AAPL.x", b"BRK..x"):
            publisher.send(publisher.encode([(topic, b"last")]))
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert [gap.key for gap in gaps["AAPL"]] == [b"AAPL."]
    assert gaps["BRK"] == []
