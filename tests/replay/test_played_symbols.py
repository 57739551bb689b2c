"""Replays and recordings filtered by symbols and several prefixes, compared with a loop over topics."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy
import pytest
from blackbox_feeds.synthetic import Synthetic
from hypothesis import assume, given
from hypothesis import strategies as st

from blackbox import ConfigError, Feed, Gap, Recording, Replay, Subscriber
from blackbox.archive.export.source_file import export
from blackbox.archive.importing.import_days import import_days
from blackbox.feed.routing.symbol import RULES, SymbolRule
from blackbox.testing import Collector
from tests.callbacks import count_rows
from tests.journals import Day, Put, Row, feed_of
from tests.replay.audience import few
from tests.replay.test_book_at import depths_of
from tests.replay.test_to_wire import by_topic, feed_with, replayed, sent_of

TOPICS = [b"AAPL.x", b"AAPLW.x", b"AAPL", b"AAPL.y.x", b"BRK.x", b"BRK.B.x", b"BRK.B", b"B.x", b"A"]
words = st.text("AB.", min_size=1, max_size=4).map(str.encode)
topics = (words | st.sampled_from(TOPICS)).filter(lambda topic: topic[:1] in b"AB")


@few
@given(
    st.lists(st.lists(topics, min_size=1, max_size=8), min_size=1, max_size=4),
    st.lists(words, max_size=3),
    st.none() | st.lists(words, min_size=1, max_size=3),
    st.sampled_from(RULES),
    st.integers(1, 2),
    st.sampled_from(["event", "sent"]),
    st.sampled_from([b"", b"A", b"AAPL"]),
    st.booleans(),
)
def test_a_replay_plays_only_topics_of_its_symbols_and_prefixes(
    blocks: list[list[bytes]],
    prefixes: list[bytes],
    symbols: list[bytes] | None,
    rule: str,
    slices: int,
    order: Any,
    wish: bytes,
    with_symbols: bool,
) -> None:
    with TemporaryDirectory() as directory:
        day = Day(Path(directory) / "2026-11-20", feed_of(slices, symbol=rule))
        time = 1
        for block in blocks:
            for slice_id in range(slices):
                mine = [topic for topic in block if slices == 1 or topic[0] == 65 + slice_id]
                rows = tuple(Row(topic, b"%d" % (time + i), time + i) for i, topic in enumerate(mine))
                if rows:
                    day.put(slice_id, Put(rows, sequence=time, ts_out=time))
                    time += len(rows)
        split = SymbolRule(rule)
        played = [
            message
            for message in sorted(day.told(), key=lambda message: message.ts_event)
            if message.topic.startswith(tuple(prefixes or [b""]))
            and (symbols is None or split.symbol_of(message.topic) in symbols)
        ]
        recording = Recording.open(day.path)
        try:
            replay = Replay(recording, prefix=prefixes, symbols=symbols, order=order)
        except ConfigError:
            assume(False)
        subscriber, everything, some = Subscriber(recording.feed), Collector(), Collector()
        subscriber.on()(everything.message)
        state = subscriber.on_compiled(state=numpy.zeros(1, numpy.int64))(count_rows)
        wanted = ["AAPL", "AB"] if with_symbols and wish != b"AAPL" else None
        subscriber.on(wish, symbols=wanted)(some.message)
        assert subscriber.replay(replay).messages == len(played)
        assert everything.payloads == [message.payload for message in played]
        assert sum(int(each[0]) for each in state.states.values()) == len(played)
        assert some.payloads == [
            message.payload
            for message in played
            if message.topic.startswith(wish) and (wanted is None or split.symbol_of(message.topic).decode() in wanted)
        ]


def mixed_day(path: Path, feed: Feed) -> Day:
    """Return a day of one slice with the messages of all TOPICS in each block."""
    day = Day(path, feed)
    for i in range(5):
        rows = tuple(Row(topic, b"%d-%d" % (i, j), 10 + 10 * i + j) for j, topic in enumerate(TOPICS))
        day.put(0, Put(rows, i * len(TOPICS), ts_out=1 + i))
    return day


def test_a_published_replay_excludes_longer_symbols(tmp_path: Path) -> None:
    feed = feed_with()
    day = mixed_day(tmp_path, feed)
    for symbols in (["AAPL"], ["AAPL", "BRK.B"]):
        wanted = [sent for sent in sent_of(day) if SymbolRule().symbol_of(sent[0]).decode() in symbols]
        assert replayed(tmp_path, feed, symbols=symbols).by_topic == by_topic(wanted)


def test_symbols_of_feeds_with_several_rules_are_refused(tmp_path: Path) -> None:
    days = []
    for name, rule in (("one", "before_last"), ("two", "before_first")):
        day = Day(tmp_path / name, msgspec.structs.replace(feed_of(symbol=rule), name=name))
        day.put(0, Put((Row(b"AAPL.x", b"a", 1),)))
        days.append(Recording.open(day.path))
    with pytest.raises(ConfigError, match="expected one rule"):
        Replay(days, symbols=["AAPL"])


def test_the_newest_messages_are_those_of_the_symbols(tmp_path: Path) -> None:
    day = mixed_day(tmp_path, feed_of())
    recording = Recording.open(day.path)
    newest = {message.topic: message.payload for message in day.told()}
    for prefix, symbols in ((b"", ["AAPL"]), (b"", ["BRK.B", "B"]), (b"AAPL.", ["AAPL"]), (b"", ["MSFT"])):
        found = {
            topic: payload
            for batch in recording.newest(prefix, symbols=symbols)
            for topic, payload in zip(batch.topics_per_message(), batch.payload_list(), strict=True)
        }
        assert found == {
            topic: payload
            for topic, payload in newest.items()
            if topic.startswith(prefix) and SymbolRule().symbol_of(topic).decode() in symbols
        }


def test_books_and_a_venue_file_are_those_of_the_symbols(tmp_path: Path) -> None:
    feed = msgspec.structs.replace(Feed.local("made", slices=2, schema="itch50"), time_zone="America/New_York")
    (imported,) = import_days(feed, tmp_path / "days", [Synthetic(6_000, symbols=5, date="2026-01-05")])
    recording = Recording.open(imported.path)
    everything = recording.book_at("12:00")
    two = everything.symbols[:2]
    books = recording.book_at("12:00", symbols=two)
    assert sorted(books.symbols) == sorted(two)
    assert books.synced
    assert depths_of(books) == {name: depth for name, depth in depths_of(everything).items() if name in two}
    assert not recording.book_at("12:00", two[0] + b".A", symbols=two[:1]).synced

    wanted = [
        message for batch in recording.batches() for message in batch if SymbolRule().symbol_of(message.topic) in two
    ]
    done = export(recording, tmp_path / "two.itch", symbols=two)
    assert done.messages == len(wanted)
    text = b"".join(
        len(message.payload).to_bytes(2, "big") + message.payload
        for message in sorted(wanted, key=lambda message: message.ts_event)
    )
    assert sorted(text) == sorted((tmp_path / "two.itch").read_bytes())


def test_a_recorded_gap_is_reported_to_hooks_of_all_symbols(tmp_path: Path) -> None:
    """The recording does not show which keys lost messages."""
    day = Day(tmp_path, feed_of(key_bytes=5))
    for sequence, topic in ((0, b"AAPL.x"), (1, b"BRK.x"), (5, b"AAPL.x")):
        day.put(0, Put((Row(topic, b"", 10 + sequence),), sequence, ts_out=1 + sequence))
    recording = Recording.open(tmp_path)
    subscriber = Subscriber(recording.feed)
    subscriber.on()(lambda message: None)
    gaps: list[list[Gap]] = [[], [], [], []]
    for found, symbols in zip(gaps, (["AAPL"], ["BRK"], ["MSFT"]), strict=False):
        subscriber.on_gap(symbols=symbols)(found.append)
    subscriber.on_gap("AAPL.", symbols=["AAPL"])(gaps[3].append)
    subscriber.replay(recording)
    assert [[(gap.key, gap.sequence, gap.count) for gap in found] for found in gaps] == [[(b"", 2, 3)]] * 4
