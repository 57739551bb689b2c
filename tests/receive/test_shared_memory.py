"""Slices with an endpoint in shared memory: readers, losses, and killed, hostile and ended peers."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from blackbox import Batch, Feed, Publisher, Subscriber
from blackbox.errors import EndpointError
from blackbox.feed.slice import Slice
from blackbox.testing import Collector, wait_until
from blackbox.transport.shared_memory import attached
from blackbox.transport.shared_memory.attached import attach
from blackbox.transport.shared_memory.layout import HELLO, LARGE_PLACES, MAGIC, READERS, address_of
from blackbox.transport.wakeup import Pipe, readable
from tests.examples import first_of
from tests.process_state import linux_only
from tests.receive.shared import (
    by_sockets,
    came_by,
    numbers_in,
    publish_numbers,
    sender_of,
    shared_feed,
    shared_state,
)
from tests.receive.subscribers import PATIENT, nothing, numbers_of, published, subscribed
from tests.support import Script, in_child

pytestmark = linux_only


def test_readers_of_different_keys_get_theirs_and_sockets_carry_nothing() -> None:
    feed = shared_feed(key_bytes=2)
    a, b = Collector(), Collector()
    first, second = Subscriber(feed, slow=PATIENT), Subscriber(feed, slow=PATIENT)
    first.on(b"AA")(a.message)
    second.on(b"B")(b.message)
    with published(feed, first, second) as publisher:
        publisher.wait_for_subscribers(b"AA")
        publisher.wait_for_subscribers(b"BB")
        for number in range(1_000):
            publisher.publish((b"AA", b"AB", b"BA", b"BB", b"CC")[number % 5], b"%d" % number)
        publisher.flush()
        assert publisher.statistics().unwanted == 400
        assert all(wanted % 256 == 0 for wanted in sender_of(publisher).subscriptions.wanted)
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
    with published(feed, reader, other) as publisher:
        publisher.wait_for_subscribers(count=2)
        for number in range(1_000):
            publisher.publish(b"T", b"%d" % number)
    assert near.messages == far.messages
    assert (came_by(reader), came_by(other)) == ("shm", "tcp")


@pytest.mark.parametrize("why", ["no memory", "another version", "no free slot"])
def test_sockets_replace_shared_memory_that_cannot_be_used(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = shared_feed()
    subscriber, got = subscribed(feed)
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


def test_a_name_in_use_by_another_publisher_is_rejected() -> None:
    feed = shared_feed()
    other = msgspec.structs.replace(Feed.local("other", slices=1).slices[0], share=None)
    endpoints = (*other.lines, f"shm://{feed.slices[0].shared_memory}")
    with Publisher(feed), pytest.raises(EndpointError, match=r"slice 0: endpoint shm://subscriber-\S+ is in use"):
        Publisher(Feed(name="other", slices=(Slice(endpoints=endpoints),))).start()
    Publisher(feed).start().close()


def slow_reader(feed: Feed) -> tuple[Subscriber, list[int], threading.Event]:
    """A subscriber that stays in each batch until the event is set, and the numbers that it received."""
    subscriber, got, go_on = Subscriber(feed, workers=0), list[int](), threading.Event()

    @subscriber.on_batch(b"")
    def slow(batch: Batch) -> None:
        got.extend(numbers_in(batch))
        go_on.wait(200)

    return subscriber, got, go_on


def test_a_slow_reader_counts_overwritten_blocks_as_a_gap() -> None:
    feed = shared_feed(block_bytes=4_096)
    subscriber, got, go_on = slow_reader(feed)
    with published(feed, subscriber, when_full="drop", hwm_blocks=4) as publisher:
        publisher.wait_for_subscribers()
        publish_numbers(publisher, 0, 1, 1_024)
        wait_until(lambda: got)
        publish_numbers(publisher, 1, 1_000, 1_024)
        publisher.flush()  # it could not if it waited
        assert publisher.statistics().shared_memory_dropped == 0
        go_on.set()
    assert got[0] == 0
    assert got[-1] == 999
    assert got == sorted(got)
    assert subscriber.statistics().received.gaps == 1_000 - len(got) > 500


def test_a_publisher_without_a_place_for_large_blocks_counts_their_messages() -> None:
    feed = shared_feed(block_bytes=4_096)
    subscriber, got, go_on = slow_reader(feed)
    with published(feed, subscriber, when_full="drop") as publisher:
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
    assert got == [*range(LARGE_PLACES + 1), 11]
    assert subscriber.statistics().received.gaps == 10 - LARGE_PLACES


STUCK = """
    subscriber = Subscriber(feed, workers=0)
    @subscriber.on(b"")
    def stuck(message):
        say("stuck")
        time.sleep(1000)
    subscriber.start(timeout=200)
    say(subscriber.statistics().received.transport)
    subscriber.run()
"""


def test_a_lost_bell_delays_a_block_and_loses_none() -> None:
    feed, deaf = shared_feed(heartbeat_ns=3_600 * 10**9), Pipe()
    subscriber, got = subscribed(feed)
    with published(feed, subscriber) as publisher:
        bells = shared_state(publisher).bells
        rung, bells[0] = bells[0], deaf.writer
        number = 0
        while not readable(deaf.reader, timeout=0):  # the bell is rung for a sleeping reader
            publisher.publish(b"T", b"%d" % number)
            number += 1
            got.wait(number)
        bells[0] = rung
    assert numbers_of(got) == list(range(number))


@pytest.mark.parametrize("when_full", first_of(["wait", "drop"]))
def test_a_killed_reader_releases_everything(when_full: Any) -> None:
    survivor, got = Subscriber(feed := shared_feed(block_bytes=4_096), slow=PATIENT), list[int]()
    survivor.on_batch(b"")(lambda batch: got.extend(numbers_in(batch)))
    with Publisher(feed, when_full=when_full) as publisher, Script(STUCK, feed) as script:
        survivor.start()
        script.expect("shm")
        publisher.wait_for_subscribers(count=2)
        publish_numbers(publisher, 0, 1)
        script.expect("stuck")
        publishing = threading.Thread(target=publish_numbers, args=(publisher, 1, 100_000, 128))
        publishing.start()
        if when_full == "wait":
            wait_until(lambda: publisher.statistics().waits > 2)
        script.kill()
        publishing.join(200)
        assert not publishing.is_alive()
        wait_until(lambda: shared_state(publisher).readers == 1)
    survivor.run(until_end=True)
    assert survivor.statistics().received.gaps == 100_000 - len(got)
    assert got == list(range(100_000)) or when_full == "drop"


@pytest.mark.parametrize("killed", first_of([True, False]), ids=["killed", "closed"])
def test_readers_take_all_blocks_of_an_ended_publisher_and_attach_to_the_next(killed: bool) -> None:
    feed = shared_feed()
    code = """
        with Publisher(feed) as publisher:
            publisher.wait_for_subscribers()
            for number in range(100):
                publisher.publish(b"T", b"%d" % number)
            publisher.flush()
            say("published")
            input()
    """
    subscriber, got = subscribed(feed)
    for run in range(2):
        with Script(code, feed) as script:
            if run == 0:
                subscriber.start(timeout=200)
            script.expect("published")
            script.kill() if killed else script.tell("")
            if not killed:
                script.finish()
        got.wait(100 * (run + 1))
        assert came_by(subscriber) == "shm"
    subscriber.stop()
    assert numbers_of(got) == [*range(100)] * 2
    received = subscriber.statistics().received
    assert (received.gaps, received.duplicates, received.epochs) == (0, 0, 2)


def test_a_process_with_an_invalid_hello_gets_nothing() -> None:
    feed = shared_feed()
    subscriber, got = subscribed(feed)
    with Publisher(feed) as publisher, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(address_of(feed.slices[0].shared_memory))
        stranger.send(b"GET / HTTP/1.0")
        assert stranger.recv(100) == b""
        subscriber.start()
        assert shared_state(publisher).readers == 1
        publisher.publish(b"T", b"1")
    subscriber.run(until_end=True)
    assert (got.payloads, came_by(subscriber)) == ([b"1"], "shm")


def test_pinned_places_of_a_closed_reader_are_not_overwritten() -> None:
    feed = shared_feed(block_bytes=4_096)
    subscriber, other, kept = Subscriber(feed, workers=0), Subscriber(feed, slow=PATIENT), list[Batch]()
    subscriber.on_batch(b"")(kept.append)
    other.on_batch(b"")(nothing)
    with Publisher(feed, when_full="wait", hwm_blocks=4) as publisher:
        subscriber.start()
        other.start()
        publisher.wait_for_subscribers(count=2)
        publish_numbers(publisher, 0, 1_000)
        wait_until(lambda: sum(map(len, kept)) == 1_000)
        assert in_child(kept.clear) == "", "a forked process releases no place of its parent"
        subscriber.stop()
        assert shared_state(publisher).readers == 2, "it counts as a reader while it pins places"
        publish_numbers(publisher, 1_000, 500_000)
        publisher.flush(60)
        assert [n for batch in kept for n in numbers_in(batch)] == list(range(1_000))
        kept.clear()
        wait_until(lambda: shared_state(publisher).readers == 1)
    other.run(until_end=True)


def test_a_closing_reader_disconnects_though_a_forked_process_has_its_connection() -> None:
    feed, bell = shared_feed(), Pipe()
    with Publisher(feed) as publisher:
        reader = attach(feed.slices[0].shared_memory, bell)
        inherited = os.dup(reader.state.connection)
        reader.close()
        wait_until(lambda: shared_state(publisher).readers == 0)
        os.close(inherited)


def test_a_closing_publisher_disconnects_though_a_forked_process_has_its_connections() -> None:
    feed = shared_feed()
    subscriber, got = subscribed(feed)
    with Publisher(feed) as publisher:
        subscriber.start()
        shared = sender_of(publisher).sockets.shared
        assert shared is not None
        inherited = [os.dup(reader.peer.connection.fileno()) for reader in set(shared._readers.values())]
        publisher.publish(b"T", b"1")
        got.wait(1)
    with Publisher(feed) as publisher:
        wait_until(lambda: shared_state(publisher).readers == 1)
        publisher.wait_for_subscribers()
        publisher.publish(b"T", b"2")
        got.wait(2)
    assert inherited
    for fd in inherited:
        os.close(fd)
    subscriber.run(until_end=True)
    assert got.payloads == [b"1", b"2"]
    assert came_by(subscriber) == "shm"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_process_of_another_user_gets_nothing() -> None:
    feed = shared_feed()
    address = address_of(feed.slices[0].shared_memory)

    def knock() -> None:
        os.seteuid(65_534)
        with pytest.raises(ConnectionRefusedError):
            attach(feed.slices[0].shared_memory, Pipe())
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
            stranger.connect(address)
            bell = Pipe()
            with suppress(BrokenPipeError):
                socket.send_fds(stranger, [HELLO.pack(MAGIC)], [bell.reader, bell.writer])
            try:
                said, fds, *_ = socket.recv_fds(stranger, 100, 10)
            except ConnectionResetError:
                said, fds = b"", []
            assert (said, fds) == (b"", [])

    with Publisher(feed) as publisher:
        assert in_child(knock) == ""
        assert shared_state(publisher).readers == 0


def test_a_listener_of_another_user_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = shared_feed()
    with Publisher(feed):
        name = address_of(feed.slices[0].shared_memory)
        monkeypatch.setattr(attached, "address_of", lambda _: name)
        monkeypatch.setattr(os, "geteuid", lambda: 65_534)
        with pytest.raises(OSError, match="is of another user"):
            attach(feed.slices[0].shared_memory, Pipe())
