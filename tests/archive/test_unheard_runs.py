"""A live subscriber that repairs, of a feed with keys: what it has not heard of runs comes before the next one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from blackbox import Recorder, Subscriber
from blackbox.archive.serve.client import ArchiveClient
from blackbox.archive.serve.fetch_progress import NO_END
from blackbox.archive.serve.server import ArchiveServer
from blackbox.testing import RawPublisher, wait_until
from tests.archive.archives import archived_feed
from tests.archive.recorders import feed_of, wait_recorded
from tests.archive.test_keyed_run_ends import KEYS, Archived, Told, lose, send
from tests.archive.test_run_ends import FIRST, SECOND, begin_run
from tests.examples import examples

SECOND_RUN, THIRD_RUN = FIRST + 1, FIRST + 2


class Scene(NamedTuple):
    """A publisher that archives record, and another one that sends what of it the subscriber hears."""

    model: Archived
    publisher: RawPublisher
    live: RawPublisher
    subscriber: Subscriber
    told: Told
    begun: list[int]
    """The runs that `on_epoch` was called for."""
    since: dict[bytes, int]
    """What was sent before the subscriber began."""

    def send(self, key: bytes, many: int) -> None:
        """Send what is recorded and heard."""
        before = dict(self.publisher.sequences[0])
        self.model.send(key, many)
        self.live.epoch, self.live.sequences = self.publisher.epoch, [before]
        send(self.live, key, many)

    def heartbeat(self, *, end: bool = False) -> None:
        """Tell the subscriber how far each key is."""
        self.live.epoch, self.live.sequences = self.publisher.epoch, [dict(self.publisher.sequences[0])]
        self.live.heartbeat(end=end)

    def await_heard(self, epoch: int, key: bytes, number: int) -> None:
        wait_until(lambda: ("came", epoch, number) in self.told.facts[key])

    @contextmanager
    def without(self, number: int) -> Iterator[None]:
        """Have one of two archives record nothing meanwhile."""
        has_two = len(self.model.counts) == 2
        if has_two:
            self.model.stop(number)
        yield
        if has_two:
            self.model.begin(number)

    def begin_all(self) -> None:
        """Have all archives answer: who is silent is waited for."""
        for number in range(len(self.model.counts)):
            if not self.model.is_on(number):
                self.model.begin(number)

    def check(self) -> None:
        """Let all end, and compare what the subscriber was told."""
        expected = {key: facts for key in KEYS if (facts := self.model.expected(key, self.since))}
        self.heartbeat()
        wait_until(lambda: {key: facts for key, facts in self.told.facts.items() if facts} == expected, 60, "all came")
        self.heartbeat(end=True)
        self.subscriber.run(until_end=True)
        assert self.told.facts == expected


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
        found = Scene(model, publisher, live, subscriber, Told(subscriber), begun, {KEYS[0]: 2})
        found.send(KEYS[0], 2)
        subscriber.start()
        yield found


def test_a_run_that_begins_while_an_archive_is_waited_for_is_fetched(tmp_path: Path) -> None:
    """What wakes the thread that fetches must not be taken for another request."""
    with scene(tmp_path, 2) as at:
        at.model.stop(1)
        lose(at.publisher, KEYS[0], 1)
        at.send(KEYS[0], 1)
        requests = at.subscriber._supervisor._slices[0]._repairs
        wait_until(lambda: requests.asked == 1)
        begin_run(at.publisher, SECOND_RUN)
        at.model.hear()
        for key in KEYS * 2:
            at.send(key, 1)
        wait_until(lambda: requests.answered == 1)  # it has given up on that request
        at.begin_all()
        at.check()


@pytest.mark.parametrize("archives", [1, 2])
@pytest.mark.parametrize("end", ["heard", "lost"])
@pytest.mark.parametrize("begins", ["blocks", "heartbeat"])
def test_a_run_that_began_and_ended_unheard_comes_before_the_next_one(
    tmp_path: Path, archives: int, end: str, begins: str
) -> None:
    """As when a publisher is killed twice within a second; with what the run before has lost."""
    with scene(tmp_path, archives) as at:
        for key in KEYS[:2]:
            at.send(key, 3)
            at.await_heard(FIRST, key, at.publisher.sequences[0][key] - 1)
        if end == "lost":
            with at.without(0):  # of two the second one alone has it
                at.model.send(KEYS[1], 2)
                lose(at.publisher, KEYS[1], 1)
                at.model.send(KEYS[2], 4)
                at.model.hear()
        with at.without(1):  # of two the first one alone has the run between
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
def test_runs_that_are_heard_in_part_come_whole_or_are_told(tmp_path: Path, seed: int) -> None:
    chance, archives = Random(seed), 1 + seed % 2
    with scene(tmp_path, archives) as at:
        for _ in range(40):
            what, key = chance.choice(("both", "both", "send", "lose", "run", "stop")), chance.choice(KEYS)
            if what == "both":
                at.begin_all()
                at.send(key, 2)
            elif what != "stop":
                at.model.do(what, key, 2, 0)
            elif archives == 2 and at.model.is_on(0) and at.model.is_on(1):
                at.model.stop(chance.randrange(2))
        at.begin_all()
        at.model.hear()
        for key in KEYS * 2:  # behind what is lost of the last run: else archives may yet record it
            at.send(key, 1)
        at.check()


@pytest.mark.parametrize("key_bytes", [0, 2])
def test_nothing_that_comes_live_of_a_run_is_lost_where_nobody_records_it(tmp_path: Path, key_bytes: int) -> None:
    """What comes while archives are asked waits, from the first block on, though they turn out to lack it all."""
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
def test_a_run_does_not_wait_longer_for_an_archive_that_is_gone_than_a_gap_does(tmp_path: Path, key_bytes: int) -> None:
    """It answered when the subscriber began; who joins waits for it ten times as long."""
    feed, elsewhere = archived_feed(key_bytes=key_bytes), feed_of(key_bytes=key_bytes)
    with RawPublisher(elsewhere, FIRST) as publisher, Recorder(elsewhere, tmp_path) as recorder:
        send(publisher, b"AA", 3)
        wait_recorded(recorder, 3)
    with RawPublisher(feed, FIRST) as live:
        subscriber = Subscriber(feed, on_gap="repair", repair_wait=3)
        told = Told(subscriber)
        with ArchiveServer(tmp_path / feed.name, feed.archives):
            subscriber.start()
            send(live, b"AA", 3)
            wait_until(lambda: told.facts[b"AA"])
        begin_run(live, SECOND_RUN)
        for _ in range(2):
            send(live, b"AA", 1)
        live.heartbeat()
        wait_until(lambda: len(told.facts[b"AA"]) == 5, 60)
        live.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert told.facts[b"AA"] == [("came", FIRST, n) for n in range(3)] + [("came", SECOND_RUN, n) for n in range(2)]


def test_many_keys_are_not_asked_for_one_by_one_at_a_new_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that comes live would wait for that."""
    stops, real = list[int](), ArchiveClient.missing

    def missing(client: ArchiveClient, slice_id: int, ranges: Any, *arguments: Any, **settings: Any) -> Any:
        stops.extend(each.stop for each in ranges)
        return real(client, slice_id, ranges, *arguments, **settings)

    monkeypatch.setattr(ArchiveClient, "missing", missing)
    with scene(tmp_path, 2) as at:
        for key in KEYS:
            at.send(key, 3)
            at.await_heard(FIRST, key, at.publisher.sequences[0][key] - 1)
        at.heartbeat()
        begin_run(at.publisher, SECOND_RUN)
        at.model.hear()
        for key in KEYS * 2:
            at.send(key, 2)
        at.check()
    assert max(stops, default=0) < NO_END
