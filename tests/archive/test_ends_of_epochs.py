"""Archives report the end of an epoch: gaps shown by marks, whether it has ended, and outages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from blackbox import Recorder
from blackbox.archive.serve import piece_reading
from blackbox.archive.serve.archive_days import DAYS_OPEN, ArchiveDays
from blackbox.archive.serve.client import ArchiveClient
from blackbox.archive.serve.connection import Fetched
from blackbox.archive.serve.pieces import Pieces
from blackbox.archive.serve.protocol import BEGINNING_NS, AskBlocks, EndOfEpoch, FoundPosition, Gone, Outage, RunAbout
from blackbox.archive.serve.server import ArchiveServer
from blackbox.block.form.format import FLAG_END
from blackbox.block.position import Position
from blackbox.testing import RawPublisher
from tests.archive.archives import after, answers, free_endpoint
from tests.archive.epochs import FIRST, SECOND, SECOND_RUN, Fact, Walk, begin_run, facts, from_start, send
from tests.archive.recorders import feed_of, wait_recorded
from tests.archive.written_days import few
from tests.archive.written_journals import Journal, block
from tests.journals import Day
from tests.journals import feed_of as journal_feed

Op = tuple[str, int, bytes]
"""Event, number of messages, and key."""

OPS = st.lists(
    st.tuples(
        st.sampled_from(["record", "record", "lose", "lose", "hear", "end", "run", "recorder", "kill", "day"]),
        st.integers(1, 3),
        st.sampled_from([b"A", b"B"]),
    ),
    max_size=25,
)


_LETTERS = {"r": "record", "l": "lose", "h": "hear", "e": "end", "n": "run", "o": "recorder", "k": "kill", "d": "day"}


def ops_of(text: str) -> list[Op]:
    return [(_LETTERS[word[0]], int(word[2:] or 1), word[1:2].encode() or b"A") for word in text.split()]


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
        self.killed: list[Journal] = []
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
        elif what == "kill":
            self.journal.write()
            self.killed.append(self.journal)
            self.journal = self._begin()
        elif self.days < 9:
            self.journal.writer.close()
            self.days += what == "day"
            self.journal = self._begin()

    def after(self, text: str) -> Model:
        """Do all these operations."""
        for op in ops_of(text):
            self.do(op)
        return self

    def close(self) -> None:
        for killed in self.killed:
            killed.writer.refuse()
        for journal in (*self.killed, self.journal):
            journal.writer.close()

    def _run(self) -> None:
        self.epoch += 1
        self.sent = 0
        self.ends.clear()


def read_all(archive: Pieces, ask: AskBlocks) -> tuple[list[Fact], str]:
    found: list[Fact] = []
    state = ""
    for piece, blocks in answers(archive, ask):
        state = piece.state
        gone = iter([*piece.gone, (len(blocks) + 1, None)])
        place, lost = next(gone)
        for number in range(len(blocks) + 1):
            while place <= number and lost is not None:
                found += [("gone", lost.epoch, n) for n in range(lost.first, lost.stop)]
                place, lost = next(gone)
            if number < len(blocks):
                first_row = piece.blocks[number][1]
                found += [("came", blocks[number].epoch, n) for n in blocks[number].sequences[first_row:].tolist()]
    return found, state


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
@example(ops_of("rA3 k lA2 h n h"), 0, (1, 0), True, 1)
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
            model.journal.write()
        at = None if start is None else Position(*start)
        begin = at or Pieces(Path(path)).position_at(0, BEGINNING_NS).position
        assert begin is not None
        for prefix in {b"", b"A"[:key_bytes], b"B"[:key_bytes]}:
            ask = AskBlocks(slice_id=0, prefixes=(prefix,), start=begin)
            found, state = read_all(Pieces(Path(path)), ask)
            if model.is_begun:  # otherwise it depends on whether the recorder has begun a file
                assert state == ("done" if is_closed else "later")
            assert from_start(found, at) == from_start(model.walk(prefix, at), at)
        model.close()


def test_an_answer_has_the_ends_of_keys_whose_last_messages_are_missing(tmp_path: Path) -> None:
    Model(tmp_path, 1).after("rA2 rB1 lA3 rB2 lB1 h n rA1").close()
    piece, _ = Pieces(tmp_path).read(AskBlocks(slice_id=0, prefixes=(b"A",), start=Position(1, 0)))
    assert (piece.passed, piece.ended) == (Position(2, 0), EndOfEpoch(1, 9, 9, {b"A": (6, 5)}))


def test_an_epoch_without_messages_ends_before_the_next_one(tmp_path: Path) -> None:
    Model(tmp_path, 0).after("rA3 h n h n rA1").close()
    pieces = [piece for piece, _ in answers(Pieces(tmp_path), AskBlocks(slice_id=0, start=Position(1, 0)))]
    ended = [(each.ended.epoch, each.ended.stop, each.passed) for each in pieces if each.ended]
    assert (ended, pieces[-1].state) == ([(1, 3, Position(2, 0)), (2, 0, Position(3, 0))], "done")


def test_the_end_of_an_epoch_is_known_however_long_its_slice_is_quiet(tmp_path: Path) -> None:
    names = [f"2026-01-{number:02}" for number in range(1, DAYS_OPEN + 4)]
    with Journal(tmp_path / names[0]) as journal:
        journal.put(block(0, 3, SECOND))
        journal.hear({b"": 5}, ts_recv=2 * SECOND)
    for name in names[1:]:
        Day(tmp_path / name, journal_feed())
    ask = AskBlocks(slice_id=0, start=Position(1, 0))
    expected = facts("came", 1, range(3)) + facts("gone", 1, range(3, 5))
    assert read_all(Pieces(tmp_path), ask) == (expected, "done")
    archive = Pieces(tmp_path)
    while (found := archive.position_at(0, 3 * SECOND)).position is None:
        pass
    assert found == FoundPosition(position=Position(1, 5), is_end=True)
    archive.check_positions({0: Position(1, 5)})
    with Journal(tmp_path / names[-1]) as journal:
        journal.put(block(0, 1, 9 * SECOND, epoch=2))
    assert read_all(Pieces(tmp_path), ask) == (expected + facts("came", 2, range(1)), "done")


def test_for_a_waiting_reader_only_the_last_day_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1, 5):
        journal = Journal(tmp_path / f"2026-01-0{number}")
        journal.put(block(number, 1, SECOND))
        if number < 4:
            journal.writer.close()
    journal.write()
    archive, ask = Pieces(tmp_path), AskBlocks(slice_id=0, start=Position(1, 1))
    *_, (last, _) = answers(archive, ask)
    ask = after(ask, last)
    names, fresh = set[str](), ArchiveDays.fresh

    def note(days: ArchiveDays, name: str, slice_id: int | None = None) -> Any:
        names.add(name)
        return fresh(days, name, slice_id)

    monkeypatch.setattr(ArchiveDays, "fresh", note)
    assert (archive.read(ask).piece.state, names) == ("later", {"2026-01-04"})
    journal.writer.close()


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


def test_an_archive_reports_ends_of_epochs_and_outages(tmp_path: Path) -> None:
    day = tmp_path / "2026-01-01"
    journal = Journal(day)
    journal.put(block(0, 1, 10 * SECOND, epoch=6))
    journal.put(block(0, 3, 10 * SECOND, epoch=7))
    journal.hear({b"": 5}, 7, 20 * SECOND, flags=FLAG_END)
    journal.put(block(0, 2, 30 * SECOND, epoch=8))
    journal.rest()  # then it is killed
    killed, journal = journal, Journal(day)
    journal.hear({b"": 9}, 8, 40 * SECOND)
    journal.hear({}, 9, 50 * SECOND)
    archive = Pieces(tmp_path)
    journal.write()
    about = archive.about(None).slices[0]
    assert about.runs == [
        RunAbout(epoch=6, last_sequence=0, has_ended=False, heard_ns=0),
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


def test_the_last_heartbeat_counts_after_one_that_named_keys(tmp_path: Path) -> None:
    with Journal(tmp_path / "2026-01-01") as journal:
        journal.put(block(0, 3, 10 * SECOND, epoch=7))
        journal.hear({b"": 5}, 7, 20 * SECOND)
        journal.hear({b"": 5}, 7, 32 * SECOND)
    (run,) = Pieces(tmp_path).about(None).slices[0].runs
    assert run == RunAbout(epoch=7, last_sequence=4, has_ended=False, heard_ns=32 * SECOND)


def test_a_read_that_stops_in_a_finished_epoch_ends(tmp_path: Path) -> None:
    """The archive does not know the epoch's end, so the rest of the requested range is reported as gone."""
    feed = journal_feed(archives=(free_endpoint(),))
    journal = Journal(tmp_path / feed.name / "2026-01-01")
    journal.put(block(0, 3, SECOND, epoch=7))
    journal.hear({}, 8, 2 * SECOND)
    journal.rest()
    with ArchiveServer(tmp_path / feed.name, feed.archives):
        first, gone = ArchiveClient(feed, timeout=200).blocks(0, start=(7, 1), stop=(7, 5))
    assert (isinstance(first, Fetched) and first.first_row, gone) == (1, Gone(7, 3, 5, "not recorded"))
    journal.writer.close()
