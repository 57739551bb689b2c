"""A repairing subscriber of a feed with keys gets the rest of missed epochs before the next one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec
import pytest

from blackbox import Feed, Recorder, Subscriber
from blackbox.archive.serve.client import ArchiveClient
from blackbox.archive.serve.server import ArchiveServer
from blackbox.testing import RawPublisher, wait_until
from tests.archive.archives import archived_feed
from tests.archive.recorders import feed_of, wait_recorded
from tests.archive.test_run_ends import FIRST, SECOND, Fact, Order, begin_run, messages_in, told_by
from tests.examples import examples

KEYS = (b"AA", b"AB", b"BA")
SECOND_RUN, THIRD_RUN = FIRST + 1, FIRST + 2


def send(publisher: RawPublisher, key: bytes, count: int) -> None:
    publisher.send(publisher.encode([(key + b".x", b"payload")] * count))


def lose(publisher: RawPublisher, key: bytes, count: int) -> None:
    publisher.encode([(key + b".x", b"payload")] * count)


class Archived:
    """A publisher with recorders that start, stop and serve, and the messages that they know of each epoch."""

    def __init__(self, feed: Feed, path: Path, publisher: RawPublisher, elsewhere: Feed) -> None:
        self.recorded: dict[int, set[int]] = defaultdict(set)
        self.ends: dict[int, int] = defaultdict(int)
        """Sequence after the last message of each epoch that is recorded or was reported to a recorder."""
        self.counts = [0] * len(feed.archives)
        self._publisher = publisher
        self._feeds = [msgspec.structs.replace(elsewhere, archives=(each,)) for each in feed.archives]
        self._paths = [path / f"{number}" for number in range(len(feed.archives))]
        self._recorders: list[Recorder | None] = [None] * len(feed.archives)

    def begin(self, number: int) -> None:
        self._recorders[number] = Recorder(self._feeds[number], self._paths[number], serve=True).start()
        if self.counts[number]:  # 0: its first day has not begun
            self.hear()

    def stop(self, number: int) -> None:
        recorder, self._recorders[number] = self._recorders[number], None
        if recorder is not None:
            recorder.stop()

    def is_on(self, number: int) -> bool:
        return self._recorders[number] is not None

    def _on(self) -> list[tuple[int, ArchiveClient]]:
        return [(n, ArchiveClient(feed)) for n, feed in enumerate(self._feeds) if self.is_on(n)]

    def send(self, key: bytes, many: int) -> None:
        epoch, first = self._publisher.epoch, self._publisher.sequences[0]
        send(self._publisher, key, many)
        for number, client in self._on():
            self.counts[number] += many
            wait_until(lambda n=number, c=client: messages_in(c) == self.counts[n], 60)  # type: ignore[misc]
            self.recorded[epoch] |= {*range(first, first + many)}
            self.ends[epoch] = first + many

    def hear(self) -> None:
        epoch, sent = self._publisher.epoch, self._publisher.sequences[0]
        for _ in range(3):  # an epoch is accepted at its second heartbeat
            self._publisher.heartbeat()
        for _, client in self._on():
            wait_until(lambda c=client: told_by(c, epoch)[0] == sent - 1, 60)  # type: ignore[misc]
            self.ends[epoch] = sent

    def do(self, what: str, key: bytes, many: int) -> None:
        if what == "send":
            self.send(key, many)
        elif what == "lose":
            lose(self._publisher, key, many)
        elif self._publisher.sequences[0]:
            begin_run(self._publisher, self._publisher.epoch + 1)
            self.hear()

    def expected(self, since: int) -> list[Fact]:
        """Return the facts expected from a sequence of the first epoch on."""
        return [
            ("came" if number in self.recorded[epoch] else "gone", epoch, number)
            for epoch in range(FIRST, self._publisher.epoch + 1)
            for number in range(since if epoch == FIRST else 0, self.ends[epoch])
        ]


class Scene(NamedTuple):
    """A recorded publisher, and another one that sends part of its messages to the subscriber."""

    model: Archived
    publisher: RawPublisher
    live: RawPublisher
    subscriber: Subscriber
    heard: Order
    begun: list[int]
    """Epochs of the calls of `on_epoch`."""

    def send(self, key: bytes, many: int) -> None:
        """Send messages that are recorded and received."""
        self._take_over()
        self.model.send(key, many)
        send(self.live, key, many)

    def heartbeat(self, *, end: bool = False) -> None:
        """Send a heartbeat with the publisher's sequences to the subscriber."""
        self._take_over()
        self.live.heartbeat(end=end)

    def _take_over(self) -> None:
        self.live.epoch, self.live.sequences = self.publisher.epoch, list(self.publisher.sequences)
        self.live.ends = [dict(ends) for ends in self.publisher.ends]

    def await_heard(self) -> None:
        wait_until(lambda: ("came", self.live.epoch, self.live.sequences[0] - 1) in self.heard.told)

    @contextmanager
    def without(self, number: int) -> Iterator[None]:
        """Stop one of two recorders for the block."""
        has_two = len(self.model.counts) == 2
        if has_two:
            self.model.stop(number)
        yield
        if has_two:
            self.model.begin(number)

    def begin_all(self) -> None:
        """Start all recorders, because subscribers wait for silent archives."""
        for number in range(len(self.model.counts)):
            if not self.model.is_on(number):
                self.model.begin(number)

    def check(self) -> None:
        """End the publisher and check the facts that the subscriber received."""
        expected = self.model.expected(2)
        self.heartbeat()
        wait_until(lambda: self.heard.told == expected, 60, "all came")
        self.heartbeat(end=True)
        self.subscriber.run(until_end=True)
        assert self.heard.told == expected


@contextmanager
def scene(tmp_path: Path, archives: int) -> Iterator[Scene]:
    feed, elsewhere = archived_feed(archives, key_bytes=2, heartbeat_ns=60 * SECOND), feed_of(key_bytes=2)
    with ExitStack() as stack:
        publisher = stack.enter_context(RawPublisher(elsewhere, FIRST))
        live = stack.enter_context(RawPublisher(feed, FIRST))
        model = Archived(feed, tmp_path, publisher, elsewhere)
        for number in range(archives):
            stack.callback(model.stop, number)
            model.begin(number)
        subscriber = Subscriber(feed, on_gap="repair", repair_wait=60)
        begun: list[int] = []
        subscriber.on_epoch(lambda _slice_id, epoch: begun.append(epoch))
        found = Scene(model, publisher, live, subscriber, Order(subscriber), begun)
        found.send(KEYS[0], 2)  # before the subscriber starts
        subscriber.start()
        yield found


@pytest.mark.parametrize("archives", [1, 2])
@pytest.mark.parametrize("end", ["heard", "lost"])
@pytest.mark.parametrize("begins", ["blocks", "heartbeat"])
def test_an_epoch_missed_completely_is_delivered_before_the_next_one(
    tmp_path: Path, archives: int, end: str, begins: str
) -> None:
    """As when a publisher is killed twice within a second, together with losses of the previous epoch."""
    with scene(tmp_path, archives) as at:
        for key in KEYS[:2]:
            at.send(key, 3)
            at.await_heard()
        if end == "lost":
            with at.without(0):  # only the second of two has it
                at.model.send(KEYS[1], 2)
                lose(at.publisher, KEYS[1], 1)
                at.model.send(KEYS[2], 4)
                at.model.hear()
        with at.without(1):  # only the first of two has the epoch in between
            begin_run(at.publisher, SECOND_RUN)
            at.model.hear()
            at.model.send(KEYS[0], 4)
            lose(at.publisher, KEYS[0], 2)
            at.model.send(KEYS[0], 1)
            lose(at.publisher, KEYS[2], 2)
            at.model.hear()
        begin_run(at.publisher, THIRD_RUN)
        at.model.hear()
        if begins == "heartbeat":
            for _ in range(2):
                at.heartbeat()
        for key in KEYS[1:] * 2:
            at.send(key, 2)
        at.check()
    assert at.begun == [FIRST, SECOND_RUN, THIRD_RUN]


@pytest.mark.parametrize("seed", range(examples(20)))
def test_epochs_received_in_part_are_completed_or_reported(tmp_path: Path, seed: int) -> None:
    chance, archives = Random(seed), 1 + seed % 2
    with scene(tmp_path, archives) as at:
        for _ in range(40):
            what, key = chance.choice(("both", "both", "send", "lose", "run", "stop")), chance.choice(KEYS)
            if what == "both":
                at.begin_all()
                at.send(key, 2)
            elif what != "stop":
                at.model.do(what, key, 2)
            elif archives == 2 and at.model.is_on(0) and at.model.is_on(1):
                at.model.stop(chance.randrange(2))
        at.begin_all()
        at.model.hear()
        for key in KEYS * 2:  # after the losses of the last epoch, so that archives do not wait for them
            at.send(key, 1)
        at.check()


@pytest.mark.parametrize("key_bytes", [0, 2])
def test_live_messages_of_an_unrecorded_epoch_are_delivered(tmp_path: Path, key_bytes: int) -> None:
    """Messages received during a fetch wait, from the first block on, even if archives lack them all."""
    feed, elsewhere = archived_feed(key_bytes=key_bytes), feed_of(key_bytes=key_bytes)
    with RawPublisher(elsewhere, FIRST) as publisher, Recorder(elsewhere, tmp_path) as recorder:
        send(publisher, b"AA", 3)
        wait_recorded(recorder, 3)
    with ArchiveServer(tmp_path / feed.name, feed.archives), RawPublisher(feed, FIRST) as live:
        subscriber = Subscriber(feed, on_gap="repair", repair_wait=1)
        facts: list[tuple[int, int]] = []
        subscriber.on(b"", fields=("epoch", "sequence"))(lambda epoch, number: facts.append((epoch, number)))
        gaps: list[object] = []
        subscriber.on_gap(b"")(gaps.append)
        subscriber.start()
        send(live, b"AA", 3)
        wait_until(lambda: len(facts) == 3)
        begin_run(live, SECOND_RUN)
        for _ in range(20):
            send(live, b"AA", 1)
        live.heartbeat()
        wait_until(lambda: len(facts) == 23, 60)
        live.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert facts == [(FIRST, number) for number in range(3)] + [(SECOND_RUN, number) for number in range(20)]
    assert gaps == []


@pytest.mark.parametrize("key_bytes", [0, 2])
def test_an_epoch_waits_no_longer_for_a_missing_archive_than_a_gap(tmp_path: Path, key_bytes: int) -> None:
    """It answered at the subscriber's start; a joining subscriber waits ten times as long for it."""
    feed, elsewhere = archived_feed(key_bytes=key_bytes), feed_of(key_bytes=key_bytes)
    with RawPublisher(elsewhere, FIRST) as publisher, Recorder(elsewhere, tmp_path) as recorder:
        send(publisher, b"AA", 3)
        wait_recorded(recorder, 3)
    with RawPublisher(feed, FIRST) as live:
        subscriber = Subscriber(feed, on_gap="repair", repair_wait=3)
        told = Order(subscriber).told
        with ArchiveServer(tmp_path / feed.name, feed.archives):
            subscriber.start()
            send(live, b"AA", 3)
            wait_until(lambda: told)
        begin_run(live, SECOND_RUN)
        for _ in range(2):
            send(live, b"AA", 1)
        live.heartbeat()
        wait_until(lambda: len(told) == 5, 60)
        live.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert told == [("came", FIRST, n) for n in range(3)] + [("came", SECOND_RUN, n) for n in range(2)]
