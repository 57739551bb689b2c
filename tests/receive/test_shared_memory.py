"""Slices with an endpoint in shared memory: readers, and losses."""

from __future__ import annotations

import threading

import msgspec
import pytest

from blackbox import Batch, Feed, Publisher, Subscriber
from blackbox.errors import EndpointError
from blackbox.feed.slice import Slice
from blackbox.testing import Collector, wait_until
from blackbox.transport.shared_memory.attached import attach
from blackbox.transport.shared_memory.layout import LARGE_PLACES, MAGIC, READERS
from blackbox.transport.wakeup import Pipe
from tests.process_state import linux_only
from tests.receive.shared import (
    by_sockets,
    came_by,
    collecting,
    mapped,
    numbers_in,
    publish_numbers,
    sender_of,
    shared_feed,
)
from tests.receive.subscribers import _PATIENT_NS, PATIENT, nothing, numbers_of

pytestmark = linux_only


def test_readers_of_different_keys_get_theirs_and_sockets_carry_nothing() -> None:
    feed = shared_feed(key_bytes=2)
    a, b = Collector(), Collector()
    first, second = Subscriber(feed, slow=PATIENT), Subscriber(feed, slow=PATIENT)
    first.on(b"AA")(a.message)
    second.on(b"B")(b.message)
    with Publisher(feed, when_full="wait") as publisher:
        first.start()
        second.start()
        publisher.wait_for_subscribers(b"AA")
        publisher.wait_for_subscribers(b"BB")
        for number in range(1_000):
            publisher.publish((b"AA", b"AB", b"BA", b"BB", b"CC")[number % 5], b"%d" % number)
        publisher.flush()
        assert publisher.statistics().unwanted == 400
        assert all(wanted % 256 == 0 for wanted in sender_of(publisher).subscriptions.wanted)
    first.run(until_end=True)
    second.run(until_end=True)
    assert numbers_of(a) == list(range(0, 1_000, 5))
    assert sorted(numbers_of(b)) == [n for n in range(1_000) if n % 5 in (2, 3)]
    assert came_by(first) == came_by(second) == "shm"
    assert first.statistics().received.gaps == second.statistics().received.gaps == 0


def test_a_subscriber_without_shared_memory_is_served_on_sockets() -> None:
    feed = shared_feed()
    near, far = Collector(), Collector()
    reader, other = Subscriber(feed, slow=PATIENT), Subscriber(by_sockets(feed))
    reader.on(b"")(near.message)
    other.on(b"")(far.message)
    with Publisher(feed, when_full="wait") as publisher:
        reader.start()
        other.start()
        publisher.wait_for_subscribers(count=2)
        for number in range(1_000):
            publisher.publish(b"T", b"%d" % number)
    reader.run(until_end=True)
    other.run(until_end=True)
    assert near.messages == far.messages
    assert (came_by(reader), came_by(other)) == ("shm", "tcp")


@pytest.mark.parametrize("why", ["no memory", "another version", "no free slot"])
def test_sockets_replace_shared_memory_that_cannot_be_used(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = shared_feed()
    subscriber, got = collecting(feed)
    with Publisher(by_sockets(feed) if why == "no memory" else feed, when_full="wait") as publisher:
        bell = Pipe()
        slots = READERS if why == "no free slot" else 0
        readers = [attach(feed.slices[0].shared_memory, bell) for _ in range(slots)]
        assert sum(reader.state.kept_most for reader in readers) <= 384
        if why == "another version":
            monkeypatch.setattr("blackbox.transport.shared_memory.attached.MAGIC", MAGIC + 1)
        subscriber.start()
        for reader in readers:
            reader.close()
        publisher.publish(b"T", b"1")
    subscriber.run(until_end=True)
    assert (got.payloads, came_by(subscriber)) == ([b"1"], "tcp")


def test_a_subscriber_that_starts_first_reads_shared_memory() -> None:
    feed = shared_feed()
    subscriber, got = collecting(feed)
    starting = threading.Thread(target=subscriber.start, args=(60,))
    starting.start()
    slices = subscriber._supervisor.slices
    wait_until(lambda: slices.running and slices.running[0].status.is_ready, 60)
    with Publisher(feed, when_full="wait") as publisher:
        starting.join()
        publisher.publish(b"T", b"1")
    subscriber.run(until_end=True)
    assert got.payloads == [b"1"]
    assert came_by(subscriber) == "shm"


def test_a_name_in_use_by_another_publisher_is_rejected() -> None:
    feed = shared_feed()
    other = msgspec.structs.replace(Feed.local("other", slices=1).slices[0], share=None)
    endpoints = (*other.lines, f"shm://{feed.slices[0].shared_memory}")
    with Publisher(feed), pytest.raises(EndpointError, match=r"slice 0: endpoint shm://shared-\S+ is in use"):
        Publisher(Feed(name="other", slices=(Slice(endpoints=endpoints),))).start()
    Publisher(feed).start().close()


def slow_reader(feed: Feed) -> tuple[Subscriber, list[int], threading.Event]:
    """A subscriber that stays in each batch until the event is set, and the numbers that it received."""
    subscriber, got, go_on = Subscriber(feed, workers=0), list[int](), threading.Event()

    @subscriber.on_batch(b"")
    def slow(batch: Batch) -> None:
        got.extend(numbers_in(batch))
        go_on.wait(60)

    return subscriber, got, go_on


def test_a_slow_reader_counts_overwritten_blocks_as_a_gap() -> None:
    feed = shared_feed(block_bytes=4_096)
    subscriber, got, go_on = slow_reader(feed)
    with Publisher(feed, when_full="drop", hwm_blocks=4) as publisher:
        subscriber.start()
        publisher.wait_for_subscribers()
        publish_numbers(publisher, 0, 1, 1_024)
        wait_until(lambda: got)
        publish_numbers(publisher, 1, 1_000, 1_024)
        publisher.flush()  # it could not if it waited
        assert publisher.statistics().shared_memory_dropped == 0
        go_on.set()
    subscriber.run(until_end=True)
    assert got[0] == 0
    assert got[-1] == 999
    assert got == sorted(got)
    assert subscriber.statistics().received.gaps == 1_000 - len(got) > 500


def test_a_publisher_without_a_place_for_large_blocks_counts_their_messages() -> None:
    feed = shared_feed(block_bytes=4_096)
    subscriber, got, go_on = slow_reader(feed)
    with Publisher(feed, when_full="drop") as publisher:
        subscriber.start()
        publisher.wait_for_subscribers()
        publish_numbers(publisher, 0, 1, 8_192)
        wait_until(lambda: got)
        publish_numbers(publisher, 1, 11, 8_192)
        publisher.flush()
        assert publisher.statistics().shared_memory_dropped == 10 - LARGE_PLACES
        assert publisher.statistics().messages == 11, "they have sequences"
        go_on.set()
        wait_until(lambda: got[-1] == LARGE_PLACES)
        publish_numbers(publisher, 11, 12, 8_192)
    subscriber.run(until_end=True)
    assert got == [*range(LARGE_PLACES + 1), 11]
    assert subscriber.statistics().received.gaps == 10 - LARGE_PLACES


@pytest.mark.own_process
def test_a_reader_that_keeps_its_batches_has_them_whole_without_copies() -> None:
    feed = shared_feed(block_bytes=4_096)
    keeper, other = Subscriber(feed, workers=0), Subscriber(feed, workers=0)
    kept: list[Batch] = []
    keeper.on_batch(b"")(kept.append)
    got: list[int] = []
    other.on_batch(b"")(lambda batch: got.extend(numbers_in(batch)))
    with Publisher(feed, when_full="drop") as publisher:
        keeper.start()
        other.start()
        publisher.wait_for_subscribers(count=2)
        for first in range(0, 10_000, 500):
            publish_numbers(publisher, first, first + 500, 64)
            wait_until(lambda so_far=first + 500: len(got) >= so_far)  # type: ignore[misc]
        assert publisher.statistics().shared_memory_dropped == 0
    keeper.run(until_end=True)
    other.run(until_end=True)
    assert got == list(range(10_000))
    assert [number for batch in kept for number in numbers_in(batch)] == got
    assert len(kept) > 150
    assert mapped() == 2, "kept bodies are in the publisher's memory"
    kept.clear()
    assert mapped() == 0


def test_slices_in_separate_processes_read_shared_memory() -> None:
    feed = msgspec.structs.replace(Feed.local("shared", slices=2, transport="shm"), max_lag_ns=_PATIENT_NS)
    subscriber = Subscriber(feed, processes=True)
    subscriber.on_batch(b"")(nothing)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start(60)
        for number in range(10_000):
            publisher.publish(b"S%d" % (number % 100), b"")
    subscriber.run(until_end=True)
    statistics = subscriber.statistics()
    assert statistics.delivery.delivered == 10_000
    assert statistics.received.transport == "shm"
    assert statistics.received.gaps == 0


def test_added_and_removed_prefixes_take_effect() -> None:
    feed = shared_feed(key_bytes=1)
    subscriber, a, b = Subscriber(feed, slow=PATIENT), Collector(), Collector()
    subscriber.on(b"A")(a.message)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start()
        publisher.publish(b"B", b"0")
        publisher.flush()
        subscriber.on(b"B")(b.message)
        subscriber.wait_confirmed()
        for number in range(1, 100):
            publisher.publish(b"AB"[number % 2 :][:1], b"%d" % number)
        b.wait(50)
        subscriber.remove(b.message)
        subscriber.wait_confirmed()
        publisher.publish(b"B", b"100")
        publisher.publish(b"A", b"101")
    subscriber.run(until_end=True)
    assert numbers_of(a) == [*range(2, 100, 2), 101]
    assert numbers_of(b) == list(range(1, 100, 2))
    assert subscriber.statistics().received.gaps == 0
