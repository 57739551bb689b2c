"""Answers of an archive equal a plain read of the recording."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox import Publisher, Recording
from blackbox.archive.recorder import Recorder
from blackbox.archive.serve import piece_reading, pieces
from blackbox.archive.serve.client import ArchiveClient
from blackbox.archive.serve.connection import Fetched
from blackbox.archive.serve.pieces import Pieces
from blackbox.archive.serve.protocol import BEGINNING_NS, AskBlocks, Gone, Piece
from blackbox.archive.serve.server import ArchiveServer
from blackbox.block.position import Position
from tests.archive.archives import (
    all_numbers,
    archived_feed,
    numbers,
    publish_over_segments,
    publish_parts,
    recorded,
)
from tests.archive.recorders import MIB, segments, wait_recorded
from tests.archive.recorders import days as days_of
from tests.archive.written_days import EPOCHS, days, few, made
from tests.cli.commands import Command
from tests.journals import Put, Told


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
    day: Any,
    prefixes: tuple[bytes, ...],
    piece_bytes: int,
    entries: int,
    start_ns: int,
    start: Position | None,
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
            while True:
                read = archive.read(ask)
                found += told(read.piece, read.blocks, prefixes)
                gone += [(each.epoch, each.first, each.stop) for _, each in read.piece.gone]
                ended += [read.piece.ended.epoch] if read.piece.ended else []
                ask = msgspec.structs.replace(ask, cursor=read.piece.cursor, start=read.piece.passed)
                if read.piece.state != "more":
                    break
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
        publisher.wait_for_subscribers(timeout=60)
        found = Pieces(tmp_path / feed.name).position_at(0, BEGINNING_NS)
        assert found.is_end
        assert found.position in (Position(0, 0), Position(publisher.epoch, 0))


def test_an_index_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks after a part without wanted messages are returned too."""
    feed = archived_feed()
    with Publisher(feed) as publisher, Recorder(feed, tmp_path, segment_bytes=MIB) as recorder:
        for count in range(2_000, 40_001, 2_000):  # blocks received together have the same time
            publish_parts(publisher, count - 2_000, count)
            wait_recorded(recorder, count)
    (day,) = days_of(tmp_path, feed)
    entries = Recording.open(day)._segments_of([0])[0][1][0].entries
    entries = entries[entries["records"] > 0]
    late_ns = int(entries["max_ts_recv"][-2]) + 1
    assert len(entries) > 4
    monkeypatch.setattr(piece_reading, "_ENTRIES", 2)
    with ArchiveServer(tmp_path / feed.name, feed.archives) as archive:
        assert all_numbers(ArchiveClient(feed).blocks(0)) == list(range(40_000))
        late = all_numbers(ArchiveClient(feed).blocks(0, start_ns=late_ns))
        assert 0 < len(late) < 40_000
        assert late == list(range(40_000 - len(late), 40_000))
        assert archive.statistics().refused == 0


@pytest.mark.parametrize("key_bytes", [0, 2])
def test_messages_that_one_archive_lacks_come_from_the_next_one(tmp_path: Path, key_bytes: int) -> None:
    feed = archived_feed(2, key_bytes=key_bytes)
    places = [tmp_path / "a", tmp_path / "b"]
    with Publisher(feed) as publisher, Recorder(feed, places[0], segment_bytes=MIB) as recorder:
        epoch, count = publisher.epoch, publish_over_segments(publisher, recorder, least=5)
    shutil.copytree(places[0], places[1])
    for place, lost in zip(places, ((1, 3), (2, 3)), strict=True):
        for number in lost:
            segments(place, feed)[number].write_bytes(b"")
    with (
        ArchiveServer(places[0] / feed.name, feed.archives[:1]),
        ArchiveServer(places[1] / feed.name, feed.archives[1:]),
    ):
        found = list(ArchiveClient(feed).blocks(0, start=(epoch, 0)))
        alone = [
            list(ArchiveClient(msgspec.structs.replace(feed, archives=(archive,))).blocks(0, start=(epoch, 0)))
            for archive in feed.archives
        ]
    came = [[n for each in some if isinstance(each, Fetched) for n in numbers(each)] for some in (found, *alone)]
    assert came[0] == sorted({*came[1], *came[2]})
    (gone,) = [each for each in found if isinstance(each, Gone)]
    assert set(range(gone.first, gone.stop)) == set(range(count)) - set(came[0])
    assert "000003" in gone.why
    assert max(map(len, came[1:])) < len(came[0]) < count


@pytest.mark.parametrize("by", ["time", "position"])
def test_days_before_the_requested_range_are_not_read(tmp_path: Path, by: str) -> None:
    feed = archived_feed()
    epochs = []
    for day in range(1, 6):
        epochs.append(recorded(tmp_path, feed, 1_000))
        days_of(tmp_path, feed)[-1].rename(tmp_path / feed.name / f"2020-01-0{day}")
    archive = Pieces(tmp_path / feed.name)
    for place, epoch in enumerate(epochs):
        about = archive.about(f"2020-01-0{place + 1}").slices[0]
        start = archive.position_at(0, about.first_ns).position if by == "time" else Position(epoch, 0)
        assert start is not None
        ask, came = AskBlocks(slice_id=0, start=start), list[int]()
        piece, found = archive.read(ask)
        if place < 4:  # the last but one may still be written
            assert found[0].epoch == epoch
        came += [block.epoch for block in found]
        while piece.state == "more":
            piece, found = archive.read(msgspec.structs.replace(ask, cursor=piece.cursor, start=piece.passed))
            came += [block.epoch for block in found]
        assert came == [each for each in epochs[place:] for _ in range(2)]


def test_days_and_epochs_follow_each_other(tmp_path: Path) -> None:
    feed = archived_feed()
    epochs = [recorded(tmp_path, feed, 1_000) for _ in range(2)]
    with ArchiveServer(tmp_path / feed.name, feed.archives):
        client = ArchiveClient(feed)
        assert all_numbers(client.blocks(0)) == 2 * list(range(1_000))
        assert all_numbers(client.blocks(0, start=(epochs[0], 900))) == [*range(900, 1_000), *range(1_000)]
        about = client.about()
        assert (about.feed, about.live_epoch, about.slices[0].epochs) == (feed.name, None, epochs)
        assert (about.slices[0].messages, about.slices[0].last_sequences) == (2_000, [999, 999])
        assert about.days == [about.day]
        assert about.slices[0].is_closed


def test_a_time_range_is_returned(tmp_path: Path) -> None:
    feed = archived_feed()
    recorded(tmp_path, feed, 5_000)
    with ArchiveServer(tmp_path / feed.name, feed.archives):
        client = ArchiveClient(feed)
        every = [each for each in client.blocks(0) if isinstance(each, Fetched)]
        low, high = every[3].ts_recv, every[7].ts_recv
        expected = [n for each in every if low <= each.ts_recv < high for n in numbers(each)]
        assert all_numbers(client.blocks(0, start_ns=low, stop_ns=high)) == expected


def test_the_next_archive_continues_an_answer_of_a_killed_one(tmp_path: Path) -> None:
    feed = archived_feed(2)
    epoch = recorded(tmp_path, feed, 120_000)
    path = tmp_path / "feed.toml"
    path.write_text(f'name = "{feed.name}"\n[[slices]]\nendpoints = {list(feed.slices[0].endpoints)}\nshare = [0, 1]\n')
    with (
        Command("serve", tmp_path, "--feed", path, "--endpoint", feed.archives[0]) as first,
        ArchiveServer(tmp_path / feed.name, feed.archives[1:]) as second,
    ):
        first.read_error("serving")
        next(ArchiveClient(feed, timeout=90.0).blocks(0, start=(epoch, 0)))  # its modules are loaded
        client = ArchiveClient(feed, timeout=3.0)
        asked = client.blocks(0, start=(epoch, 0))
        found = numbers(next(asked))  # type: ignore[arg-type]
        assert second.statistics().answered == 0
        first.process.kill()
        assert found + all_numbers(asked) == list(range(120_000))
        assert second.statistics().answered > 1


def test_an_answer_spans_two_days(tmp_path: Path) -> None:
    feed = archived_feed()
    first = recorded(tmp_path, feed, 1_000)
    (day,) = days_of(tmp_path, feed)
    day.rename(day.with_name("2020-01-02"))
    second = recorded(tmp_path, feed, 700)
    with ArchiveServer(tmp_path / feed.name, feed.archives):
        client = ArchiveClient(feed)
        about = client.about()
        assert len(about.days) == 2
        assert all_numbers(client.blocks(0)) == [*range(1_000), *range(700)]
        asked = client.blocks(0, start=(first, 900), stop=(second, 100))
        assert all_numbers(asked) == [*range(900, 1_000), *range(100)]
