"""Consistent checkpoints: no callback runs meanwhile; a message that waits in a stream is not done."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox import Batch, Feed, Message, Publisher, Recording, SlowPolicy, Subscriber
from blackbox.block.position import Position
from blackbox.errors import SubscriberError
from blackbox.receive.callbacks.checkpoint import Checkpoint
from blackbox.receive.slices.commands import Commands
from blackbox.receive.stream import Stream
from blackbox.receive.stream_queue import StreamQueue
from blackbox.receive.supervise import checkpoints
from blackbox.testing import wait_until
from tests.archive.written_days import few
from tests.examples import first_of
from tests.gate import Gate
from tests.journals import Day, Put, Row, feed_of
from tests.receive.subscribers import nothing, one_slice, published, sliced

T = TypeVar("T")
ENOUGH_S = 60.0


def publish(publisher: Publisher, first: int, count: int) -> None:
    """Publish numbers in eight topics, at least one block per 50."""
    for start in range(first, first + count, 50):
        for number in range(start, start + 50):
            publisher.publish(b"%c" % (65 + number % 8), b"%d" % number)
        publisher.flush()


def subscribed() -> tuple[Feed, Subscriber]:
    """Return a feed of one slice, and a subscriber whose callback does nothing."""
    subscriber = Subscriber(feed := one_slice())
    subscriber.on(b"")(nothing)
    return feed, subscriber


@pytest.mark.parametrize("workers", first_of([3, 0]))
def test_a_cut_is_the_same_for_all_callbacks_of_all_workers(workers: int) -> None:
    """Callbacks of every kind have received all messages before each checkpoint, and none after it."""
    subscriber = Subscriber(feed := sliced(2), workers=workers)
    seen: dict[str, dict[int, int]] = {}

    def note(who: str, slice_id: int, following: int) -> None:
        seen.setdefault(who, {})[slice_id] = following

    subscriber.on(b"")(lambda message: note("messages", message.slice_id, message.sequence + 1))
    subscriber.on_batch(b"")(lambda batch: note("batches", batch.block.slice_id, int(batch.sequence[-1]) + 1))

    def count(batch: Any, state: Any) -> None:
        state[0] = batch.sequence + batch.rows[len(batch.rows) - 1] + 1

    compiled = [
        subscriber.on_compiled(b"", state=numpy.zeros(1), worker=worker)(count) for worker in (False, bool(workers))
    ]
    ending = threading.Event()

    def go_on(publisher: Publisher) -> None:
        first = 0
        while not ending.is_set():
            publish(publisher, first, 100)
            first += 100

    with Publisher(feed, when_full="wait") as publisher, subscriber:
        thread = threading.Thread(target=go_on, args=(publisher,))
        thread.start()
        before = {0: 0, 1: 0}
        for _ in range(15):
            with subscriber.checkpoint() as positions:
                heard = {slice_id: position.sequence for slice_id, position in positions.items()}
                for who in ("messages", "batches"):
                    assert {n: seen.get(who, {}).get(n, 0) for n in heard} == heard
                for callback in compiled:
                    assert {n: int(state[0]) for n, state in callback.states.items()} == heard
                assert all(heard[n] >= before[n] for n in heard)
                assert {position.epoch for position in positions.values()} <= {publisher.epoch}
                before = heard
            wait_until(lambda: all(seen.get("messages", {}).get(n, 0) > before[n] for n in before))
        ending.set()
        thread.join()
    assert min(before.values()) > 0


def test_checkpoints_from_the_first_message_to_the_end() -> None:
    feed, subscriber = subscribed()
    with published(feed, subscriber) as publisher:
        with subscriber.checkpoint() as positions:
            assert positions == {0: (publisher.epoch, 0)}
            with pytest.raises(SubscriberError, match="in a checkpoint, where all callbacks wait"):
                subscriber.stop()
        with pytest.raises(LookupError), subscriber.checkpoint():
            raise LookupError  # delivery goes on
        publish(publisher, 0, 2_000)
        sequence = -1
        while sequence < 2_000:  # checkpoints without a pause do not starve messages
            with subscriber.checkpoint() as positions:
                assert positions[0].sequence >= sequence
                sequence = positions[0].sequence
        publish(publisher, 2_000, 500)
    with subscriber.checkpoint() as positions:
        assert positions == {0: (publisher.epoch, 2_500)}


def test_tickers_wait_for_a_checkpoint() -> None:
    feed, subscriber = subscribed()
    calls: list[int] = []
    subscriber.every(0.001)(calls.append)
    with Publisher(feed), subscriber:
        wait_until(lambda: len(calls) > 5)
        with subscriber.checkpoint():
            before = len(calls)
            late = threading.Event()
            assert not late.wait(0.02)
            assert len(calls) == before
        wait_until(lambda: len(calls) > before)


def test_a_checkpoint_times_out_while_a_callback_runs() -> None:
    subscriber = Subscriber(feed := one_slice())
    gate = Gate()
    subscriber.on(b"")(gate.message)
    with Publisher(feed, when_full="wait") as publisher, subscriber:
        publish(publisher, 0, 50)
        assert gate.entered.wait(200)
        with (
            pytest.raises(TimeoutError, match=r"callbacks of slices \[0\] had not returned in 0.1 s"),
            subscriber.checkpoint(timeout=0.1),
        ):
            pass
        gate.open.set()
        publish(publisher, 50, 50)
        wait_until(lambda: gate.messages == 100)
        with subscriber.checkpoint() as positions:
            assert positions[0].sequence == 100


def test_a_subscriber_that_is_terminated_ends_a_checkpoint() -> None:
    """Terminated while the block runs: its positions stay valid, and later checkpoints are rejected."""
    feed, subscriber = subscribed()
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        publish(publisher, 0, 50)
        wait_until(lambda: subscriber.statistics().delivery.delivered == 50)
        with subscriber.checkpoint() as positions:
            subscriber.terminate()
            assert positions[0].sequence == 50
        with (
            pytest.raises(SubscriberError, match="was terminated: queued messages were not delivered"),
            subscriber.checkpoint(),
        ):
            pass


def test_a_callback_that_raises_ends_checkpoints() -> None:
    subscriber = Subscriber(feed := one_slice())
    subscriber.on_batch(b"")(lambda batch: 1 / 0)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        publish(publisher, 0, 50)
        with pytest.raises(SubscriberError):
            while True:
                with subscriber.checkpoint():
                    pass
        with pytest.raises(SubscriberError, match="ZeroDivisionError"):
            subscriber.stop()


def test_a_wait_for_all_messages_does_not_cross_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would hold a slice that the other needs."""
    subscriber, real, seen = Subscriber(feed := sliced(2, key_bytes=2)), Commands.put_checkpoint, list[bool]()
    subscriber.on(b"S")(nothing)
    main = threading.current_thread()
    other = threading.Thread(
        target=lambda: seen.append(checkpoints.wait_until_complete(subscriber._supervisor, [0, 1], ENOUGH_S))
    )

    def put(commands: Commands, checkpoint: Checkpoint) -> None:
        real(commands, checkpoint)
        if threading.current_thread() is main and other.ident is None:
            other.start()
            assert subscriber._supervisor.lock._is_owned()  # type: ignore[attr-defined]  # so `other` waits

    with Publisher(feed), subscriber:
        monkeypatch.setattr(Commands, "put_checkpoint", put)
        with subscriber.checkpoint(ENOUGH_S):
            pass
        other.join(ENOUGH_S)
    assert seen == [True]


def test_checkpoints_that_are_rejected() -> None:
    feed = one_slice()

    def refused(subscriber: Subscriber, match: str) -> None:
        with pytest.raises(SubscriberError, match=match), subscriber.checkpoint():
            pass

    refused(Subscriber(feed), "before start")
    refused(Subscriber(feed, processes=True), "with processes=True")
    refused(Subscriber(feed, slow=SlowPolicy("conflate")), "policy 'conflate'")
    own = Subscriber(feed)
    failed: list[str] = []

    @own.on(b"")
    def checkpoint(message: Message) -> None:
        try:
            with own.checkpoint():
                pass
        except SubscriberError as error:
            failed.append(str(error))

    with Publisher(feed, when_full="wait") as publisher, own:
        publish(publisher, 0, 50)
        wait_until(lambda: len(failed) == 50)
    assert "by a callback" in failed[0]


def streaming(prefix: bytes = b"", **settings: Any) -> tuple[Feed, Subscriber, Stream]:
    subscriber = Subscriber(feed := one_slice())
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
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(make, subscriber).result(ENOUGH_S)


@pytest.mark.parametrize(("workers", "limit"), [(0, 10_000), (2, 1)])
def test_each_message_is_done_once_the_next_one_is_asked_for(workers: int, limit: int) -> None:
    """With a limit of 1 the worker waits for room, which must not block the reader's checkpoint."""
    subscriber = Subscriber(feed := one_slice(), workers=workers)
    stream = subscriber.stream(b"", limit=limit)
    with Publisher(feed, when_full="wait") as publisher, subscriber:
        publish(publisher, 0, 200)
        for number in range(200):
            assert stream.get(ENOUGH_S).sequence == number
            if number % 50 in (0, 1, 7, 49):
                assert elsewhere(subscriber) == {0: number}
                assert cut(subscriber) == {0: number + 1}
        with pytest.raises(TimeoutError):
            stream.get(0.001)
        assert elsewhere(subscriber) == {0: 200}


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
    with published(feed, subscriber) as publisher:
        publish(publisher, 0, 100)
    assert cut(subscriber) == {0: 0}
    for message in stream:
        assert cut(subscriber) == {0: message.sequence + 1}
        if message.sequence == 60:
            break
    assert elsewhere(subscriber) == {0: 60}
    assert len(list(stream)) == 39
    assert cut(subscriber) == {0: 100}


def test_only_the_task_that_reads_can_finish_a_message_also_by_waiting_for_the_next() -> None:
    feed, subscriber, stream = streaming()

    async def other() -> dict[int, int]:
        return cut(subscriber)

    async def read() -> None:
        async for message in stream:
            if message.sequence < 60:
                assert await asyncio.create_task(other()) == {0: message.sequence}
                assert await asyncio.to_thread(cut, subscriber) == {0: message.sequence}
                assert cut(subscriber) == {0: message.sequence + 1}

    async def main() -> None:
        reading = asyncio.create_task(read())
        async with asyncio.timeout(ENOUGH_S):
            while await asyncio.to_thread(cut, subscriber) != {0: 100}:
                assert not reading.done(), reading.result()
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
    stream = Stream(StreamQueue(b"", 1_000, "wait"), batches, lambda: None, lambda _: None)
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
            stream._queue.put(batch)
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


def test_a_stream_made_while_a_checkpoint_begins_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages in it are not done. Another thread creates and fills the stream at the worst moment."""
    feed, subscriber = subscribed()
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
        wait_until(lambda: made[0]._queue.messages > 0)

    with Publisher(feed, when_full="wait") as publisher, subscriber:
        publish(publisher, 0, 50)
        wait_until(lambda: subscriber.statistics().delivery.delivered == 50)
        monkeypatch.setattr(checkpoints, "Checkpoint", SlowToBegin)
        with subscriber.checkpoint() as positions:
            assert positions[0].sequence == 50
        assert made[0].get(ENOUGH_S).sequence == 50
