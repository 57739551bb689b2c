"""A replay reports the gaps of a recording at the positions where they were reported live."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import msgspec
import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blackbox import Batch, CallbackError, Gap, Message, Recorder, Recording, Subscriber
from blackbox.errors import SubscriberError
from blackbox.testing import RawPublisher, wait_until
from tests.archive.recorders import days, feed_of
from tests.examples import examples

KEYS = (b"A", b"B")
Sent = tuple[int, bytes, int, int, bool]
"""Slice, key, messages, step of the market's time in ns, and True if lost on the way to the recorder."""

sent_strategy = st.lists(
    st.tuples(
        st.integers(0, 1), st.sampled_from(KEYS), st.integers(1, 4), st.sampled_from([0, 0, 1, 7]), st.booleans()
    ),
    min_size=1,
    max_size=25,
)


def recorded(directory: Path, blocks: list[Sent], key_bytes: int = 0, slices: int = 1) -> Any:
    """Record the blocks that are not lost and return the day."""
    feed = feed_of(slices=slices, key_bytes=key_bytes)
    now = 1_600_000_000_000_000_000
    with RawPublisher(feed) as publisher, Recorder(feed, directory) as recorder:
        for slice_id, key, count, later, is_lost in blocks:
            now += later
            times = numpy.full(count, now)
            messages = [(key + b".x", b"payload")] * count
            block = publisher.encode(messages, slice_id=slice_id % slices, ts_event=times)
            if not is_lost:
                publisher.send(block)
        many = sum(count for _, _, count, _, is_lost in blocks if not is_lost)
        wait_until(lambda: recorder.statistics().messages == many)
        publisher.heartbeat(end=True)
        recorder.run(until_end=True)
    return Recording.open(days(directory, feed)[0])


def expected(blocks: list[Sent]) -> dict[int, list[tuple[int, int]]]:
    """Return per slice the messages as (number, 0) and the gaps as (first, count), from a loop over the blocks sent."""
    told: dict[int, list[tuple[int, int]]] = {}
    following: dict[int, int] = {}
    lost: dict[int, int] = {}
    for slice_id, _, count, _, is_lost in blocks:
        first = following.get(slice_id, 0)
        following[slice_id] = first + count
        if is_lost:
            lost[slice_id] = lost.get(slice_id, 0) + count
            continue
        of_slice = told.setdefault(slice_id, [])
        if missing := lost.pop(slice_id, 0):
            of_slice.append((first - missing, missing))
        of_slice.extend((number, 0) for number in range(first, first + count))
    for slice_id, missing in lost.items():  # the publisher's last heartbeat reveals these gaps
        told.setdefault(slice_id, []).append((following[slice_id] - missing, missing))
    return told


@settings(deadline=None, max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
@given(sent_strategy, st.sampled_from([0, 1]), st.sampled_from(["event", "sent"]), st.sampled_from(["on", "batch"]))
def test_gaps_are_reported_between_the_messages_around_them(
    blocks: list[Sent], key_bytes: int, order: Literal["event", "sent"], kind: str
) -> None:
    with TemporaryDirectory() as directory:
        blocks = [(0, b"A", 1, 0, False), *blocks]
        day = recorded(Path(directory), blocks, key_bytes, slices=2)
        subscriber = Subscriber(day.feed)
        seen: dict[int, list[tuple[int, int]]] = {}

        def note(message: Message) -> None:
            seen.setdefault(message.slice_id, []).append((message.sequence, 0))

        if kind == "on":
            subscriber.on(b"")(note)
        else:

            @subscriber.on_batch(b"")
            def _(batch: Batch) -> None:
                for message in batch:
                    note(message)

        subscriber.on_gap(b"")(lambda gap: seen.setdefault(gap.slice_id, []).append((gap.sequence, gap.count)))
        subscriber.replay(day, order=order)
        assert seen == expected(blocks)


BROKEN: list[Sent] = [(0, b"A", 2, 1, number % 3 == 1) for number in range(12)]
GAPS = [(first, 2) for first in (2, 8, 14, 20)]


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Return a day with GAPS; tests must not change it."""
    found: Recording = recorded(tmp_path_factory.mktemp("broken"), BROKEN)
    return found


def test_compiled_callbacks_read_the_number_lost_from_their_batch(day: Recording) -> None:
    subscriber = Subscriber(day.feed)

    def sum_up(batch: Any, state: Any) -> None:
        state[0] += batch.lost
        state[1] += 1 if batch.lost else 0
        state[2] += len(batch.rows)

    totals = subscriber.on_compiled(b"", state=numpy.zeros(3, numpy.int64))(sum_up)
    subscriber.replay(day)
    assert totals.total().tolist() == [8, 4, 16]


def test_messages_before_the_first_one_played_are_no_gap(day: Recording) -> None:
    subscriber = Subscriber(day.feed)
    gaps: list[tuple[int, int]] = []
    subscriber.on(b"")(lambda _: None)
    subscriber.on_gap(b"")(lambda gap: gaps.append((gap.sequence, gap.count)))
    subscriber.replay(day)
    assert gaps == GAPS
    gaps.clear()
    middle = next(batch for batch in day.batches() if batch.sequence[0] == 10)
    subscriber.replay(day, start=int(middle.ts_event[0]))
    assert gaps == GAPS[2:]
    gaps.clear()
    subscriber.replay(day, loops=2)
    assert gaps == GAPS * 2


def test_a_damaged_block_among_gaps_is_a_gap(day: Recording, tmp_path: Path) -> None:
    damaged = shutil.copytree(day.path, tmp_path / "damaged")
    place = next(damaged.rglob("*.journal"))
    data = bytearray(place.read_bytes())
    at = [n for n in range(len(data)) if data.startswith(b"payload", n)]
    data[at[6]] ^= 0xFF  # messages 10 and 11
    place.write_bytes(data)
    subscriber = Subscriber(day.feed)
    gaps: list[Gap] = []
    subscriber.on(b"")(lambda _: None)
    subscriber.on_gap(b"")(gaps.append)
    subscriber.replay(Recording.open(damaged))
    assert gaps == Recording.open(damaged).gaps()
    assert len(gaps) == 4


def test_a_hook_that_raises_ends_the_replay(day: Recording) -> None:
    subscriber = Subscriber(day.feed)
    batches: list[Batch] = []
    subscriber.on_batch(b"")(batches.append)

    @subscriber.on_gap(b"")
    def fail(_: Gap) -> None:
        raise ValueError("no more")

    with pytest.raises(CallbackError, match="on_gap"):
        subscriber.replay(day)
    assert sum(len(batch) for batch in batches) == 2


def test_gaps_of_several_feeds_have_the_numbers_of_played_slices(day: Recording, tmp_path: Path) -> None:
    found = []
    for name in ("one", "two"):
        copy = Recording.open(shutil.copytree(day.path, tmp_path / name))
        copy.feed = msgspec.structs.replace(day.feed, name=name)
        found.append(copy)
    subscriber = Subscriber(feed_of())
    told: list[tuple[int, int]] = []
    subscriber.on(b"")(lambda _: None)
    subscriber.on_gap(b"")(lambda gap: told.append((gap.slice_id, gap.sequence)))
    subscriber.replay(found)
    assert sorted(told) == [(slice_id, first) for slice_id in (0, 1) for first, _ in GAPS]


def test_a_hook_for_gaps_is_removed_but_not_added_during_a_replay(day: Recording) -> None:
    subscriber, gaps, errors = Subscriber(day.feed), list[Gap](), list[str]()

    @subscriber.on_gap(b"")
    def once(gap: Gap) -> None:
        gaps.append(gap)
        subscriber.remove(once)

    @subscriber.on(b"")
    def add(_: Message) -> None:
        with pytest.raises(SubscriberError, match="on_gap was called during a replay") as caught:
            subscriber.on_gap(b"")(once)
        errors.append(str(caught.value))

    subscriber.replay(day)
    assert len(gaps) == 1
    assert errors
