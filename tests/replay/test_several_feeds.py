"""Feeds of different schemas replayed as one: names, ties, and settings that do not fit together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from blackbox import ConfigError, Feed, Publisher, Recording, Recordings, Replay, Subscriber
from tests.journals import Day, Put, Row, feed_of
from tests.replay.test_market_order import NAMES, SCHEMAS, SHORT, Wish, payload_of, replayed


def write_one(path: Path, number: int, times: list[int], date: str = "2026-11-20", **how: Any) -> Recording:
    """Write a day with one message at each of these times; the values are 0, 1, 2 ..."""
    name = NAMES[number]
    feed = msgspec.structs.replace(Feed.local(name, slices=1, schema=SCHEMAS[number]), **how)
    day = Day(path / name / date, feed, date=date)
    rows = [Row(b"A.x", payload_of(number, value), time) for value, time in enumerate(times)]
    day.put(0, Put(tuple(rows), ts_out=5_000 - number))
    return Recording.open(day.path)


def test_feeds_with_equal_times_are_merged_in_the_order_given(tmp_path: Path) -> None:
    first = write_one(tmp_path, 0, [1_000, 1_001])
    earlier = write_one(tmp_path, 1, [500], "2026-11-19")
    second = write_one(tmp_path, 1, [1_000, 1_001])
    recordings = Recordings([first, second, earlier])
    assert [batch.feed for batch in recordings.batches()] == ["alpha", "zulu", "alpha"]
    assert (recordings.feeds, str(recordings.days[0].date)) == (("zulu", "alpha"), "2026-11-19")
    seen, _, _ = replayed(recordings, [Wish("message", b"")])
    assert [(each.feed, each.slice_id, each.value) for each in seen] == [
        ("alpha", 1, 0),
        ("zulu", 0, 0),
        ("alpha", 1, 0),
        ("zulu", 0, 1),
        ("alpha", 1, 1),
    ]


@pytest.mark.parametrize("order", ["event", "sent"])
def test_the_order_of_feeds_ignores_the_order_within_a_day(tmp_path: Path, order: Any) -> None:
    def day(name: str, date: int) -> Recording:
        columns = {"topic": ["A.x"], "ts_event": [1_767_614_400 * 10**9 + date * 86_400 * 10**9], "payload": [b"x"]}
        return Recording.create(tmp_path, Feed.local(name, slices=1), columns)

    seen: list[str] = []
    subscriber = Subscriber(feed_of())
    subscriber.on(b"")(lambda message: seen.append(message.batch.feed))
    subscriber.replay([day("zulu", 2), day("alpha", 1), day("zulu", 1), day("alpha", 2)], order=order)
    assert seen == ["zulu", "alpha", "zulu", "alpha"]


def test_frames_require_the_choice_of_one_feed(tmp_path: Path) -> None:
    recordings = Recordings([write_one(tmp_path, 0, [1_000]), write_one(tmp_path, 1, [1_000, 1_001])])
    with pytest.raises(ConfigError, match=r"of one feed, not of \('zulu', 'alpha'\): see of_feed"):
        recordings.to_arrow()
    assert recordings.of_feed("alpha").to_arrow(message_type="l")["value"].to_pylist() == [0, 1]
    with pytest.raises(ConfigError, match=r"feed 'mike' was not found, expected one of \('zulu', 'alpha'\)"):
        recordings.of_feed("mike")


def test_a_wire_replay_of_several_schemas_is_refused(tmp_path: Path) -> None:
    recordings = [write_one(tmp_path, 0, [1_000]), write_one(tmp_path, 1, [1_000])]
    feed = Feed.local("again", schema=SHORT)
    with (
        Publisher(feed) as publisher,
        pytest.raises(ConfigError, match="a recording of schema 'long' was to be published"),
    ):
        Replay(recordings).publish(publisher)


def test_a_wire_replay_of_feeds_of_one_schema_goes_to_the_slices_of_the_publisher(tmp_path: Path) -> None:
    recordings = [write_one(tmp_path, n, [9_000 * (n + 1) + i for i in range(5_000)]) for n in (0, 2)]
    feed = Feed.local("again", slices=1, schema=SHORT)
    subscriber = Subscriber(feed)
    found: list[tuple[str, int, int]] = []
    subscriber.on(b"")(lambda message: found.append((message.batch.feed, message.slice_id, message.record.value)))
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        Replay(recordings).publish(publisher)
    subscriber.run(until_end=True)
    assert found == [("again", 0, n) for n in range(5_000)] * 2


def test_slices_and_times_that_differ_between_feeds_are_refused(tmp_path: Path) -> None:
    recordings = [write_one(tmp_path, 0, [1_000], time_zone="America/New_York"), write_one(tmp_path, 1, [1_000])]
    with pytest.raises(ConfigError, match=r"slices were given for .* feeds \('zulu', 'alpha'\), expected one"):
        Replay(recordings, slices=[0])
    with pytest.raises(ConfigError, match=r"time '14:30' is another in each of .* \['America/New_York', 'UTC'\]"):
        Replay(recordings, start="14:30")
