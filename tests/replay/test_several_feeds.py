"""Feeds of different schemas replayed as one, compared with a plain sort and loop over all of their messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blackbox import Batch, ConfigError, Feed, Publisher, Recording, Recordings, Replay, Schema, Subscriber
from blackbox.replay.clock import ManualClock
from blackbox.replay.controls import Controls
from blackbox.subscribe.compiled_callback import little_endian, payload
from tests.examples import examples
from tests.journals import Day, Put, Row, feed_of
from tests.replay.test_market_order import Recorded, Wish, days, run_lengths, wishes_strategy, write_day

__all__ = ["run_lengths"]

SHORT = Schema("short", 1_001, {"s": numpy.dtype([("type", "S1"), ("value", "<i4")])})
LONG = Schema("long", 1_002, {"l": numpy.dtype([("type", "S1"), ("value", "<i4"), ("rest", "S3")])})
SCHEMAS = (SHORT, LONG, SHORT)
KINDS = ("s", "l", "s")
NAMES = ("zulu", "alpha", "mike")


class Seen(NamedTuple):
    """A message that a Python callback received, and the sum of the messages seen by compiled callbacks until then."""

    callback: int
    feed: str
    slice_id: int
    topic: bytes
    value: int
    compiled: int


def payload_of(feed: int, number: int) -> bytes:
    return KINDS[feed].encode() + number.to_bytes(4, "little") + (b"abc" if KINDS[feed] == "l" else b"")


def write_feeds(path: Path, feeds: list[Any]) -> list[list[Recorded]]:
    """Write a day of each feed and return the messages of each."""
    found = []
    for number, (slices, blocks) in enumerate(feeds):

        def text(each: int, number: int = number) -> bytes:
            return payload_of(number, 100 * each + number)

        found.append(write_day(path / NAMES[number], blocks, slices, text, name=NAMES[number], schema=SCHEMAS[number]))
    return found


def in_order(recorded: list[list[Recorded]], slices: list[int]) -> Iterator[tuple[int, int, Recorded]]:
    """Yield the messages in market order: feed, slice among those of all feeds, message."""
    everything = [(message, number) for number, messages in enumerate(recorded) for message in messages]
    for message, number in sorted(everything, key=lambda each: (each[0].time, each[1], each[0].place)):
        yield number, sum(slices[:number]) + message.slice_id, message


def value_of(message: Recorded) -> int:
    return int.from_bytes(message.payload[1:5], "little")


def expected(
    recorded: list[list[Recorded]], slices: list[int], wishes: list[Wish]
) -> tuple[list[Seen], list[dict[int, int]]]:
    """Return the messages that the callbacks see, and the sums of the compiled callbacks by slice."""
    seen = []
    sums: list[Counter[int]] = [Counter() for wish in wishes if wish.kind == "compiled"]
    for feed, slice_id, message in in_order(recorded, slices):
        compiled = iter(sums)
        for number, wish in enumerate(wishes):
            mine = next(compiled) if wish.kind == "compiled" else None
            if not message.topic.startswith(wish.prefix):
                continue
            if mine is not None:
                mine[slice_id] += value_of(message)
            else:
                total = sum(each.total() for each in sums)
                seen.append(Seen(number, NAMES[feed], slice_id, message.topic, value_of(message), total))
    return seen, [{key: value for key, value in each.items() if value} for each in sums]


def add(batch: Any, state: Any) -> None:
    for row in batch.rows:
        state[0] += little_endian(payload(batch, row), 1, 4)


def replayed(recordings: Any, wishes: list[Wish], **how: Any) -> tuple[list[Seen], list[dict[int, int]], Any]:
    subscriber = Subscriber(feed_of())
    seen: list[Seen] = []
    compiled: list[Any] = []

    def total() -> int:
        return sum(int(each.total()[0]) for each in compiled)

    def see(number: int, messages: Any) -> None:
        for message in messages:
            one = message.batch.feed, message.slice_id, message.topic, message.record.value, total()
            seen.append(Seen(number, *one))

    def take(number: int, batch: Batch) -> None:
        kind = KINDS[NAMES.index(batch.feed)]
        values = batch.records(kind)["value"].tolist()
        assert batch.schema is not None
        assert set(batch.schema.records) == {kind}
        assert values == [int.from_bytes(each[1:5], "little") for each in batch.payload_list()]
        columns = batch.slice_ids.tolist(), batch.topics_per_message(), values
        assert [subscriber.topics(slice_id).index(topic) for slice_id, topic, _ in zip(*columns, strict=True)] == (
            batch.topic_numbers[batch.topic_index].tolist()
        )
        see(number, batch)

    for number, wish in enumerate(wishes):
        if wish.kind == "compiled":
            compiled.append(subscriber.on_compiled(wish.prefix, state=numpy.zeros(1, numpy.int64))(add))
        elif wish.kind == "batch":
            subscriber.on_batch(wish.prefix)(lambda batch, number=number: take(number, batch))
        else:
            subscriber.on(wish.prefix)(lambda message, number=number: see(number, [message]))
    statistics = subscriber.replay(Replay(recordings, **how))
    sums = [{n: int(state[0]) for n, state in each.states.items() if state[0]} for each in compiled]
    return seen, sums, statistics


@pytest.mark.usefixtures("run_lengths")
@settings(deadline=None, max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(days(), min_size=2, max_size=3), wishes_strategy, st.sampled_from([None, 1000.0]))
def test_feeds_of_several_schemas_are_merged_into_one_order(
    feeds: list[Any], wishes: list[Wish], speed: float | None
) -> None:
    with TemporaryDirectory() as directory:
        recorded = write_feeds(Path(directory), feeds)
        recordings = [Recording.open(Path(directory) / name) for name in NAMES[: len(feeds)]]
        controls = Controls(speed, clock=ManualClock(automatic=True))
        seen, sums, statistics = replayed(recordings, wishes, order="event", controls=controls)
    assert (seen, sums) == expected(recorded, [slices for slices, _ in feeds], wishes)
    assert statistics.messages == sum(map(len, recorded))
    assert statistics.misplaced == 0


@settings(deadline=None, max_examples=examples(40))
@given(st.lists(days(), min_size=2, max_size=3))
def test_compiled_callbacks_and_sending_order_keep_feeds_apart(feeds: list[Any]) -> None:
    with TemporaryDirectory() as directory:
        recorded = write_feeds(Path(directory), feeds)
        recordings = Recordings.open(*(Path(directory) / name for name in NAMES[: len(feeds)]))
        wishes = [Wish("compiled", b""), Wish("compiled", b"A")]
        _, sums = expected(recorded, [slices for slices, _ in feeds], wishes)
        for order in ("event", "sent"):
            assert replayed(recordings, wishes, order=order)[1] == sums
        seen, _, _ = replayed(recordings, [Wish("batch", b"")], order="sent")
    assert Counter(each.value for each in seen) == Counter(value_of(m) for messages in recorded for m in messages)
    for each in seen:
        assert each.value % 100 == NAMES.index(each.feed)


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


def test_batches_of_recordings_name_their_feed(tmp_path: Path) -> None:
    recordings = Recordings([write_one(tmp_path, 0, [1_000]), write_one(tmp_path, 1, [1_000, 1_001])])
    found = [
        (batch.feed, batch.records(KINDS[NAMES.index(batch.feed)])["value"].tolist()) for batch in recordings.batches()
    ]
    assert found == [("zulu", [0]), ("alpha", [0, 1])]


def test_a_live_batch_names_its_feed() -> None:
    feed = Feed.local("live")
    subscriber = Subscriber(feed)
    found: list[str] = []
    subscriber.on_batch(b"")(lambda batch: found.append(batch.feed))
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        publisher.publish(b"A.x", b"text")
    subscriber.run(until_end=True)
    assert found == ["live"]


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
    found: list[tuple[int, int]] = []
    subscriber.on(b"")(lambda message: found.append((message.slice_id, message.record.value)))
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        Replay(recordings).publish(publisher)
    subscriber.run(until_end=True)
    assert found == [(0, n) for n in range(5_000)] * 2


def test_slices_and_times_that_differ_between_feeds_are_refused(tmp_path: Path) -> None:
    recordings = [write_one(tmp_path, 0, [1_000], time_zone="America/New_York"), write_one(tmp_path, 1, [1_000])]
    with pytest.raises(ConfigError, match=r"slices were given for .* feeds \('zulu', 'alpha'\), expected one"):
        Replay(recordings, slices=[0])
    with pytest.raises(ConfigError, match=r"time '14:30' is another in each of .* \['America/New_York', 'UTC'\]"):
        Replay(recordings, start="14:30")
