"""Checkpoints and named consumers with streams: a message that waits in a stream, or is being handled, is not done."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from blackbox import Batch, Feed, Publisher, Recorder, Recording, Subscriber
from blackbox.archive.consumer_positions import PositionFile
from blackbox.block.position import Position
from blackbox.subscribe import supervisor
from blackbox.subscribe.checkpoint import Checkpoint
from blackbox.subscribe.stream import Stream
from blackbox.testing import wait_until
from tests.archive.archives import archived_feed
from tests.archive.recorders import publish_numbered, wait_recorded
from tests.archive.written_days import few
from tests.journals import Day, Put, Row, feed_of
from tests.recovery.test_checkpoints import publish
from tests.subscribe.subscribers import PATIENT, nothing
from tests.support import Script

T = TypeVar("T")
ENOUGH_S = 60.0


def streaming(slices: int = 1, prefix: bytes = b"", **settings: Any) -> tuple[Feed, Subscriber, Stream]:
    feed = Feed.local("cut", slices=slices)
    subscriber = Subscriber(feed, slow=PATIENT)
    return feed, subscriber, subscriber.stream(prefix, **settings)


def cut(subscriber: Subscriber) -> dict[int, int]:
    """Return the sequences of a checkpoint made in this thread."""
    with subscriber.checkpoint() as positions:
        return {slice_id: position.sequence for slice_id, position in positions.items()}


def elsewhere(subscriber: Subscriber) -> dict[int, int]:
    """Return the sequences of a checkpoint made in another thread than the reader's."""
    return elsewhere_of(cut, subscriber)


def elsewhere_of(make: Callable[[Subscriber], dict[int, T]], subscriber: Subscriber) -> dict[int, T]:
    """Return what `make` returns in another thread than the reader's."""
    found: list[dict[int, T]] = []
    thread = threading.Thread(target=lambda: found.append(make(subscriber)))
    thread.start()
    thread.join(ENOUGH_S)
    return found[0]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("limit", [1, 10_000])
def test_each_message_is_done_once_the_next_one_is_asked_for(workers: int, limit: int) -> None:
    """With a limit of 1 the worker waits for room, which must not block the reader's checkpoint."""
    feed = Feed.local("cut", slices=1)
    subscriber = Subscriber(feed, workers=workers, slow=PATIENT)
    stream = subscriber.stream(b"", limit=limit)
    with Publisher(feed, when_full="wait") as publisher, subscriber:
        publish(publisher, 0, 500)
        for number in range(500):
            assert stream.get(ENOUGH_S).sequence == number
            if number % 50 in (0, 1, 7, 49):
                assert elsewhere(subscriber) == {0: number}
                assert cut(subscriber) == {0: number + 1}
        with pytest.raises(TimeoutError):
            stream.get(0.001)
        assert elsewhere(subscriber) == {0: 500}


def test_a_batch_is_done_as_a_whole() -> None:
    feed, subscriber, stream = streaming(batches=True)
    with Publisher(feed, when_full="wait") as publisher, subscriber:
        publish(publisher, 0, 100)
        done = 0
        while done < 100:
            batch = stream.get(ENOUGH_S)
            assert int(batch.sequence[0]) == done
            assert elsewhere(subscriber) == {0: done}
            done += len(batch)
            assert cut(subscriber) == {0: done}


def test_unsubscribed_messages_are_done_once_all_earlier_ones_are() -> None:
    feed, subscriber, stream = streaming(prefix=b"C")
    with Publisher(feed, when_full="wait") as publisher, subscriber:
        publish(publisher, 0, 100)  # topic C has 2, 10, 18 ... 98
        wanted = range(2, 100, 8)
        wait_until(lambda: subscriber.statistics().delivery.delivered == len(wanted))
        assert cut(subscriber) == {0: 2}
        for number in wanted:
            assert stream.get(ENOUGH_S).sequence == number
            assert elsewhere(subscriber) == {0: number}
        assert cut(subscriber) == {0: 100}


def test_the_stream_furthest_behind_decides_in_each_slice() -> None:
    feed = Feed.local("cut", slices=2)
    subscriber = Subscriber(feed, slow=PATIENT)
    streams = [subscriber.stream(b"") for _ in range(2)]
    subscriber.on(b"")(nothing)
    with Publisher(feed, when_full="wait") as publisher, subscriber:
        publish(publisher, 0, 400)
        wait_until(lambda: subscriber.statistics().delivery.delivered == 3 * 400)
        taken = [{0: 0, 1: 0}, {0: 0, 1: 0}]
        for which, many in ((0, 130), (1, 70), (1, 200), (0, 270), (1, 130)):
            for _ in range(many):
                message = streams[which].get(ENOUGH_S)
                taken[which][message.slice_id] = message.sequence + 1
            assert cut(subscriber) == {n: min(taken[0][n], taken[1][n]) for n in (0, 1)}
        assert sum(taken[0].values()) == 400


def test_dropped_messages_and_closed_streams_are_done() -> None:
    feed, subscriber, stream = streaming(limit=50, when_full="drop_oldest")
    subscriber.on(b"")(nothing)
    with Publisher(feed, when_full="wait") as publisher, subscriber:
        publish(publisher, 0, 500)
        wait_until(lambda: subscriber.statistics().delivery.delivered == 2 * 500)
        assert cut(subscriber) == {0: stream.dropped}
        assert stream.dropped > 0
        stream.close()
        assert cut(subscriber) == {0: 500}


def test_what_is_left_after_the_end_is_not_done() -> None:
    feed, subscriber, stream = streaming()
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        publish(publisher, 0, 500)
    subscriber.run(until_end=True)
    assert cut(subscriber) == {0: 0}
    for message in stream:
        assert cut(subscriber) == {0: message.sequence + 1}
        if message.sequence == 300:
            break
    assert elsewhere(subscriber) == {0: 300}
    assert len(list(stream)) == 199
    assert cut(subscriber) == {0: 500}


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_only_the_task_that_reads_can_finish_a_message(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    feed, subscriber, stream = streaming()

    async def other() -> dict[int, int]:
        return cut(subscriber)

    async def read() -> int:
        async for message in stream:
            assert await asyncio.create_task(other()) == {0: message.sequence}
            assert await asyncio.to_thread(cut, subscriber) == {0: message.sequence}
            assert cut(subscriber) == {0: message.sequence + 1}
            if message.sequence == 59:
                break
        return 60

    with Publisher(feed, when_full="wait") as publisher, subscriber:
        publish(publisher, 0, 100)
        with asyncio.Runner(loop_factory=loop) as runner:
            assert runner.run(asyncio.wait_for(read(), ENOUGH_S)) == 60


def test_a_task_that_waits_has_finished_what_it_took() -> None:
    feed, subscriber, stream = streaming()

    async def read() -> None:
        async for _ in stream:
            pass

    async def main() -> None:
        reading = asyncio.create_task(read())
        async with asyncio.timeout(ENOUGH_S):
            while await asyncio.to_thread(cut, subscriber) != {0: 100}:
                pass
        reading.cancel()

    with Publisher(feed, when_full="wait") as publisher, subscriber:
        publish(publisher, 0, 100)
        asyncio.run(main())


@few
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.booleans(), st.sampled_from(b"AB")), max_size=12),
    st.lists(st.sampled_from(["put", "take", "take"]), max_size=60),
    st.booleans(),
    st.sampled_from([0, 1]),
)
def test_undone_messages_match_plain_lists(
    tmp_path_factory: Any, of: list[tuple[int, int, bool, int]], steps: list[str], batches: bool, key_bytes: int
) -> None:
    """Blocks of three slices, over several epochs, are put and taken in any order."""
    day = Day(tmp_path_factory.mktemp("undone"), feed_of(slices=3, key_bytes=key_bytes))
    epochs, following = [1] * 3, dict[tuple[int, int], int]()
    for time, (slice_id, count, restarts, letter) in enumerate(of):
        epochs[slice_id] += restarts
        topic = bytes([letter])
        run = slice_id, epochs[slice_id]
        first = following.get(run, 0)
        day.put(slice_id, Put(tuple(Row(topic, b"") for _ in range(count)), first, time, time, epochs[slice_id]))
        following[run] = first + count
    come = list(Recording.open(day.path).batches()) if of else []
    stream = Stream(b"", 1_000, "wait", batches, lambda: None, lambda _: None)
    waits: list[list[tuple[Batch, int]]] = []
    took: list[tuple[Batch, int]] = []

    def first_of(items: list[tuple[Batch, int]]) -> dict[int, Position]:
        found: dict[int, Position] = {}
        for batch, number in items:
            at = Position(batch.block.epoch, number)
            found[batch.block.slice_id] = min(at, found.get(batch.block.slice_id, at))
        return found

    for step in steps:
        if step == "put" and come:
            batch = come.pop(0)
            items = [(batch, number) for number in batch.sequence.tolist()]
            waits += [items] if batches else [[item] for item in items]
            stream._put(batch)
        elif step == "take" and waits:
            stream.get(ENOUGH_S)
            took = waits.pop(0)
        elif step == "take":
            with pytest.raises(TimeoutError):
                stream.get(0)
            took = []
        left = [item for items in waits for item in items]
        assert stream._undone(by_reader=True) == first_of(left)
        assert stream._undone(by_reader=False) == first_of([*took, *left])


def kept_number(file: PositionFile) -> int:
    """Return the next sequence in a consumer's file."""
    kept = file.read()
    assert kept is not None
    return kept.slices[0].sequence


def test_a_named_consumer_never_stores_more_than_its_reader_has_done(tmp_path: Path) -> None:
    """It stores positions every few milliseconds; its process is killed repeatedly."""
    feed = archived_feed(block_bytes=4_096)
    code = f"""
        subscriber = Subscriber(feed, slow=SlowPolicy(max_lag=100), on_gap="repair", repair_wait=10,
                                name="strategy-1", positions={str(tmp_path)!r}, checkpoint_interval=0.002)
        stream = subscriber.stream(b"", limit=200)
        subscriber.start(since=None if os.path.exists({str(tmp_path / "strategy-1.positions")!r}) else 0)
        say("started")
        with open({str(tmp_path / "done")!r}, "a", buffering=1) as done:
            for message in stream:
                print(int.from_bytes(message.payload[:8], "little"), file=done)
                if message.sequence % 100 == 99:
                    say("done", message.sequence)
    """
    file = PositionFile(tmp_path, "strategy-1")
    rounds: list[int] = []
    with Publisher(feed, when_full="drop") as publisher, Recorder(feed, tmp_path / "days", serve=True) as recorder:
        published = 0
        for round_ in range(3):
            with Script(code, feed) as script:
                script.expect("started")
                for _ in range(20):
                    publish_numbered(publisher, published, 50)
                    published += 50
                    publisher.flush()
                wait_recorded(recorder, published)
                least = published if round_ == 2 else published - 300
                while int(script.read().split()[1]) < least - 1:
                    pass
                if round_ == 0:
                    wait_until(lambda: kept_number(file) > 0)
                script.kill()
            done = [int(line) for line in (tmp_path / "done").read_text().splitlines()]
            rounds.append(kept_number(file))
            assert rounds[-1] <= done[-1] + 1
    assert rounds == sorted(rounds)
    assert sorted(set(done)) == list(range(published))
    again = [number for before, number in zip(done, done[1:], strict=False) if number != before + 1]
    assert len(again) <= 2  # one message per kill
    assert set(again) <= set(rounds)


def test_a_killed_reader_of_a_stream_resumes_exactly_once(tmp_path: Path) -> None:
    """Its state and positions are one database transaction, made in the thread that reads."""
    feed = archived_feed(block_bytes=4_096)
    code = f"""
        import sqlite3
        database = sqlite3.connect({str(tmp_path / "state.db")!r}, isolation_level=None)
        database.execute("CREATE TABLE IF NOT EXISTS heard (number INTEGER)")
        database.execute("CREATE TABLE IF NOT EXISTS positions (slice PRIMARY KEY, epoch INTEGER, next INTEGER)")
        since = {{s: (e, n) for s, e, n in database.execute("SELECT * FROM positions")}} or 0
        subscriber = Subscriber(feed, slow=SlowPolicy(max_lag=100), on_gap="repair", repair_wait=10)
        stream = subscriber.stream(b"", limit=100)
        heard = []
        subscriber.start(since=since)
        say("started")
        for message in stream:
            heard.append(int.from_bytes(message.payload[:8], "little"))
            if len(heard) % 37 and (message.sequence + 1) % 500:
                continue
            with subscriber.checkpoint() as positions:
                database.execute("BEGIN IMMEDIATE")
                database.executemany("INSERT INTO heard VALUES (?)", [(number,) for number in heard])
                database.executemany("REPLACE INTO positions VALUES (?, ?, ?)", [(s, *p) for s, p in positions.items()])
                database.execute("COMMIT")
                heard.clear()
            say("kept", positions[0].sequence)
    """
    with Publisher(feed, when_full="drop") as publisher, Recorder(feed, tmp_path / "days", serve=True) as recorder:
        published = 0
        for round_ in range(3):
            with Script(code, feed) as script:
                script.expect("started")
                for step in range(20):
                    publish_numbered(publisher, published, 25)
                    published += 25
                    publisher.flush()
                    if round_ % 2 and step % 2:  # of 50 more, at least 37 are stored
                        script.read()
                if round_ == 2:
                    wait_recorded(recorder, published)
                    while script.read() != f"kept {published}":
                        pass
                script.kill()
    with closing(sqlite3.connect(tmp_path / "state.db")) as database:
        heard = [number for (number,) in database.execute("SELECT number FROM heard ORDER BY rowid")]
    assert heard == list(range(published))


def test_a_stream_made_while_a_checkpoint_begins_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages in it are not done. Another thread creates and fills the stream at the worst moment."""
    feed = Feed.local("cut", slices=1)
    subscriber = Subscriber(feed, slow=PATIENT)
    subscriber.on(b"")(lambda _: None)
    made: list[Stream] = []

    class SlowToBegin(Checkpoint):
        def __init__(self, slices: Any) -> None:
            super().__init__(slices)
            thread = threading.Thread(target=make_and_fill)
            thread.start()
            thread.join(ENOUGH_S)

    def make_and_fill() -> None:
        made.append(subscriber.stream(b"", limit=1))
        subscriber.wait_confirmed()
        publish(publisher, 50, 50)
        wait_until(lambda: made[0]._messages > 0)

    with Publisher(feed, when_full="wait") as publisher, subscriber:
        publish(publisher, 0, 50)
        wait_until(lambda: subscriber.statistics().delivery.delivered == 50)
        monkeypatch.setattr(supervisor, "Checkpoint", SlowToBegin)
        with subscriber.checkpoint() as positions:
            assert positions[0].sequence == 50
        assert made[0].get(ENOUGH_S).sequence == 50
