"""Archives report the end of an epoch: gaps shown by marks, whether it has ended, and outages."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from blackbox import Recorder, Subscriber
from blackbox.archive.consumer_positions import PositionFile
from blackbox.archive.serve import piece_reading
from blackbox.archive.serve.client import ArchiveClient
from blackbox.archive.serve.connection import Fetched
from blackbox.archive.serve.pieces import Pieces
from blackbox.archive.serve.protocol import BEGINNING_NS, AskBlocks, Gone, Outage, RunAbout
from blackbox.archive.serve.server import ArchiveServer
from blackbox.block.format import FLAG_END
from blackbox.block.position import Position
from blackbox.testing import RawPublisher, wait_until
from tests.archive.archives import archived_feed, free_endpoint
from tests.archive.recorders import feed_of, wait_recorded
from tests.archive.written_days import few
from tests.archive.written_journals import Journal, block
from tests.examples import first_of
from tests.journals import feed_of as journal_feed
from tests.support import Script

SECOND = 10**9
Op = tuple[str, int, bytes]
"""Event, number of messages, and key."""
Fact = tuple[str, int, int]
"""True if a message was received, False if it is gone; epoch and sequence."""

OPS = st.lists(
    st.tuples(
        st.sampled_from(["record", "record", "lose", "lose", "hear", "end", "run", "recorder", "day"]),
        st.integers(1, 3),
        st.sampled_from([b"A", b"B"]),
    ),
    max_size=25,
)


_LETTERS = {"r": "record", "l": "lose", "h": "hear", "e": "end", "n": "run", "o": "recorder", "d": "day"}


def ops_of(text: str) -> list[Op]:
    return [(_LETTERS[word[0]], int(word[2:] or 1), word[1:2].encode() or b"A") for word in text.split()]


class Walk:
    """Events of a recorder, and the result of a plain walk over them."""

    def __init__(self) -> None:
        self.log: list[tuple[str, int, bytes, int, int]] = []
        """`block` or `told`, epoch, key, first sequence, sequence after the last one."""

    def walk(self, prefix: bytes, start: Position | None) -> list[Fact]:
        found: list[Fact] = []
        told: dict[int, int] = {}
        at = start

        def lose(epoch: int, stop: int) -> None:
            nonlocal at
            assert at is not None
            first = at.sequence if epoch == at.epoch else 0
            if epoch >= at.epoch and first < stop:
                found.extend(("gone", epoch, number) for number in range(first, stop))
            at = max(at, Position(epoch, max(first, stop)))

        for what, epoch, key, first, stop in self.log:
            told[epoch] = max(told.get(epoch, 0), stop if what == "told" else 0)
            if what == "told":
                continue
            at = Position(epoch, first) if at is None else at
            for before in sorted(told):
                if before < epoch:
                    lose(before, told[before])
            if Position(epoch, stop) > at:
                lose(epoch, first)
                if key.startswith(prefix):
                    found.extend(("came", epoch, number) for number in range(first, stop))
                at = Position(epoch, stop)
        for before in sorted(told) if at is not None else ():
            lose(before, told[before])
        return found


class Model(Walk):
    """A publisher, and a recorder with a hand-written journal."""

    def __init__(self, path: Path, key_bytes: int) -> None:
        super().__init__()
        self.path, self.key_bytes = path, key_bytes
        self.days = self.epoch = 1
        self.is_begun = False
        """True if the last recorder has received anything."""
        self.sent, self.ends = 0, dict[bytes, tuple[int, int]]()
        self.time = 0
        self.journal = self._begin()

    def _begin(self) -> Journal:
        self.is_begun = False
        return Journal(self.path / f"2026-01-0{self.days}", self.key_bytes)

    def do(self, op: Op) -> None:
        what, many, topic = op
        key = topic[: self.key_bytes]
        self.is_begun |= what in ("record", "hear", "end")
        self.time += SECOND
        if what in ("record", "lose"):
            first, (previous, count) = self.sent, self.ends.get(key, (0, 0))
            self.sent += many
            self.ends[key] = self.sent, count + many
            if what == "record":
                put = block(first, many, self.time, self.epoch, topic)
                self.journal.put(replace(put, previous=previous, key_sequence=count))
                self.log.append(("block", self.epoch, key, first, first + many))
        elif what in ("hear", "end"):
            flags = FLAG_END if what == "end" else 0
            self.journal.hear(self.ends, self.epoch, self.time, flags=flags, sequence=self.sent)
            self.log.append(("told", self.epoch, b"", 0, self.sent))
            if what == "end":
                self._run()
        elif what == "run":
            self._run()
        elif self.days < 9:
            self.journal.writer.close()
            self.days += what == "day"
            self.journal = self._begin()

    def _run(self) -> None:
        self.epoch += 1
        self.sent = 0
        self.ends.clear()


def read_all(archive: Pieces, ask: AskBlocks) -> tuple[list[Fact], str]:
    found: list[Fact] = []
    while True:
        piece, blocks = archive.read(ask)
        gone = iter([*piece.gone, (len(blocks) + 1, None)])
        place, lost = next(gone)
        for number in range(len(blocks) + 1):
            while place <= number and lost is not None:
                found += [("gone", lost.epoch, n) for n in range(lost.first, lost.stop)]
                place, lost = next(gone)
            if number < len(blocks):
                first_row = piece.blocks[number][1]
                found += [("came", blocks[number].epoch, n) for n in blocks[number].sequences[first_row:].tolist()]
        if piece.state != "more":
            return found, piece.state
        ask = msgspec.structs.replace(ask, cursor=piece.cursor, start=piece.passed)


def from_start(facts: list[Fact], start: Position | None) -> list[Fact]:
    """Remove rows before the start, because an archive returns whole blocks."""
    return [fact for fact in facts if start is None or fact[1:] >= start]


@few
@given(
    OPS,
    st.sampled_from([0, 1]),
    st.sampled_from([None, (0, 0), (1, 0), (1, 2), (2, 0), (2, 3), (3, 1)]),
    st.booleans(),
    st.sampled_from([1, 1 << 20]),
)
@example(ops_of("rA3 lA2 e rA1"), 0, (1, 0), True, 1)
@example(ops_of("rA3 lA2 h n h"), 0, (1, 0), False, 1)
@example(ops_of("rA3 lA2 h d n rA1"), 0, (1, 3), False, 1)
@example(ops_of("rA1 lA1 e d h d d"), 0, None, False, 1)
@example(ops_of("rA3 n lB2 lA1 e rA1"), 1, (1, 0), False, 1)
def test_received_and_missing_messages_match_a_plain_walk(
    ops: list[Op], key_bytes: int, start: Any, is_closed: bool, piece_bytes: int
) -> None:
    with TemporaryDirectory() as path, pytest.MonkeyPatch.context() as patch:
        patch.setattr(piece_reading, "PIECE_BYTES", piece_bytes)
        model = Model(Path(path), key_bytes)
        for op in ops:
            model.do(op)
        if is_closed:
            model.journal.writer.close()
        else:
            model.journal.writer.state.flushed = 0
            model.journal.rest()
        at = None if start is None else Position(*start)
        begin = at or Pieces(Path(path)).position_at(0, BEGINNING_NS).position
        assert begin is not None
        for prefix in {b"", b"A"[:key_bytes], b"B"[:key_bytes]}:
            ask = AskBlocks(slice_id=0, prefixes=(prefix,), start=begin)
            found, state = read_all(Pieces(Path(path)), ask)
            if model.is_begun:  # otherwise it depends on whether the recorder has begun a file
                assert state == ("done" if is_closed else "later")
            assert from_start(found, at) == from_start(model.walk(prefix, at), at)
        if not is_closed:
            model.journal.writer.close()


@pytest.mark.parametrize("key_bytes", [0, 1])
def test_an_answer_has_the_ends_of_keys_whose_last_messages_are_missing(tmp_path: Path, key_bytes: int) -> None:
    model = Model(tmp_path, key_bytes)
    for op in ops_of("rA2 rB1 lA3 rB2 lB1 h n rA1"):
        model.do(op)
    model.journal.writer.close()
    piece, _ = Pieces(tmp_path).read(AskBlocks(slice_id=0, prefixes=(b"A"[:key_bytes],), start=Position(1, 0)))
    assert piece.ended is not None
    ended = piece.ended
    assert (piece.passed, ended.epoch, ended.stop, ended.following) == (Position(2, 0), 1, 9, 9)
    assert ended.ends == ({b"A": (6, 5)} if key_bytes else {b"": (9, 9)})


def told_by(client: ArchiveClient, epoch: int) -> tuple[int, bool]:
    """Return the last known sequence of an epoch, and True if the epoch has ended."""
    runs = {run.epoch: run for run in client.about().slices[0].runs}
    return (runs[epoch].last_sequence, runs[epoch].has_ended) if epoch in runs else (-1, False)


def messages_in(client: ArchiveClient) -> int:
    return sum(held.messages for held in client.about().slices.values())


class Order:
    """Messages and gaps in the order of a subscriber's calls."""

    def __init__(self, subscriber: Subscriber) -> None:
        self.told: list[Fact] = []
        subscriber.on(b"", fields=("epoch", "sequence"))(
            lambda epoch, number: self.told.append(("came", epoch, number))
        )
        subscriber.on_gap(b"")(
            lambda gap: self.told.extend(
                ("gone", gap.epoch, number) for number in range(gap.sequence, gap.sequence + gap.count)
            )
        )


def facts(what: str, epoch: int, numbers: range) -> list[Fact]:
    return [(what, epoch, number) for number in numbers]


def send(publisher: RawPublisher, count: int) -> None:
    publisher.send(publisher.encode([(b"A.x", b"payload")] * count))


def lose(publisher: RawPublisher, count: int) -> None:
    publisher.encode([(b"A.x", b"payload")] * count)


def begin_run(publisher: RawPublisher, epoch: int) -> None:
    publisher.epoch, publisher.sequences, publisher.ends = epoch, [0], [{}]


FIRST, SECOND_RUN = 1 << 40, 1 << 41


def record_first_run(publisher: RawPublisher, recorder: Recorder, *, ends: bool) -> None:
    """Publish ten recorded messages, and five that only a heartbeat reports."""
    send(publisher, 10)
    wait_recorded(recorder, 10)
    lose(publisher, 5)
    publisher.heartbeat(end=ends)


def hear_second_run(publisher: RawPublisher) -> None:
    begin_run(publisher, SECOND_RUN)
    for _ in range(2):
        publisher.heartbeat()


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("second", ["recorded", "heard", "unheard"])
@pytest.mark.parametrize("named", [True, False])
def test_a_joining_subscriber_gets_the_gap_at_the_end_of_an_earlier_epoch(
    tmp_path: Path, ends: bool, second: str, named: bool
) -> None:
    """In order, before the first message of the live epoch. `unheard`: the recorder ended before it."""
    feed, elsewhere = archived_feed(heartbeat_ns=60 * SECOND), feed_of()
    with RawPublisher(elsewhere, FIRST) as publisher, ExitStack() as stack:
        recorder = stack.enter_context(Recorder(elsewhere, tmp_path))
        record_first_run(publisher, recorder, ends=ends)
        stack.enter_context(ArchiveServer(tmp_path / feed.name, feed.archives))
        client = ArchiveClient(feed)
        wait_until(lambda: told_by(client, FIRST) == (14, ends))
        if second == "unheard":
            recorder.stop()
        else:
            hear_second_run(publisher)
            wait_until(lambda: len(client.about().slices[0].runs) == 2)
        if second == "recorded":
            send(publisher, 3)
            wait_recorded(recorder, 13)
        live = stack.enter_context(RawPublisher(feed, SECOND_RUN))
        if second == "recorded":
            live.sequences = [3]
        kept = PositionFile(tmp_path, "strategy-1")
        if named:
            kept.own(0)
            kept.keep(feed.name, {0: Position(FIRST, 7)})
            kept.close()
        settings = {"name": "strategy-1", "positions": tmp_path} if named else {}
        subscriber = Subscriber(feed, **settings)  # type: ignore[arg-type]
        heard = Order(subscriber)
        subscriber.start(since=None if named else {0: (FIRST, 7)})
        live.heartbeat()
        subscriber.wait_live()
        send(live, 4)
        live.heartbeat(end=True)
        subscriber.run(until_end=True)
    count = 7 if second == "recorded" else 4
    assert heard.told == [
        *facts("came", FIRST, range(7, 10)),
        *facts("gone", FIRST, range(10, 15)),
        *facts("came", SECOND_RUN, range(count)),
    ]


def test_the_same_from_a_time_and_with_an_unrecorded_epoch(tmp_path: Path) -> None:
    feed, elsewhere = archived_feed(), feed_of()
    with RawPublisher(elsewhere, FIRST) as publisher, Recorder(elsewhere, tmp_path) as recorder:
        record_first_run(publisher, recorder, ends=False)
        begin_run(publisher, FIRST + 1)
        lose(publisher, 2)
        for _ in range(3):
            publisher.heartbeat()
        hear_second_run(publisher)
        send(publisher, 3)
        wait_recorded(recorder, 13)
    with ArchiveServer(tmp_path / feed.name, feed.archives), RawPublisher(feed, SECOND_RUN) as live:
        live.sequences = [3]
        subscriber = Subscriber(feed)
        heard = Order(subscriber)
        subscriber.start(since=0)
        subscriber.wait_live()
        live.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert heard.told == [
        *facts("came", FIRST, range(10)),
        *facts("gone", FIRST, range(10, 15)),
        *facts("gone", FIRST + 1, range(2)),
        *facts("came", SECOND_RUN, range(3)),
    ]


@pytest.mark.parametrize("stops", [12, 15, 17])
def test_messages_missing_at_the_end_of_an_epoch_are_read_from_another_archive(tmp_path: Path, stops: int) -> None:
    """The other archive has fewer messages than are known, all of them, or more."""
    feed = archived_feed(2)
    for place in ("poor", "rich"):
        elsewhere = feed_of()
        with RawPublisher(elsewhere, FIRST) as publisher, Recorder(elsewhere, tmp_path / place) as recorder:
            if place == "poor":
                record_first_run(publisher, recorder, ends=False)
            else:
                send(publisher, 10)
                send(publisher, stops - 10)
                wait_recorded(recorder, stops)
            hear_second_run(publisher)
            send(publisher, 3)
            wait_recorded(recorder, 13 if place == "poor" else stops + 3)
    with (
        ArchiveServer(tmp_path / "poor" / feed.name, feed.archives[:1]),
        ArchiveServer(tmp_path / "rich" / feed.name, feed.archives[1:]),
        RawPublisher(feed, SECOND_RUN) as live,
    ):
        live.sequences = [3]
        subscriber = Subscriber(feed, on_gap="repair", repair_wait=60)
        heard = Order(subscriber)
        subscriber.start(since={0: (FIRST, 0)})
        subscriber.wait_live()
        live.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert heard.told == [
        *facts("came", FIRST, range(stops)),
        *facts("gone", FIRST, range(stops, 15)),
        *facts("came", SECOND_RUN, range(3)),
    ]


@pytest.mark.parametrize("shown", ["block", "gone", "later"])
def test_an_epoch_that_the_first_archive_lacks_is_read_from_another(tmp_path: Path, shown: str) -> None:
    """Its gaps are reported too. The first archive knows a later epoch from a block, a gap or a heartbeat."""
    feed, third = archived_feed(2), SECOND_RUN + 1
    first = {"block": 0, "gone": 10, "later": 0}[shown]
    with ExitStack() as stack:
        for place in ("poor", "rich"):
            elsewhere = feed_of()
            publisher = stack.enter_context(RawPublisher(elsewhere, FIRST))
            with Recorder(elsewhere, tmp_path / place) as recorder:
                send(publisher, 10)
                wait_recorded(recorder, 10)
            begin_run(publisher, SECOND_RUN)
            if place == "rich":
                with Recorder(elsewhere, tmp_path / place) as recorder:
                    record_first_run(publisher, recorder, ends=False)
                    send(publisher, 4)
                    lose(publisher, 2)
                    wait_recorded(recorder, 14)
                    publisher.heartbeat(end=True)
                    with ArchiveServer(tmp_path / place / feed.name, feed.archives[:1]):
                        wait_until(lambda: told_by(ArchiveClient(feed), SECOND_RUN) == (20, True), 60)
            begin_run(publisher, third)
            recorder = stack.enter_context(Recorder(elsewhere, tmp_path / place))
            for _ in range(3):
                publisher.heartbeat()
            if shown == "gone":
                lose(publisher, first)
            if shown != "later":
                send(publisher, 3)
                wait_recorded(recorder, 3)
            for _ in range(3):
                publisher.heartbeat()
        for place, endpoint in zip(("poor", "rich"), feed.archives, strict=True):
            stack.enter_context(ArchiveServer(tmp_path / place / feed.name, (endpoint,)))
        client = ArchiveClient(feed)
        wait_until(lambda: third in {run.epoch for run in client.about().slices[0].runs}, 60)
        live = stack.enter_context(RawPublisher(feed, third))
        live.sequences = [first + 3] if shown != "later" else [0]
        subscriber = Subscriber(feed)
        heard = Order(subscriber)
        subscriber.start(since={0: (FIRST, 5)})
        live.heartbeat()
        subscriber.wait_live()
        send(live, 2)
        live.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert heard.told == [
        *facts("came", FIRST, range(5, 10)),
        *facts("came", SECOND_RUN, range(10)),
        *facts("gone", SECOND_RUN, range(10, 15)),
        *facts("came", SECOND_RUN, range(15, 19)),
        *facts("gone", SECOND_RUN, range(19, 21)),
        *facts("gone", third, range(first)),
        *facts("came", third, range(first, first + 2 if shown == "later" else first + 5)),
    ]


def test_messages_sent_after_the_recorder_was_killed_are_a_gap_at_the_end(tmp_path: Path) -> None:
    feed = archived_feed(heartbeat_ns=60 * SECOND)
    elsewhere = msgspec.structs.replace(feed_of(), archives=feed.archives)
    code = f"""
        recorder = Recorder(feed, {str(tmp_path)!r}, serve=True).start()
        say("started")
        input()
        recorder.stop()
    """
    client = ArchiveClient(feed)
    with RawPublisher(elsewhere, FIRST) as publisher:
        with Script(code, elsewhere) as killed:
            killed.expect("started")
            send(publisher, 10)
            wait_until(lambda: told_by(client, FIRST)[0] == 9, 60)
            killed.kill()
        lose(publisher, 5)
        with Script(code, elsewhere) as script, RawPublisher(feed, SECOND_RUN) as live:
            script.expect("started")
            publisher.heartbeat()
            wait_until(lambda: told_by(client, FIRST) == (14, False), 60)
            hear_second_run(publisher)
            wait_until(lambda: len(client.about().slices[0].runs) == 2, 60)
            about = client.about().slices[0]
            assert [outage.stop_ns > 0 for outage in about.outages] == [True, True]
            assert about.outages[1].start_ns == about.last_ns
            subscriber = Subscriber(feed)
            heard = Order(subscriber)
            subscriber.start(since={0: (FIRST, 7)})
            subscriber.wait_live()
            send(live, 4)
            live.heartbeat(end=True)
            subscriber.run(until_end=True)
            script.tell("stop")
    assert heard.told == [
        *facts("came", FIRST, range(7, 10)),
        *facts("gone", FIRST, range(10, 15)),
        *facts("came", SECOND_RUN, range(4)),
    ]


@pytest.mark.parametrize("seed", first_of(range(4), keep=2))
def test_a_joining_subscriber_matches_a_plain_walk(tmp_path: Path, seed: int) -> None:
    """Epochs end and lose messages while recorders start and stop, over real sockets."""
    chance, walk = Random(seed), Walk()
    feed = archived_feed()
    elsewhere = msgspec.structs.replace(feed_of(), archives=feed.archives)
    client, recorded = ArchiveClient(feed), 0
    with RawPublisher(elsewhere, FIRST) as publisher:
        recorder = Recorder(elsewhere, tmp_path, serve=True).start()
        for _ in range(40):
            epoch, at = publisher.epoch, publisher.sequences[0]
            what, many = (
                chance.choice(["send", "send", "lose", "lose", "hear", "end", "recorder"]),
                chance.randint(1, 9),
            )
            if what == "send":
                send(publisher, many)
                recorded += many
                wait_until(lambda: messages_in(client) == recorded, 60)
                walk.log.append(("block", epoch, b"", at, at + many))
            elif what == "lose":
                lose(publisher, many)
            elif what in ("hear", "end") and at > 0:
                publisher.heartbeat(end=what == "end")
                wait_until(lambda: told_by(client, epoch)[0] == at - 1, 60)
                walk.log.append(("told", epoch, b"", 0, at))
                if what == "end" or chance.random() < 0.3:
                    begin_run(publisher, epoch + 1)
                    for _ in range(2):
                        publisher.heartbeat()
                    wait_until(lambda: epoch + 1 in {run.epoch for run in client.about().slices[0].runs}, 60)
                    walk.log.append(("told", epoch + 1, b"", 0, 0))
            elif what == "recorder" and walk.log:
                recorder.stop()
                recorder = Recorder(elsewhere, tmp_path, serve=True).start()
                wait_until(lambda: client.about().slices[0].outages[-1].stop_ns > 0, 60)
        with RawPublisher(feed, publisher.epoch) as live:
            live.sequences = list(publisher.sequences)
            start = Position(FIRST, chance.randint(0, 5))
            subscriber = Subscriber(feed, repair_wait=2)
            heard = Order(subscriber)
            subscriber.start(since={0: start})
            live.heartbeat()
            subscriber.wait_live()
            live.heartbeat(end=True)
            subscriber.run(until_end=True)
        recorder.stop()
    walk.log.append(("told", publisher.epoch, b"", 0, publisher.sequences[0]))
    assert heard.told == from_start(walk.walk(b"", start), start)


def test_an_implausible_sequence_is_not_reported_as_gone(tmp_path: Path) -> None:
    feed = feed_of()
    with RawPublisher(feed, FIRST) as publisher, Recorder(feed, tmp_path) as recorder:
        send(publisher, 10)
        wait_recorded(recorder, 10)
        for ends in (False, True):
            publisher.sequences = [1 << (50 + ends)]
            publisher.heartbeat(end=ends)
            publisher.sequences = [10]
            publisher.heartbeat()
        begin_run(publisher, SECOND_RUN)
        for _ in range(2):
            send(publisher, 2)
        wait_recorded(recorder, 14)
    archive = Pieces(tmp_path / feed.name)
    found, _ = read_all(archive, AskBlocks(slice_id=0, start=Position(FIRST, 0)))
    assert found == facts("came", FIRST, range(10)) + facts("came", SECOND_RUN, range(4))
    assert [run.last_sequence for run in archive.about(None).slices[0].runs] == [9, 3]


def test_the_end_of_an_epoch_without_marks_is_unknown(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "2026-01-01")
    journal.put(block(0, 3, SECOND, epoch=7))
    journal.put(block(0, 1, 2 * SECOND, epoch=8))
    journal.writer.close()
    archive = Pieces(tmp_path)
    found, state = read_all(archive, AskBlocks(slice_id=0, start=Position(7, 0)))
    assert (found, state) == (facts("came", 7, range(3)) + facts("came", 8, range(1)), "done")
    assert archive.about(None).slices[0].runs == [
        RunAbout(epoch=7, last_sequence=2, has_ended=False, heard_ns=0),
        RunAbout(epoch=8, last_sequence=0, has_ended=False, heard_ns=0),
    ]


def test_an_archive_reports_ends_of_epochs_and_outages(tmp_path: Path) -> None:
    day = tmp_path / "2026-01-01"
    journal = Journal(day)
    journal.put(block(0, 3, 10 * SECOND, epoch=7))
    journal.hear({b"": 5}, 7, 20 * SECOND, flags=FLAG_END)
    journal.put(block(0, 2, 30 * SECOND, epoch=8))
    journal.rest()  # then it is killed
    killed, journal = journal, Journal(day)
    journal.hear({b"": 9}, 8, 40 * SECOND)
    journal.hear({}, 9, 50 * SECOND)
    archive = Pieces(tmp_path)
    journal.writer.state.flushed = 0
    journal.rest()
    about = archive.about(None).slices[0]
    assert about.runs == [
        RunAbout(epoch=7, last_sequence=4, has_ended=True, heard_ns=20 * SECOND),
        RunAbout(epoch=8, last_sequence=8, has_ended=False, heard_ns=40 * SECOND),
        RunAbout(epoch=9, last_sequence=-1, has_ended=False, heard_ns=50 * SECOND),
    ]
    assert about.outages == [Outage(0, 10 * SECOND), Outage(30 * SECOND, 40 * SECOND)]
    journal.writer.close()
    last = archive.about(None).slices[0].outages[-1]
    assert (last.start_ns > 50 * SECOND, last.stop_ns) == (True, 0)
    killed.writer.refuse()
    killed.writer.close()


def test_a_read_that_stops_in_a_finished_epoch_ends(tmp_path: Path) -> None:
    """The archive does not know the epoch's end, so the rest of the requested range is reported as gone."""
    feed = journal_feed(archives=(free_endpoint(),))
    journal = Journal(tmp_path / feed.name / "2026-01-01")
    journal.put(block(0, 3, SECOND, epoch=7))
    journal.hear({}, 8, 2 * SECOND)
    journal.rest()
    with ArchiveServer(tmp_path / feed.name, feed.archives):
        first, gone = ArchiveClient(feed).blocks(0, start=(7, 1), stop=(7, 5))
    assert (isinstance(first, Fetched) and first.first_row, gone) == (1, Gone(7, 3, 5, "not recorded"))
    journal.writer.close()
