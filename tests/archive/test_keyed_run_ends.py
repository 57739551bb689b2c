"""A feed with keys: what no archive has of the end of a run is told key by key, once, before the next run."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox import Feed, Recorder, Subscriber
from blackbox.archive.consumer_positions import PositionFile
from blackbox.archive.serve import pieces
from blackbox.archive.serve.client import ArchiveClient
from blackbox.archive.serve.fetch_progress import Rows
from blackbox.archive.serve.pieces import Pieces
from blackbox.archive.serve.protocol import AskBlocks, AskEnds
from blackbox.archive.serve.server import ArchiveServer
from blackbox.block.block import Block
from blackbox.block.position import KeyPosition
from blackbox.subscribe.repair import Since
from blackbox.testing import RawPublisher, wait_until
from tests.archive.archives import archived_feed
from tests.archive.recorders import feed_of
from tests.archive.test_run_ends import FIRST, OPS, SECOND, Model, Op, begin_run
from tests.archive.written_days import few
from tests.examples import first_of

KEYS = (b"AA", b"AB", b"B")
WHATS = ("send", "send", "lose", "lose", "hear", "end", "run", "recorder")


class Fact(NamedTuple):
    """What a subscriber is told of one message."""

    what: str
    epoch: int
    number: int


class Told:
    """By key what came and what is gone, in the order in which a subscriber tells it."""

    def __init__(self, subscriber: Subscriber, prefix: bytes = b"") -> None:
        self.facts: dict[bytes, list[Fact]] = defaultdict(list)
        subscriber.on(prefix, fields=("topic", "epoch", "sequence"))(
            lambda topic, epoch, number: self.facts[topic.split(b".")[0]].append(Fact("came", epoch, number))
        )
        subscriber.on_gap(prefix)(
            lambda gap: self.facts[gap.key].extend(
                Fact("gone", gap.epoch, gap.sequence + number) for number in range(gap.count)
            )
        )


def send(publisher: RawPublisher, key: bytes, count: int) -> None:
    publisher.send(publisher.encode([(key + b".x" * (len(key) > 1), b"payload")] * count))


def lose(publisher: RawPublisher, key: bytes, count: int) -> None:
    publisher.encode([(key + b".x" * (len(key) > 1), b"payload")] * count)


@few
@given(OPS, st.sampled_from([0, 1]), st.integers(1, 3), st.integers(1, 3), st.sampled_from([b"", b"A"]))
def test_an_archive_tells_of_each_key_the_largest_number_that_its_marks_have(
    ops: list[Op], key_bytes: int, first: int, many: int, prefix: bytes
) -> None:
    with ExitStack() as stack:
        path = stack.enter_context(pytest.MonkeyPatch.context())
        path.setattr(pieces, "MOST_ENDS", 1)
        directory = Path(stack.enter_context(TemporaryDirectory()))
        model = Model(directory, key_bytes)
        for op in ops:
            model.do(op)
        model.journal.writer.close()
        told: dict[tuple[int, bytes], int] = defaultdict(int)
        recorded: dict[tuple[int, bytes], int] = defaultdict(int)
        for what, epoch, key, _, stop in model.log:
            known = recorded if what == "block" else told
            if first <= epoch < first + many and key.startswith(prefix[:key_bytes]):
                known[epoch, key] = max(stop, known[epoch, key])
        ask, found, has_more = AskEnds(slice_id=0, first=first, stop=first + many, prefix=prefix), [], True
        while has_more:
            answer = Pieces(directory).ends(ask)
            found += answer.ends
            has_more = answer.has_more
            ask = msgspec.structs.replace(ask, behind=answer.ends[-1][:2] if answer.ends else None)
    assert found == sorted(found)
    ends = {(epoch, key): stop for epoch, key, stop in found}
    assert len(ends) == len(found)
    assert ends.keys() <= told.keys()
    for run, stop in told.items():
        assert max(ends.get(run, 0), recorded[run]) == max(stop, recorded[run])


class Archived:
    """A publisher, and recorders that come and go and serve what they have; what any of them knows of each key."""

    def __init__(self, feed: Feed, path: Path, publisher: RawPublisher, elsewhere: Feed) -> None:
        self.recorded: dict[tuple[int, bytes], set[int]] = defaultdict(set)
        self.ends: dict[tuple[int, bytes], int] = defaultdict(int)
        """By run and key the number behind the last message that is recorded, or that a recorder has heard of."""
        self.counts = [0] * len(feed.archives)
        self.recorded_by = [defaultdict[tuple[int, bytes], int](int) for _ in feed.archives]
        self._publisher = publisher
        self._feeds = [msgspec.structs.replace(elsewhere, archives=(each,)) for each in feed.archives]
        self._paths = [path / f"{number}" for number in range(len(feed.archives))]
        self._recorders: list[Recorder | None] = [None] * len(feed.archives)

    def begin(self, number: int) -> None:
        self._recorders[number] = Recorder(self._feeds[number], self._paths[number], serve=True).start()
        if self.counts[number]:  # else its first day has not begun
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
        epoch, first = self._publisher.epoch, self._publisher.sequences[0].get(key, 0)
        send(self._publisher, key, many)
        for number, client in self._on():
            self.counts[number] += many
            wait_until(lambda n=number, c=client: messages_in(c) == self.counts[n], 60)  # type: ignore[misc]
            self.recorded_by[number][epoch, key] = first + many
            self.recorded[epoch, key] |= {*range(first, first + many)}
            self.ends[epoch, key] = first + many

    def hear(self, *, end: bool = False) -> None:
        epoch, sent = self._publisher.epoch, self._publisher.sequences[0]
        for _ in range(3 - 2 * end):  # a run is believed at its second heartbeat
            self._publisher.heartbeat(end=end)
        for number, client in self._on():
            short = {key: stop for key, stop in sent.items() if self.recorded_by[number][epoch, key] < stop}
            wait_until(lambda c=client, s=short: knows(c, epoch, s, end), 60)  # type: ignore[misc]
            for key, following in sent.items():
                self.ends[epoch, key] = following

    def do(self, what: str, key: bytes, many: int, number: int) -> None:
        if what == "send":
            self.send(key, many)
        elif what == "lose":
            lose(self._publisher, key, many)
        elif what == "hear":
            self.hear()
        elif what == "recorder":
            (self.stop if self.is_on(number) else self.begin)(number)
        elif self._publisher.sequences[0]:
            if what == "end":
                self.hear(end=True)
            begin_run(self._publisher, self._publisher.epoch + 1)
            self.hear()

    def expected(self, key: bytes, since: dict[bytes, int] | None) -> list[Fact]:
        """What is to be told of a key: from the first run on with what has come of it, or from positions in FIRST."""
        begin = min(epoch for epoch, _ in self.recorded) if since is None else FIRST
        found = list[Fact]()
        for epoch in range(begin, self._publisher.epoch + 1):
            came, first = self.recorded[epoch, key], 0
            if epoch == begin:
                first = min(came, default=self.ends[epoch, key]) if since is None else since.get(key, 0)
            found += (
                Fact("came" if number in came else "gone", epoch, number)
                for number in range(first, self.ends[epoch, key])
            )
        return found

    def end(self, is_closed: bool) -> None:
        for number in range(len(self.counts)):
            if is_closed:
                self.stop(number)
            elif not self.is_on(number):
                self.begin(number)
        if not is_closed:
            self.hear()

    @contextmanager
    def closed(self, endpoints: tuple[str, ...], name: str) -> Iterator[None]:
        """Archives beside which nobody records."""
        with ExitStack() as stack:
            for number, endpoint in enumerate(endpoints):
                stack.enter_context(ArchiveServer(self._paths[number] / name, (endpoint,)))
            yield


def messages_in(client: ArchiveClient) -> int:
    return sum(held.messages for held in client.about().slices.values())


def knows(client: ArchiveClient, epoch: int, ends: dict[bytes, int], has_ended: bool) -> bool:
    """Whether an archive knows a run, how far some keys have come in it, and whether it has ended."""
    runs = [run for held in client.about().slices.values() for run in held.runs if run.epoch == epoch]
    asked = Rows(AskBlocks(slice_id=0)), (epoch, epoch + 1), 5.0, lambda: False
    return (
        any(run.has_ended >= has_ended for run in runs) and client._ends(*asked).get(epoch, {}).items() >= ends.items()
    )


def pick(chance: Random, archives: int) -> tuple[int, int]:
    return chance.randint(1, 9), chance.randrange(archives)


@pytest.mark.parametrize("seed", first_of(range(8), keep=3))
def test_who_joins_is_told_of_each_key_once_what_no_archive_has(tmp_path: Path, seed: int) -> None:
    """Runs that lose messages and end, as recorders that come and go hear of them, over real sockets."""
    chance = Random(seed)
    archives, begins, prefix = 1 + seed % 2, ("position", "named", "time")[seed % 3], chance.choice((b"", b"A"))
    if archives == 2 and begins == "time":
        begins = "position"  # where a key begins is what the first of several has
    feed, elsewhere = archived_feed(archives, key_bytes=2, heartbeat_ns=60 * SECOND), feed_of(key_bytes=2)
    since: dict[bytes, int] = {}
    done_ns = 0
    with RawPublisher(elsewhere, FIRST) as publisher, ExitStack() as stack:
        model = Archived(feed, tmp_path, publisher, elsewhere)
        for number in range(archives):
            stack.callback(model.stop, number)
            model.begin(number)
        for at in range(30):
            whats = ("send", "lose", "hear") if at < 8 else WHATS
            model.do(chance.choice(whats) if at else "send", chance.choice(KEYS), *pick(chance, archives))
            if at < 8 and chance.random() < 0.2:
                since, done_ns = dict(publisher.sequences[0]), time.time_ns()
        is_closed = chance.random() < 0.4
        model.end(is_closed)
        if is_closed:
            begin_run(publisher, publisher.epoch + 1)
            stack.enter_context(model.closed(feed.archives, feed.name))
        position = KeyPosition(FIRST, since, [prefix], done_ns, 0)
        kept = PositionFile(tmp_path, "strategy-1")
        if begins == "named":
            kept.own(0)
            kept.keep(feed.name, {0: position})
            kept.close()
        live = stack.enter_context(RawPublisher(feed, publisher.epoch))
        live.sequences = [dict(publisher.sequences[0])]
        named: dict[str, Any] = {"name": "strategy-1", "positions": tmp_path} if begins == "named" else {}
        subscriber = Subscriber(feed, repair_wait=2, **named)
        told = Told(subscriber, prefix)
        subscriber.start(since={"position": {0: position}, "time": 0, "named": None}[begins])  # type: ignore[arg-type]
        live.heartbeat()
        subscriber.wait_live()
        live.heartbeat(end=True)
        subscriber.run(until_end=True)
    wanted = {key: model.expected(key, None if begins == "time" else since) for key in KEYS if key.startswith(prefix)}
    assert told.facts == {key: facts for key, facts in wanted.items() if facts}


def test_the_end_of_a_run_is_asked_only_of_keys_that_are_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A position names others, too; an archive refuses all of a request that names a key without a right."""
    feed, elsewhere, asked = archived_feed(2, key_bytes=2), feed_of(key_bytes=2), set[bytes]()
    real = ArchiveClient.missing

    def missing(client: ArchiveClient, slice_id: int, ranges: Any, *arguments: Any, **settings: Any) -> Any:
        asked.update(each.key for each in ranges)
        return real(client, slice_id, ranges, *arguments, **settings)

    monkeypatch.setattr(ArchiveClient, "missing", missing)
    with RawPublisher(elsewhere, FIRST) as publisher, ExitStack() as stack:
        model = Archived(feed, tmp_path, publisher, elsewhere)
        for number in range(2):
            model.begin(number)
            stack.callback(model.stop, number)
        for what in ("hear", "run"):
            model.do(what, b"", 0, 0)
            for key in KEYS:
                model.send(key, 5)
        since = Since(FIRST, {b"AA": 2, b"B": 1}, 0, 0, [b""])
        found = ArchiveClient(feed).since(0, since, [b"AA"], 2.0, lambda: False, patience_s=20.0)
        came = [(each.key, each.epoch) for each in islice((each for each in found if isinstance(each, Block)), 2)]
    assert came == [(b"AA", FIRST), (b"AA", FIRST + 1)]
    assert asked == {b"AA"}
