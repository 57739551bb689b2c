"""Answers of an archive equal a plain read of the recording, also next to its recorder, and gaps are reported."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox import Publisher, Recording
from blackbox.archive.files.format import ENTRY_SPAN_BYTES
from blackbox.archive.files.marks import is_closed
from blackbox.archive.record.recorder import Recorder
from blackbox.archive.serve import piece_reading, pieces
from blackbox.archive.serve.archive_days import ArchiveDays
from blackbox.archive.serve.client import ArchiveClient
from blackbox.archive.serve.connection import Fetched
from blackbox.archive.serve.pieces import Pieces
from blackbox.archive.serve.protocol import BEGINNING_NS, AskBlocks, Gone, Piece
from blackbox.archive.serve.server import ArchiveServer
from blackbox.block.position import Position
from blackbox.errors import ArchiveError
from blackbox.testing import wait_until
from tests.archive.archives import (
    PART,
    all_numbers,
    answers,
    archived_feed,
    free_endpoint,
    keep_silent,
    numbers,
    publish_over_segments,
    publish_parts,
    recorded,
)
from tests.archive.recorders import MIB, segments, wait_recorded
from tests.archive.written_days import EPOCHS, days, few, made, many
from tests.archive.written_journals import Journal, block
from tests.cli.commands import Command
from tests.damaged import flip
from tests.journals import Day, Put, Row, Told, feed_of

SECOND = 10**9


def told(piece: Piece, blocks: list[Any], prefixes: tuple[bytes, ...]) -> list[Told]:
    return [
        Told(
            block.slice_id,
            block.epoch,
            int(block.sequences[row]),
            block.ts_out,
            ts_recv,
            block.topics[block.topic_index[row]],
            block.payload(row),
            int(block.ts_event[row]),
        )
        for block, (ts_recv, first_row) in zip(blocks, piece.blocks, strict=True)
        for row in range(first_row, block.count)
        if block.topics[block.topic_index[row]].startswith(prefixes)
    ]


Numbers = tuple[int, int, int]
"""Range of sequences as (epoch, first, stop)."""


def walked(puts: list[Put], start: Position) -> tuple[list[Put], list[Numbers]]:
    """Return the blocks of a slice from a position on, with the gaps between them."""
    met, gone, at = list[Put](), list[Numbers](), start
    for put in puts:
        epoch, first, behind = put.epoch, put.numbers[put.first_row], put.numbers[-1] + 1
        at = Position(epoch, 0) if epoch > at.epoch else at
        if (epoch, behind) > at and epoch == at.epoch:
            if first > at.sequence:
                gone.append((epoch, at.sequence, first))
            met.append(put)
            at = Position(epoch, behind)
    return met, gone


@few
@given(
    days(),
    st.sampled_from([(b"",), (b"A",), (b"AXYZ.",), (b"B",), (b"AY.trade.of", b"AX"), (b"AX", b"AXYZ.q", b"C")]),
    st.sampled_from([1, 60, 400, 1 << 20]),
    st.sampled_from([1, 2, 1_024]),
    st.sampled_from([BEGINNING_NS, 0, 4]),
    st.one_of(st.none(), st.builds(Position, st.sampled_from([0, 1, 5, EPOCHS[1]]), st.integers(0, 9))),
)
def test_answers_equal_a_plain_walk_over_the_blocks(
    day: Any, prefixes: tuple[bytes, ...], piece_bytes: int, entries: int, start_ns: int, start: Position | None
) -> None:
    with TemporaryDirectory() as path, pytest.MonkeyPatch.context() as patch:
        patch.setattr(piece_reading, "PIECE_BYTES", piece_bytes)
        patch.setattr(piece_reading, "_ENTRIES", entries)
        made(Path(path) / "day", day)
        archive = Pieces(Path(path))
        for slice_id in range(day[0]):
            puts = [put for number, _, segment in day[2] if number == slice_id for put in segment]
            at_time = next((put for put in puts if put.ts_recv >= start_ns), None)
            position, is_end = msgspec.structs.astuple(archive.position_at(slice_id, start_ns))
            assert is_end == (at_time is None)
            assert at_time is None or position == (at_time.epoch, at_time.numbers[at_time.first_row])
            begin = start or position
            ask = AskBlocks(slice_id=slice_id, prefixes=prefixes, start=begin)
            found, gone, ended = list[Told](), list[Numbers](), list[int]()
            for read in answers(archive, ask):
                found += told(read.piece, read.blocks, prefixes)
                gone += [(each.epoch, each.first, each.stop) for _, each in read.piece.gone]
                ended += [read.piece.ended.epoch] if read.piece.ended else []
            assert read.piece.state == "later"  # the recorder has not closed the journal
            met, missing = walked(puts, begin)
            rows = [row for put in met for row in put.told(slice_id)]
            assert found == [row for row in rows if row.topic.startswith(prefixes)]
            assert gone == missing
            epochs = dict.fromkeys([begin.epoch, *(put.epoch for put in met)])
            assert ended == list(epochs)[:-1]


def test_a_search_by_time_finds_a_block_recorded_during_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed, search = archived_feed(), pieces._first_received
    with Publisher(feed) as publisher, Recorder(feed, tmp_path) as recorder:

        def finds(day: Recording, slice_id: int, start_ns: int) -> Position | None:
            found = search(day, slice_id, start_ns)
            publish_parts(publisher, 0, 10)
            wait_recorded(recorder, 10)
            return found

        monkeypatch.setattr(pieces, "_first_received", finds)
        publisher.wait_for_subscribers()
        found = Pieces(tmp_path / feed.name).position_at(0, BEGINNING_NS)
        assert found.is_end
        assert found.position in (Position(0, 0), Position(publisher.epoch, 0))


def test_another_archive_continues_the_answer_of_one_that_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(piece_reading, "PIECE_BYTES", MIB)
    keep_silent(monkeypatch, closed := list[str]())
    feed = archived_feed(2)
    epoch = recorded(tmp_path, feed, 50_000)
    directory = tmp_path / feed.name
    with ArchiveServer(directory, feed.archives[:1]) as first, ArchiveServer(directory, feed.archives[1:]) as second:
        asked = ArchiveClient(feed, timeout=200).blocks(0, start=(epoch, 0))
        found = numbers(next(asked))  # type: ignore[arg-type]
        assert second.statistics().answered == 0
        first.close()
        closed.append(feed.archives[0])
        assert found + all_numbers(asked) == list(range(50_000))
        assert second.statistics().answered > 1


def places(found: Iterable[Fetched | Gone]) -> list[tuple[int, int]]:
    """Return epoch and sequence of each requested message."""
    wanted: list[tuple[int, int]] = []
    for each in found:
        assert isinstance(each, Fetched), each
        wanted += [(each.block.epoch, n) for n in each.block.sequences[each.first_row : each.stop_row].tolist()]
    return wanted


def test_an_answer_spans_days_and_epochs(tmp_path: Path) -> None:
    """A block of 100 messages each second."""
    feed, epochs_of = feed_of(archives=(free_endpoint(),)), {"2026-01-01": [1], "2026-01-02": [2], "2026-01-03": [3, 4]}
    expected, blocks = list[tuple[int, int]](), itertools.count()
    for name, epochs in epochs_of.items():
        with Journal(tmp_path / name) as journal:
            for epoch in epochs:
                for first in range(0, 1_000, 100):
                    journal.put(block(first, 100, next(blocks) * SECOND, epoch))
                    expected += [(epoch, number) for number in range(first, first + 100)]
    with ArchiveServer(tmp_path, feed.archives):
        client = ArchiveClient(feed, timeout=200)
        about = client.about()
        assert (about.feed, about.live_epoch, about.days, about.day) == (feed.name, None, [*epochs_of], "2026-01-03")
        assert (about.slices[0].messages, about.slices[0].last_sequences) == (2_000, [999, 999])
        assert (about.slices[0].epochs, about.slices[0].is_closed) == ([3, 4], True)
        assert places(client.blocks(0)) == expected
        assert places(client.blocks(0, start=(2, 950), stop=(4, 150))) == expected[1_950:3_150]
        assert places(client.blocks(0, start_ns=3 * SECOND, stop_ns=27 * SECOND)) == expected[300:2_700]
    # Days before the requested range are not read.
    archive = Pieces(tmp_path)
    assert archive.position_at(0, archive.about("2026-01-02").slices[0].first_ns).position == (2, 0)
    _, recorded_blocks = archive.read(AskBlocks(slice_id=0, start=Position(2, 0)))
    assert recorded_blocks[0].epoch == 2


@pytest.mark.parametrize("rules", [(1, 0), (0, 1)])
def test_a_day_with_other_keys_is_read_by_its_own_rule(tmp_path: Path, rules: tuple[int, int]) -> None:
    for epoch, key_bytes in enumerate(rules, 1):
        with Journal(tmp_path / f"2026-01-0{epoch}", key_bytes) as journal:
            journal.put(Put((Row(b"AA", b"0"), Row(b"A" if key_bytes else b"B", b"1")), epoch=epoch))
    piece, blocks = Pieces(tmp_path).read(AskBlocks(slice_id=0, start=Position(2, 0)))
    assert ([(each.epoch, each.key, each.count) for each in blocks], piece.gone) == ([(2, b"A"[: rules[1]], 2)], [])


def test_a_slice_that_an_earlier_day_lacks_is_read(tmp_path: Path) -> None:
    Day(tmp_path / "2026-01-01", feed_of(1)).put(0, Put((Row(b"A", b"0"),)))
    Day(tmp_path / "2026-01-02", feed_of(2)).put(1, Put((Row(b"B", b"1"),), epoch=2))
    archive = Pieces(tmp_path)
    assert archive.position_at(1, BEGINNING_NS).position == (2, 0)
    piece, blocks = archive.read(AskBlocks(slice_id=1, start=Position(2, 0)))
    assert ([each.payload(0) for each in blocks], piece.gone) == ([b"1"], [])
    with pytest.raises(ArchiveError, match="slice was 2, expected 0 to 1"):
        archive.read(AskBlocks(slice_id=2, start=Position(2, 0)))


@pytest.mark.parametrize("lose", [Path.unlink, lambda path: path.write_bytes(b"")])
def test_a_missing_or_empty_segment_is_reported(tmp_path: Path, lose: Callable[[Path], object]) -> None:
    feed = feed_of(archives=(free_endpoint(),))
    with Journal(tmp_path / "2026-01-01") as journal:
        for number in range(40):
            journal.put(Put((Row(b"A", bytes(60_000)),), number, number, number))
            journal.writer.tend()
    _, lost, _ = sorted(tmp_path.glob("*/slice-00000/*.journal"))
    lose(lost)
    with ArchiveServer(tmp_path, feed.archives):
        client = ArchiveClient(feed, timeout=200)
        found = list(client.blocks(0, start=(1, 0), stop=(1, 40)))
        (gone,) = (each for each in found if isinstance(each, Gone))
        assert places(each for each in found if each is not gone) == [
            (1, n) for n in range(40) if not gone.first <= n < gone.stop
        ]
        assert (gone.epoch, gone.stop > gone.first, lost.name in gone.why) == (1, True, True)
        assert list(client.blocks(0, start=(1, 40), stop=(1, 45))) == [Gone(1, 40, 45, "not recorded")]


def test_passed_entries_do_not_count_for_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Day(tmp_path / "2026-01-01", feed_of()).put(0, *many(2_000))
    monkeypatch.setattr(piece_reading, "_ENTRIES", 2)
    piece, blocks = Pieces(tmp_path).read(AskBlocks(slice_id=0, start=Position(1, 1_998)))
    assert ([int(each.sequences[0]) for each in blocks], piece.passed) == ([1_998, 1_999], Position(1, 2_000))


def test_a_closed_journal_is_known_wherever_an_index_entry_ends(tmp_path: Path) -> None:
    splits: set[tuple[int, ...]] = set()
    for size in range(ENTRY_SPAN_BYTES - 600, ENTRY_SPAN_BYTES, 16):
        journal = Journal(tmp_path / str(size))
        journal.put(Put((Row(b"A", bytes(size)),)))
        journal.write()
        day = Recording.open(tmp_path / str(size))
        assert not is_closed(day.segments.of_slice[0][0])
        journal.writer.close()
        day.refresh()
        (segment,) = day.segments.of_slice[0]
        assert is_closed(segment), size
        splits.add(tuple(segment.entries["marks"].tolist()))
    assert any(marks[-2:] == (marks[-2], 1) and marks[-2] for marks in splits if len(marks) > 1), splits


def test_a_damaged_index_is_no_gap(tmp_path: Path) -> None:
    segment = Day(tmp_path / "2026-01-01", feed_of()).put(0, *many(2_000)[5:])
    flip(segment.path.with_suffix(".index"), -1)
    piece, _ = Pieces(tmp_path).read(AskBlocks(slice_id=0, start=Position(1, 0)))
    assert piece.gone == [(0, Gone(1, 0, 5, "not recorded"))]


def test_damage_is_reported_once_and_in_order_across_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = archived_feed()
    epoch = recorded(tmp_path, feed, 10_000)
    path = segments(tmp_path, feed)[0]
    flip(path, *(part * path.stat().st_size // 3 for part in (1, 2)))
    for blocks in (1, 3, 1_000):
        monkeypatch.setattr(piece_reading, "PIECE_BLOCKS", blocks)
        told: list[int | None] = []
        for piece, found in answers(Pieces(tmp_path / feed.name), AskBlocks(slice_id=0, start=Position(epoch, 0))):
            gone = dict(piece.gone)
            for place in range(len(found) + 1):
                told += [None] * (place in gone)
                told += [int(found[place].sequences[0])] if place < len(found) else []
        around = [told[place - 1 : place + 2] for place, number in enumerate(told) if number is None]
        assert len(around) == 2
        assert all(a is not None and b is not None and b - a > PART for a, _, b in around), around


def test_a_reader_waits_for_messages_not_recorded_yet(tmp_path: Path) -> None:
    feed = archived_feed()
    with Publisher(feed) as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        nothing_more = r"nothing more was recorded within 0\.1 s, and its recorder has not"
        with pytest.raises(ArchiveError, match=nothing_more):
            next(ArchiveClient(feed, timeout=200).blocks(0, timeout=0.1))
        publish_parts(publisher, 0, 1_000)
        wait_recorded(recorder, 1_000)
        beyond = ArchiveClient(feed, timeout=200).blocks(0, start=(publisher.epoch, 999), timeout=0.1)
        assert numbers(next(beyond)) == [999]  # type: ignore[arg-type]
        with pytest.raises(ArchiveError, match=nothing_more):
            next(beyond)


def test_a_reader_next_to_the_recorder_misses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It continues at the archive's place: searching all segments again, it would never reach the live messages."""
    monkeypatch.setattr(piece_reading, "PIECE_BYTES", MIB)
    feed, begun, begin, found = archived_feed(), list[str](), ArchiveDays.begin, list[int]()

    def note(days: ArchiveDays, name: str) -> Any:
        begun.append(name)
        return begin(days, name)

    def read() -> None:
        for each in ArchiveClient(feed, timeout=200).blocks(0, timeout=200):
            found.extend(all_numbers(iter([each])))

    monkeypatch.setattr(ArchiveDays, "begin", note)
    with Publisher(feed) as publisher:
        with Recorder(feed, tmp_path, segment_bytes=MIB, serve=True) as recorder:
            publish_parts(publisher, 0, 1_000)
            wait_recorded(recorder, 1_000)
            reader = threading.Thread(target=read)
            reader.start()
            # The first answers have blocks; the following ones are "ask later".
            wait_until(lambda: recorder.archive_statistics.answered >= 12)  # type: ignore[union-attr]
            count = publish_over_segments(publisher, recorder, 1_000)
            wait_until(lambda: len(found) == count)
        reader.join(200)
    assert found == list(range(count))
    assert len(begun) <= 2, f"{len(begun)} times in one reading"


def test_the_record_command_serves_its_recording(tmp_path: Path) -> None:
    feed = archived_feed()
    path = tmp_path / "feed.toml"
    path.write_text(
        f'name = "{feed.name}"\narchives = {list(feed.archives)}\n'
        f"[[slices]]\nendpoints = {list(feed.slices[0].endpoints)}\nshare = [0, 1]\n"
    )
    with (
        Publisher(feed) as publisher,
        Command("record", "--feed", path, "--out", tmp_path, "--serve", "--until-end") as recorder,
    ):
        publisher.wait_for_subscribers()
        publish_parts(publisher, 0, 2_000)
        asked = ArchiveClient(feed, timeout=200).blocks(0, start=(publisher.epoch, 0), stop=(publisher.epoch, 2_000))
        assert all_numbers(asked) == list(range(2_000))
        publisher.close()
        assert recorder.end().status == 0
