"""Streams: messages pulled in a loop, one by one and in asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox import CallbackError, Publisher, Recording, SlowPolicy, SlowSubscriberError, Subscriber
from blackbox.errors import SubscriberError
from blackbox.receive.stream import Stream
from blackbox.testing import RawPublisher, wait_until
from tests.examples import examples, first_of
from tests.journals import Day, Put, Row, feed_of
from tests.receive.subscribers import deliver, one_slice, published, sliced

ENOUGH_S = 60.0
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
on_both_loops = pytest.mark.parametrize("loop", first_of(LOOPS), ids=["asyncio", "uvloop"])


def run(main: Any, loop: Callable[[], asyncio.AbstractEventLoop]) -> Any:
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(main)


def numbers(stream: Any) -> list[int]:
    return [int(message.payload) for message in stream]


def rows_of(block: range) -> list[tuple[bytes, bytes]]:
    return [(b"T", b"%d" % number) for number in block]


def send(publisher: RawPublisher, *blocks: range) -> None:
    for block in blocks:
        publisher.send(publisher.encode(rows_of(block)))


@contextmanager
def streaming(prefix: bytes = b"", **settings: Any) -> Iterator[tuple[RawPublisher, Subscriber, Stream]]:
    """Start a subscriber with a stream next to a raw publisher. After the block its subscriber stops."""
    subscriber = Subscriber(feed := one_slice())
    stream = subscriber.stream(prefix, **settings)
    with RawPublisher(feed) as publisher, subscriber:
        yield publisher, subscriber, stream


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_gets_all_messages_in_order_and_ends_with_the_subscriber(workers: int) -> None:
    subscriber = Subscriber(feed := one_slice(), workers=workers)
    stream = subscriber.stream(b"T", limit=10)
    got: list[int] = []
    reader = threading.Thread(target=lambda: got.extend(int(message.payload) for message in stream))
    with Publisher(feed, when_full="wait") as publisher, subscriber:
        reader.start()
        for number in range(2_000):
            publisher.publish(b"T", b"%d" % number)
        wait_until(lambda: len(got) == 2_000)
    reader.join(ENOUGH_S)
    assert (reader.is_alive(), got) == (False, list(range(2_000)))
    with pytest.raises(SubscriberError, match="stream of b'T': get was called after its end"):
        stream.get()


def test_messages_and_batches_left_after_the_end_or_a_break_can_be_taken() -> None:
    subscriber = Subscriber(feed := one_slice())
    stream, batches = subscriber.stream(b""), subscriber.stream(b"", batches=True)
    with pytest.raises(TimeoutError, match=r"nothing came in 0\.01 s"):
        stream.get(0.01)
    deliver(subscriber, feed, rows_of(range(3)), rows_of(range(3, 7)))
    for message in stream:
        if message.payload == b"1":
            break
    assert stream.get().payload == b"2"
    assert numbers(stream) == [3, 4, 5, 6]
    assert [numbers(batch) for batch in batches] == [[0, 1, 2], [3, 4, 5, 6]]


def test_a_full_stream_that_waits_is_lag_and_ends_a_slow_subscriber() -> None:
    policy = SlowPolicy("raise", max_lag=0.05, start_grace=0)
    subscriber = Subscriber(feed := one_slice(), slow=policy)
    stream = subscriber.stream(b"", limit=1)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        send(publisher, *(range(n, n + 1) for n in range(10)))
        with pytest.raises(SlowSubscriberError):
            subscriber.run()
    with pytest.raises(SlowSubscriberError):
        numbers(stream)


def test_a_full_stream_drops_the_oldest_and_counts_them(caplog: pytest.LogCaptureFixture) -> None:
    with streaming(limit=4, when_full="drop_oldest") as (publisher, subscriber, stream):
        send(publisher, range(2), range(2, 4), range(4, 7), range(7, 8))
        wait_until(lambda: subscriber.statistics().delivery.delivered == 8)
        assert numbers([stream.get() for _ in range(4)]) == [4, 5, 6, 7]
    assert (stream.dropped, numbers(stream)) == (4, [])
    assert caplog.text.count("stream of b'' is full: the oldest of 4 messages are dropped") == 1


def test_a_full_stream_can_end_the_subscriber() -> None:
    full = "stream of b'' was full: 2 messages waited .* and 2 came"
    with (
        pytest.raises(CallbackError, match=full),
        streaming(limit=2, when_full="stop") as (publisher, subscriber, stream),
    ):
        send(publisher, range(2), range(2, 4))
        subscriber.run()
    assert [stream.get().payload, stream.get().payload] == [b"0", b"1"]
    with pytest.raises(CallbackError, match=full):
        stream.get()


@pytest.mark.parametrize("end", ["stop", "terminate"])
def test_a_subscriber_ends_with_an_unread_full_stream(end: str) -> None:
    with streaming(limit=1) as (publisher, subscriber, stream):
        send(publisher, *(range(n, n + 1) for n in range(5)))
        wait_until(lambda: subscriber.statistics().received.blocks == 5)
        getattr(subscriber, end)()
    left = numbers(stream)
    assert left == list(range(len(left)))
    assert end == "terminate" or len(left) == 5


def test_a_closed_stream_gets_nothing_and_its_subscriber_continues() -> None:
    subscriber = Subscriber(feed := one_slice())
    kept: list[int] = []
    subscriber.on(b"")(lambda message: kept.append(int(message.payload)))
    with RawPublisher(feed) as publisher, subscriber:
        with subscriber.stream(b"", limit=1) as stream:
            subscriber.wait_confirmed()
            send(publisher, range(1), range(1, 2), range(2, 3))
            assert stream.get(ENOUGH_S).payload == b"0"
        wait_until(lambda: kept == [0, 1, 2], what="a worker that waited for room continues")
        send(publisher, range(3, 4))
        wait_until(lambda: len(kept) == 4)
        assert len(subscriber.callbacks) == 1
        stream.close()
    assert numbers(stream) == []


@on_both_loops
def test_asyncio_gets_all_messages_of_several_streams(loop: Any) -> None:
    subscriber = Subscriber(feed := sliced(2), slow=SlowPolicy(max_lag=60, start_grace=0))
    names = (b"A", b"B", b"")
    streams = [subscriber.stream(name, limit=50) for name in names]

    async def take(stream: Stream) -> list[bytes]:
        return [message.topic async for message in stream]

    async def main() -> list[list[bytes]]:
        return await asyncio.gather(*map(take, streams))

    def feed_it() -> None:
        with published(feed, subscriber) as publisher:
            for number in range(1_200):
                publisher.publish(b"%c.%d" % (b"AB"[number % 2], number % 100), b"")

    sending = threading.Thread(target=feed_it)
    sending.start()
    found = run(main(), loop)
    sending.join()
    assert [len(each) for each in found] == [600, 600, 1_200]
    for name, topics in zip(names, found, strict=True):
        assert all(topic.startswith(name) for topic in topics)


@on_both_loops
def test_a_cancelled_task_loses_nothing(loop: Any) -> None:
    with streaming() as (publisher, _, stream):

        async def main() -> None:
            for number in range(10):
                task = asyncio.ensure_future(anext(stream))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                send(publisher, range(number, number + 1))
                assert int((await asyncio.wait_for(anext(stream), ENOUGH_S)).payload) == number

        run(main(), loop)
        send(publisher, range(10, 11))
        assert stream.get(ENOUGH_S).payload == b"10"  # its loop is closed; the stream is not


@on_both_loops
def test_tasks_that_take_turns_share_a_stream_without_loss(loop: Any) -> None:
    subscriber = Subscriber(feed := one_slice())
    stream = subscriber.stream(b"")
    deliver(subscriber, feed, *(rows_of(range(n, n + 2)) for n in range(0, 12, 2)))
    got: list[int] = []

    async def take() -> None:
        async for message in stream:
            await asyncio.sleep(0)
            got.append(int(message.payload))

    async def main() -> None:
        await asyncio.gather(take(), take())

    run(main(), loop)
    assert sorted(got) == list(range(12))


@on_both_loops
def test_a_closed_loop_with_a_waiting_task_does_not_block_the_stream(loop: Any) -> None:
    with streaming() as (publisher, _, stream):
        forgetful = loop()
        left = forgetful.create_task(anext(stream))  # kept, so that it is not cleaned up
        forgetful.run_until_complete(asyncio.sleep(0.001))
        forgetful.close()
        send(publisher, range(1))

        async def take() -> Any:
            return await asyncio.wait_for(anext(stream), ENOUGH_S)

        assert run(take(), loop).payload == b"0"
        assert not left.done()
        left.get_coro().close()


@on_both_loops
def test_two_tasks_cannot_read_one_stream(loop: Any) -> None:
    with streaming() as (_, _, stream):

        async def main() -> list[Any]:
            tasks = [asyncio.ensure_future(anext(stream)) for _ in range(2)]
            done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=ENOUGH_S)
            for task in waiting:
                task.cancel()
            return [task.exception() for task in done]

        [error] = run(main(), loop)
    assert "was read by two tasks at once" in str(error)


@on_both_loops
def test_a_task_is_woken_by_the_end_and_gets_the_error(loop: Any) -> None:
    with pytest.raises(CallbackError, match="RuntimeError: no"), streaming(b"A") as (publisher, subscriber, stream):

        @subscriber.on(b"B")
        def fail(message: object) -> None:
            raise RuntimeError("no")

        subscriber.wait_confirmed()

        async def take() -> list[bytes]:
            return [message.topic async for message in stream]

        async def main() -> None:
            task = asyncio.ensure_future(take())
            await asyncio.sleep(0)
            publisher.send(publisher.encode([(b"B", b"")]))
            with pytest.raises(CallbackError, match="RuntimeError: no"):
                await asyncio.wait_for(task, ENOUGH_S)

        run(main(), loop)


def recorded(path: Path, of: list[int]) -> Recording:
    """A day of blocks with these numbers of messages, numbered consecutively."""
    day = Day(path / "2026-11-20", feed_of(), date="2026-11-20")
    number = 0
    for count in of:
        rows = tuple(Row(b"T", b"%d" % n, 1_000 + n) for n in range(number, number + count))
        day.put(0, Put(rows, sequence=number, ts_out=5_000 + number))
        number += count
    return Recording.open(day.path)


@settings(deadline=None, max_examples=examples(80))
@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=12),
    st.integers(1, 30),
    st.lists(st.sampled_from(["get", "loop", "anext"]), min_size=1, max_size=5),
)
def test_any_way_of_reading_gives_the_recorded_order(
    tmp_path_factory: Any, of: list[int], limit: int, ways: Any
) -> None:
    recording = recorded(tmp_path_factory.mktemp("streams"), of)
    subscriber = Subscriber(recording.feed)
    stream = subscriber.stream(b"", limit=limit)
    playing = threading.Thread(target=subscriber.replay, args=(recording,))
    got: list[int] = []

    async def one() -> Any:
        return await anext(stream)

    with asyncio.Runner() as runner:
        playing.start()
        while len(got) < sum(of):
            way = ways[len(got) % len(ways)]
            if way == "get":
                message = stream.get(ENOUGH_S)
            else:
                message = runner.run(one()) if way == "anext" else next(iter(stream))
            got.append(int(message.payload))
    playing.join()
    assert got + numbers(stream) == list(range(sum(of)))


def test_stopping_a_replay_releases_a_full_stream(tmp_path: Path) -> None:
    recording = recorded(tmp_path, [1] * 20)
    subscriber = Subscriber(recording.feed)
    stream = subscriber.stream(b"", limit=1)
    playing = threading.Thread(target=subscriber.replay, args=(recording,))
    playing.start()
    assert stream.get(ENOUGH_S).payload == b"0"
    subscriber.stop()
    playing.join(ENOUGH_S)
    assert not playing.is_alive()
    left = numbers(stream)
    assert left == list(range(1, 1 + len(left)))


def test_a_failing_replay_raises_for_readers_of_streams(tmp_path: Path) -> None:
    recording = recorded(tmp_path, [1] * 20)
    subscriber = Subscriber(recording.feed)

    @subscriber.on(b"")
    def fail(message: Any) -> None:
        if message.payload == b"5":
            raise RuntimeError("no")

    stream = subscriber.stream(b"")
    with pytest.raises(CallbackError, match="RuntimeError: no"):
        subscriber.replay(recording)
    with pytest.raises(CallbackError, match="RuntimeError: no"):
        numbers(stream)


def test_waiting_messages_are_bounded_by_their_blocks_too() -> None:
    subscriber = Subscriber(feed := one_slice())
    stream = subscriber.stream(b"A", when_full="drop_oldest")
    deliver(subscriber, feed, *([(b"A", b"%d" % number), *[(b"B", bytes(60_000))] * 170] for number in range(9)))
    assert numbers(stream) == [3, 4, 5, 6, 7, 8]
    assert stream.dropped == 3


def test_a_stream_can_be_closed_while_its_subscriber_begins_to_end() -> None:
    raised: list[BaseException] = []

    def close() -> None:
        try:
            stream.close()
        except SubscriberError as error:
            raised.append(error)

    closing = threading.Thread(target=close)
    with streaming() as (_, subscriber, stream):
        with subscriber._supervisor.lock:
            closing.start()
            closing.join(0.2)  # as far as it gets
            subscriber.request_stop()
        closing.join(ENOUGH_S)
    assert (closing.is_alive(), raised) == (False, [])
