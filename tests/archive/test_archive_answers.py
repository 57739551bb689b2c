"""The archive that answers: what it gives is what a plain read of the recording gives."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from blackbox import Publisher, Recording
from blackbox.archive.recorder import Recorder
from blackbox.archive.serve import piece_reading
from blackbox.archive.serve.client import ArchiveClient
from blackbox.archive.serve.connection import Fetched
from blackbox.archive.serve.pieces import Pieces
from blackbox.archive.serve.protocol import AskBlocks, Gone, Piece, Range
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
from tests.examples import first_of
from tests.journals import Put, Row, Told


def told(piece: Piece, blocks: list[Any], prefix: bytes) -> list[Told]:
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
        if block.topics[block.topic_index[row]].startswith(prefix)
    ]


@few
@given(
    days(),
    st.sampled_from([b"", b"A", b"AXYZ.", b"B", b"AY.trade.of"]),
    st.sampled_from([1, 60, 400, 1 << 20]),
    st.booleans(),
)
def test_an_answer_is_what_a_plain_read_gives(day: Any, prefix: bytes, piece_bytes: int, by_time: bool) -> None:
    with TemporaryDirectory() as path, pytest.MonkeyPatch.context() as patch:
        patch.setattr(piece_reading, "PIECE_BYTES", piece_bytes)
        made(Path(path) / "day", day)
        recording = Recording.open(Path(path) / "day")
        archive = Pieces(Path(path))
        start_ns = 4 if by_time else None
        for slice_id in range(day[0]):
            ask = AskBlocks(slice_id=slice_id, prefix=prefix, start_ns=start_ns)
            found: list[Told] = []
            while True:
                read = archive.read(ask)
                assert read.piece.gone == []
                found += told(read.piece, read.blocks, prefix)
                ask = msgspec.structs.replace(ask, cursor=read.piece.cursor)
                if read.piece.state != "more":
                    break
            assert read.piece.state == "later"  # its recorder has not closed it
            wanted = recording.batches(prefix, slices=[slice_id], start=start_ns, by="ts_recv")
            assert found == [
                Told(slice_id, b.block.epoch, sequence, b.ts_out, b.ts_recv, m.topic, m.payload, m.ts_event)
                for b in wanted
                for m, sequence in zip(b, b.sequence.tolist(), strict=True)
            ]


Number = tuple[bytes, int, int]
"""Key, epoch and sequence number of a message."""


def fate(number: Number, puts: list[Any], key_bytes: int) -> str:
    """Whether a plain walk through a slice's blocks meets a message before one that comes after it."""
    key, *at = number
    for put in puts:
        if put.rows[0].topic[:key_bytes] == key:
            first, last = put.sequence + put.first_row, put.sequence + len(put.rows) - 1
            if [put.epoch, first] > at:
                return "gone"
            if [put.epoch, last] >= at:
                return "found"
    return "open"


def all_of(ranges: list[Range]) -> set[Number]:
    return {(each.key, each.epoch, number) for each in ranges for number in range(each.first, each.stop)}


@few
@given(
    days(),
    st.lists(
        st.tuples(
            st.sampled_from([b"A", b"AX", b"AXYZ.q", b"AY.trade.of.more", b"AY.quote.of.more"]),
            st.sampled_from(EPOCHS),
            st.integers(0, 12),
            st.integers(1, 9),
        ),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from([1, 60, 1 << 20]),
)
@example(
    (1, 2, [(0, False, [Put((Row(b"AX", b""),), sequence=2), Put((Row(b"A", b""),), sequence=5)])]),
    [(b"AX", 1, 0, 1), (b"AX", 1, 6, 1)],
    1,
)
def test_ranges_are_what_a_plain_walk_finds_of_each_message(day: Any, drawn: Any, piece_bytes: int) -> None:
    key_bytes, puts = day[1], [put for slice_id, _, segment in day[2] if slice_id == 0 for put in segment]
    ranges = [Range(key[:key_bytes], epoch, first, first + count) for key, epoch, first, count in drawn]
    with TemporaryDirectory() as path, pytest.MonkeyPatch.context() as patch:
        patch.setattr(piece_reading, "PIECE_BYTES", piece_bytes)
        made(Path(path) / "day", day)
        archive, ask = Pieces(Path(path)), AskBlocks(slice_id=0, ranges=ranges)
        blocks: list[Number] = []
        came: set[Number] = set()
        gone: set[Number] = set()
        while True:
            piece, found = archive.read(ask)
            for block, (_, first_row) in zip(found, piece.blocks, strict=True):
                blocks.append((block.key, block.epoch, block.sequence + first_row))
                came |= {(block.key, block.epoch, number) for number in block.sequences[first_row:].tolist()}
            gone |= all_of([Range(each.key, each.epoch, each.first, each.first + each.count) for _, each in piece.gone])
            if piece.state != "more":
                break
            ask = msgspec.structs.replace(ask, cursor=piece.cursor, ranges=piece.ranges)
        expected = {number: fate(number, puts, key_bytes) for number in all_of(ranges)}
        assert came & set(expected) == {number for number, what in expected.items() if what == "found"}
        assert gone == {number for number, what in expected.items() if what == "gone"}
        assert all_of(piece.ranges) == {number for number, what in expected.items() if what == "open"}
        assert (piece.state == "done") == (not piece.ranges)
        assert len(blocks) == len(set(blocks))


def test_many_ranges_are_one_request(tmp_path: Path) -> None:
    feed = archived_feed()
    epoch = recorded(tmp_path, feed, 50_000)
    ranges = [(b"", epoch, first, first + 20) for first in range(0, 50_000, 100)]
    with ArchiveServer(tmp_path / feed.name, feed.archives) as archive:
        found = [n for each in ArchiveClient(feed).ranges(0, ranges) for n in numbers(each)]  # type: ignore[arg-type]
        assert archive.statistics().answered < len(ranges) // 10
    assert len(found) == len(set(found))
    assert {n for n in range(50_000) if n % 100 < 20} <= set(found)


def test_an_index_is_looked_at_a_part_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a part holds nothing that is wanted: what stands behind it comes all the same."""
    feed = archived_feed()
    with Publisher(feed) as publisher, Recorder(feed, tmp_path, segment_bytes=MIB) as recorder:
        for count in range(2_000, 40_001, 2_000):  # blocks that come together have one time
            publish_parts(publisher, count - 2_000, count)
            wait_recorded(recorder, count)
    (day,) = days_of(tmp_path, feed)
    segment = Recording.open(day)._segments_of([0])[0][1][0]
    late_ns = int(segment.entries["max_ts_recv"][-2]) + 1
    assert len(segment.entries) > 4
    monkeypatch.setattr(piece_reading, "_ENTRIES", 2)
    with ArchiveServer(tmp_path / feed.name, feed.archives) as archive:
        assert all_numbers(ArchiveClient(feed).blocks(0)) == list(range(40_000))
        late = all_numbers(ArchiveClient(feed).blocks(0, start_ns=late_ns))
        assert 0 < len(late) < 40_000
        assert late == list(range(40_000 - len(late), 40_000))
        assert archive.statistics().refused == 0


def test_what_one_archive_lacks_is_asked_of_the_next_one(tmp_path: Path) -> None:
    feed = archived_feed(2)
    places = [tmp_path / "a", tmp_path / "b"]
    with Publisher(feed) as publisher, Recorder(feed, places[0], segment_bytes=MIB) as recorder:
        epoch, count = publisher.epoch, publish_over_segments(publisher, recorder, least=5)
    shutil.copytree(places[0], places[1])
    for place, lost in zip(places, ((1, 3), (2, 3)), strict=True):
        for number in lost:
            segments(place, feed)[number].write_bytes(b"")
    ranges = [(b"", epoch, first, first + 10) for first in range(0, count, 1_000)]
    with (
        ArchiveServer(places[0] / feed.name, feed.archives[:1]),
        ArchiveServer(places[1] / feed.name, feed.archives[1:]),
    ):
        found = list(ArchiveClient(feed).ranges(0, ranges))
        alone = [
            list(ArchiveClient(msgspec.structs.replace(feed, archives=(archive,))).ranges(0, ranges))
            for archive in feed.archives
        ]
    wanted = {n for _, _, first, stop in ranges for n in range(first, stop)}
    came = [{n for each in some if isinstance(each, Fetched) for n in numbers(each)} for some in (found, *alone)]
    assert came[0] & wanted == (came[1] | came[2]) & wanted
    gone = [each for each in found if isinstance(each, Gone)]
    assert {n for each in gone for n in range(each.first, each.first + each.count)} == wanted - came[0]
    assert all("000003" in each.why for each in gone)
    assert min(len(wanted - some) for some in came[1:]) > len(wanted - came[0]) > 0


@pytest.mark.parametrize("by", ["time", "position", "ranges"])
def test_days_before_what_is_asked_for_are_not_walked(tmp_path: Path, by: str) -> None:
    feed = archived_feed()
    epochs = []
    for day in range(1, 6):
        epochs.append(recorded(tmp_path, feed, 1_000))
        days_of(tmp_path, feed)[-1].rename(tmp_path / feed.name / f"2020-01-0{day}")
    archive = Pieces(tmp_path / feed.name)
    for place, epoch in enumerate(epochs):
        about = archive.about(f"2020-01-0{place + 1}").slices[0]
        ask = {
            "time": AskBlocks(slice_id=0, start_ns=about.first_ns),
            "position": AskBlocks(slice_id=0, key=b"", start=Position(epoch, 0)),
            "ranges": AskBlocks(slice_id=0, ranges=[Range(b"", epoch, 0, 1_000)]),
        }[by]
        piece, found = archive.read(ask)
        if place < 4:  # of the last two the first one may still be written
            assert found[0].epoch == epoch
        if by == "time":
            came = [block.epoch for block in found]
            while piece.state == "more":
                piece, found = archive.read(msgspec.structs.replace(ask, cursor=piece.cursor))
                came += [block.epoch for block in found]
            assert came == [each for each in epochs[place:] for _ in range(2)]


def test_days_and_epochs_follow_each_other(tmp_path: Path) -> None:
    feed = archived_feed()
    epochs = [recorded(tmp_path, feed, 1_000) for _ in range(2)]
    with ArchiveServer(tmp_path / feed.name, feed.archives):
        client = ArchiveClient(feed)
        assert all_numbers(client.blocks(0)) == 2 * list(range(1_000))
        assert all_numbers(client.blocks(0, key=b"", start=(epochs[0], 900))) == [*range(900, 1_000), *range(1_000)]
        about = client.about()
        assert (about.feed, about.live_epoch, about.slices[0].epochs) == (feed.name, None, epochs)
        assert (about.slices[0].messages, about.slices[0].last_sequences) == (2_000, [999, 999])
        assert about.days == [about.day]
        assert about.slices[0].is_closed


def test_a_range_of_times_is_given(tmp_path: Path) -> None:
    feed = archived_feed()
    recorded(tmp_path, feed, 5_000)
    with ArchiveServer(tmp_path / feed.name, feed.archives):
        client = ArchiveClient(feed)
        every = [each for each in client.blocks(0) if isinstance(each, Fetched)]
        low, high = every[3].ts_recv, every[7].ts_recv
        expected = [n for each in every if low <= each.ts_recv < high for n in numbers(each)]
        assert all_numbers(client.blocks(0, start_ns=low, stop_ns=high)) == expected


@pytest.mark.parametrize("by_key", first_of([True, False]))
def test_an_archive_that_is_killed_in_an_answer_is_followed_by_the_next_one(tmp_path: Path, by_key: bool) -> None:
    feed = archived_feed(2)
    epoch = recorded(tmp_path, feed, 120_000)
    path = tmp_path / "feed.toml"
    path.write_text(f'name = "{feed.name}"\n[[slices]]\nendpoints = {list(feed.slices[0].endpoints)}\nshare = [0, 1]\n')
    with (
        Command("serve", tmp_path, "--feed", path, "--endpoint", feed.archives[0]) as first,
        ArchiveServer(tmp_path / feed.name, feed.archives[1:]) as second,
    ):
        first.read_error("serving")
        next(ArchiveClient(feed, timeout=90.0).blocks(0))  # it has loaded what it reads with
        client = ArchiveClient(feed, timeout=3.0)
        asked = client.blocks(0, key=b"", start=(epoch, 0)) if by_key else client.blocks(0)
        found = numbers(next(asked))  # type: ignore[arg-type]
        assert second.statistics().answered == 0
        first.process.kill()
        assert found + all_numbers(asked) == list(range(120_000))
        assert second.statistics().answered > 1


def test_an_answer_goes_over_two_days(tmp_path: Path) -> None:
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
        asked = client.blocks(0, key=b"", start=(first, 900), stop=(second, 100))
        assert all_numbers(asked) == [*range(900, 1_000), *range(100)]
