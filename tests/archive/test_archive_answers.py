"""The archive that answers: what it gives is what a plain read of the recording gives."""

from __future__ import annotations

import os
import shutil
import socket as sockets
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy
import pytest
import zmq
from hypothesis import example, given
from hypothesis import strategies as st

from blackbox import ArchiveClient, ArchiveError, ConfigError, EndpointError, Feed, Publisher, Recording
from blackbox.archive.recorder import Recorder
from blackbox.archive.serve import pieces as pieces_module
from blackbox.archive.serve.client import Fetched
from blackbox.archive.serve.pieces import Pieces
from blackbox.archive.serve.protocol import ANSWERS, ENCODER, AskAbout, AskBlocks, Gone, Piece, Range, Refusal
from blackbox.archive.serve.server import ArchiveServer
from blackbox.block.position import Position
from blackbox.testing import wait_until
from tests.archive.recorders import MIB, ROW_BYTES, feed_of, publish_numbered, segments, wait_recorded
from tests.archive.recorders import days as days_of
from tests.archive.written_days import EPOCHS, days, few, made
from tests.cli.commands import Command
from tests.journals import Put, Row, Told

PART = 500


def free_endpoint() -> str:
    with sockets.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{free.getsockname()[1]}"


def archived_feed(archives: int = 1, **settings: Any) -> Feed:
    return feed_of(archives=tuple(free_endpoint() for _ in range(archives)), **settings)


def numbers(found: Fetched) -> list[int]:
    """The numbers that `numbered` gave the messages that were asked for."""
    rows = found.block.payloads[: found.block.count * ROW_BYTES].reshape(-1, ROW_BYTES)
    wanted: list[int] = rows[found.first_row : found.stop_row, :8].copy().view(numpy.int64)[:, 0].tolist()
    return wanted


def all_numbers(found: Iterator[Fetched | Gone]) -> list[int]:
    wanted: list[int] = []
    for each in found:
        assert isinstance(each, Fetched), each
        wanted += numbers(each)
    return wanted


def publish_parts(publisher: Publisher, first: int, stop: int) -> None:
    for start in range(first, stop, PART):
        publish_numbered(publisher, start, min(PART, stop - start))
        publisher.flush()


def publish_over_segments(publisher: Publisher, recorder: Recorder, least: int = 3) -> int:
    """Publish until there are so many segments; return how many messages that were."""
    count = 0
    while recorder.statistics().segments < least or count == 0:
        publish_parts(publisher, count, count + 10_000)
        count += 10_000
        wait_recorded(recorder, count)
        assert count < 10_000_000
    return count


def recorded(tmp_path: Path, feed: Feed, count: int, **settings: Any) -> int:
    """Record so many messages of slice 0 in segments of 1 MiB; return their epoch."""
    with Publisher(feed) as publisher, Recorder(feed, tmp_path, segment_bytes=MIB, **settings) as recorder:
        publish_parts(publisher, 0, count)
        wait_recorded(recorder, count)
        return publisher.epoch


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
        patch.setattr(pieces_module, "PIECE_BYTES", piece_bytes)
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
        patch.setattr(pieces_module, "PIECE_BYTES", piece_bytes)
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


def test_a_range_that_is_not_recorded_yet_is_waited_for(tmp_path: Path) -> None:
    feed = archived_feed()
    with Publisher(feed) as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        publish_parts(publisher, 0, 1_000)
        wait_recorded(recorder, 1_000)
        asked = ArchiveClient(feed).ranges(0, [(b"", publisher.epoch, 10, 20), (b"", publisher.epoch, 1_200, 1_210)])
        found = numbers(next(asked))  # type: ignore[arg-type]
        publish_parts(publisher, 1_000, 2_000)
        found += all_numbers(asked)
    assert found == [*range(10, 20), *range(1_200, 1_210)]


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


def test_a_recorder_that_is_never_idle_leaves_its_readers_their_answers(tmp_path: Path) -> None:
    feed = archived_feed()
    recorded(tmp_path, feed, 30_000)
    with ArchiveServer(tmp_path / feed.name, feed.archives, lambda: True):
        assert all_numbers(ArchiveClient(feed).blocks(0)) == list(range(30_000))


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_reader_beside_the_recorder_misses_nothing_over_segments(tmp_path: Path, compression: Any) -> None:
    feed = archived_feed()
    found: list[int] = []
    last = [1 << 62]
    with (
        Publisher(feed) as publisher,
        Recorder(feed, tmp_path, segment_bytes=MIB, serve=True, compression=compression) as recorder,
    ):
        asked = ArchiveClient(feed).blocks(0, key=b"", start=(publisher.epoch, 0), timeout=60)

        def read() -> None:
            while not found or found[-1] < last[0]:
                found.extend(all_numbers(iter([next(asked)])))

        reader = threading.Thread(target=read)
        reader.start()
        count = publish_over_segments(publisher, recorder, least=1 if compression == "zstd" else 3)
        last[0] = count + PART - 1
        publish_parts(publisher, count, count + PART)
        reader.join(60)
        assert recorder.statistics().lost == 0
        assert recorder.archive_statistics is not None
        assert recorder.archive_statistics.answered > 1
    assert found == list(range(count + PART))


def test_what_is_not_recorded_yet_is_waited_for(tmp_path: Path) -> None:
    feed = archived_feed()
    with Publisher(feed) as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        publish_parts(publisher, 0, 1_000)
        wait_recorded(recorder, 1_000)
        asked = ArchiveClient(feed).blocks(0, key=b"", start=(publisher.epoch, 750), stop=(publisher.epoch, 1_250))
        first = next(asked)
        assert isinstance(first, Fetched)
        publish_parts(publisher, 1_000, 2_000)
        assert numbers(first) + all_numbers(asked) == list(range(750, 1_250))
        beyond = ArchiveClient(feed).blocks(
            0, key=b"", start=(publisher.epoch, 1_999), stop=(publisher.epoch, 9_999), timeout=0.1
        )
        assert numbers(next(beyond)) == [1_999]  # type: ignore[arg-type]
        with pytest.raises(ArchiveError, match=r"nothing more was recorded within 0\.1 s"):
            next(beyond)


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


@pytest.mark.parametrize("by_key", [True, False])
def test_an_archive_that_is_killed_in_an_answer_is_followed_by_the_next_one(tmp_path: Path, by_key: bool) -> None:
    feed = archived_feed(2)
    epoch = recorded(tmp_path, feed, 30_000)
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
        assert found + all_numbers(asked) == list(range(30_000))
        assert second.statistics().answered > 1


def test_a_missing_segment_is_told_as_gone_with_its_numbers(tmp_path: Path) -> None:
    feed = archived_feed()
    with Publisher(feed) as publisher, Recorder(feed, tmp_path, segment_bytes=MIB) as recorder:
        epoch, count = publisher.epoch, publish_over_segments(publisher, recorder)
    lost = segments(tmp_path, feed)[1]
    lost.unlink()
    with ArchiveServer(tmp_path / feed.name, feed.archives):
        found = list(ArchiveClient(feed).blocks(0, key=b"", start=(epoch, 0), stop=(epoch, count)))
    (gone,) = [each for each in found if isinstance(each, Gone)]
    came = [n for each in found if isinstance(each, Fetched) for n in numbers(each)]
    assert came == [n for n in range(count) if not gone.first <= n < gone.first + gone.count]
    assert gone.epoch == epoch
    assert gone.count > 0
    assert lost.name in gone.why


def test_a_damaged_record_is_told_as_gone_with_its_numbers(tmp_path: Path) -> None:
    feed = archived_feed()
    epoch = recorded(tmp_path, feed, 10_000)
    path = segments(tmp_path, feed)[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with ArchiveServer(tmp_path / feed.name, feed.archives):
        found = list(ArchiveClient(feed).blocks(0, key=b"", start=(epoch, 0), stop=(epoch, 10_000)))
    (gone,) = [each for each in found if isinstance(each, Gone)]
    came = [n for each in found if isinstance(each, Fetched) for n in numbers(each)]
    assert came == [n for n in range(10_000) if not gone.first <= n < gone.first + gone.count]
    assert (gone.epoch, gone.count > 0, path.name in gone.why) == (epoch, True, True)


def test_each_damaged_place_is_told(tmp_path: Path) -> None:
    feed = archived_feed()
    recorded(tmp_path, feed, 10_000)
    path = segments(tmp_path, feed)[0]
    data = bytearray(path.read_bytes())
    for part in (1, 2):
        data[part * len(data) // 3] ^= 0xFF
    path.write_bytes(data)
    with ArchiveServer(tmp_path / feed.name, feed.archives):
        found = list(ArchiveClient(feed).blocks(0))
    gone = [each for each in found if isinstance(each, Gone)]
    assert [(each.epoch, each.first) for each in gone] == 2 * [(0, -1)]
    came = [n for each in found if isinstance(each, Fetched) for n in numbers(each)]
    assert len(came) + sum(each.count for each in gone) == 10_000


def test_damage_is_told_once_and_in_its_place_to_who_reads_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = archived_feed()
    recorded(tmp_path, feed, 10_000)
    path = segments(tmp_path, feed)[0]
    data = bytearray(path.read_bytes())
    for part in (1, 2):
        data[part * len(data) // 3] ^= 0xFF
    path.write_bytes(data)
    for blocks in (1, 3, 1_000):
        monkeypatch.setattr(pieces_module, "PIECE_BLOCKS", blocks)
        archive, cursor, state = Pieces(tmp_path / feed.name), None, "more"
        told: list[int | None] = []
        while state == "more":
            piece, found = archive.read(AskBlocks(slice_id=0, cursor=cursor))
            gone = dict(piece.gone)
            for place in range(len(found) + 1):
                told += [None] * (place in gone)
                told += [int(found[place].sequences[0])] if place < len(found) else []
            cursor, state = piece.cursor, piece.state
        assert told.count(None) == 2
        places = [place for place, number in enumerate(told) if number is None]
        before_and_after = [(told[place - 1], told[place + 1]) for place in places]
        assert all(a is not None and b is not None and b - a > PART for a, b in before_and_after), before_and_after


def test_a_reader_that_waits_hears_of_the_recorders_end(tmp_path: Path) -> None:
    feed = archived_feed()
    found: list[int] = []
    with Publisher(feed) as publisher:
        with Recorder(feed, tmp_path, serve=True) as recorder:
            publish_parts(publisher, 0, 1_000)
            wait_recorded(recorder, 1_000)
            reader = threading.Thread(target=lambda: found.extend(all_numbers(ArchiveClient(feed).blocks(0))))
            reader.start()
            # The first answers have blocks; what comes behind them is "ask later".
            wait_until(lambda: recorder.archive_statistics.answered >= 5)  # type: ignore[union-attr]
        reader.join(10)
    assert found == list(range(1_000))


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


def test_record_serves_what_it_records(tmp_path: Path) -> None:
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
        publisher.wait_for_subscribers(timeout=60)
        publish_parts(publisher, 0, 2_000)
        asked = ArchiveClient(feed, timeout=60).blocks(
            0, key=b"", start=(publisher.epoch, 0), stop=(publisher.epoch, 2_000)
        )
        assert all_numbers(asked) == list(range(2_000))
        publisher.close()
        assert recorder.end().status == 0


def test_a_refusal_does_not_say_where_the_files_are(tmp_path: Path) -> None:
    feed = archived_feed()
    with (
        ArchiveServer(tmp_path / feed.name, feed.archives),
        pytest.raises(ArchiveError, match="tape had no recorded day") as refused,
    ):
        ArchiveClient(feed).about()
    assert str(tmp_path) not in str(refused.value)


def test_a_segment_of_which_nothing_is_left_is_gone(tmp_path: Path) -> None:
    feed = archived_feed()
    with Publisher(feed) as publisher, Recorder(feed, tmp_path, segment_bytes=MIB) as recorder:
        epoch, count = publisher.epoch, publish_over_segments(publisher, recorder)
    lost = segments(tmp_path, feed)[1]
    lost.write_bytes(b"")
    with ArchiveServer(tmp_path / feed.name, feed.archives):
        found = list(ArchiveClient(feed).blocks(0, key=b"", start=(epoch, 0), stop=(epoch, count)))
    (gone,) = [each for each in found if isinstance(each, Gone)]
    came = [n for each in found if isinstance(each, Fetched) for n in numbers(each)]
    assert came == [n for n in range(count) if not gone.first <= n < gone.first + gone.count]
    assert lost.name in gone.why


def test_a_recorder_that_heard_nobody_is_waited_for(tmp_path: Path) -> None:
    feed = archived_feed()
    with (
        Publisher(feed),
        Recorder(feed, tmp_path, serve=True),
        pytest.raises(ArchiveError, match=r"nothing more was recorded within 0\.1 s, and no end"),
    ):
        next(ArchiveClient(feed).blocks(0, timeout=0.1))


def test_a_path_that_is_not_utf_8_is_named_in_a_refusal(tmp_path: Path) -> None:
    feed = archived_feed()
    directory = Path(os.fsdecode(bytes(tmp_path) + b"/caf\xe9"))
    with (
        ArchiveServer(directory, feed.archives),
        pytest.raises(ArchiveError, match=r"caf\\udce9 had no recorded day"),
    ):
        ArchiveClient(feed).about()


def test_what_was_never_recorded_is_told_as_gone_at_the_end(tmp_path: Path) -> None:
    feed = archived_feed()
    epoch = recorded(tmp_path, feed, 1_000)
    with ArchiveServer(tmp_path / feed.name, feed.archives):
        found = list(ArchiveClient(feed).blocks(0, key=b"", start=(epoch, 999), stop=(epoch, 1_005)))
    assert found[1:] == [Gone(epoch, 1_000, 5, "not recorded")]


def test_a_reader_that_asks_and_does_not_read_holds_up_nobody(tmp_path: Path) -> None:
    feed = archived_feed()
    with Publisher(feed) as publisher, Recorder(feed, tmp_path, segment_bytes=MIB, serve=True) as recorder:
        publish_parts(publisher, 0, 30_000)
        wait_recorded(recorder, 30_000)
        with zmq.Context() as context, context.socket(zmq.DEALER) as hung:
            hung.setsockopt(zmq.RCVHWM, 1)
            hung.setsockopt(zmq.RCVBUF, 4_096)
            hung.linger = 0
            hung.connect(feed.archives[0])
            request = ENCODER.encode(AskBlocks(slice_id=0))
            for _ in range(1_000):
                hung.send_multipart([b"", request])
            publish_parts(publisher, 30_000, 40_000)
            asked = ArchiveClient(feed).blocks(0, key=b"", start=(publisher.epoch, 0), stop=(publisher.epoch, 40_000))
            assert all_numbers(asked) == list(range(40_000))
            wait_until(lambda: recorder.archive_statistics.dropped >= 100, 60, "answers were dropped")  # type: ignore[union-attr]
        assert recorder.statistics().lost == 0


def test_requests_that_are_none_are_refused_or_dropped(tmp_path: Path) -> None:
    feed = archived_feed()
    recorded(tmp_path, feed, 100)
    good = ENCODER.encode(AskBlocks(slice_id=0))
    random = numpy.random.default_rng(7)
    with (
        ArchiveServer(tmp_path / feed.name, feed.archives) as archive,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as reader,
    ):
        reader.linger = 0
        reader.connect(feed.archives[0])
        for number in range(300):
            text = bytearray(good if number % 2 else random.bytes(int(random.integers(0, 40))))
            for place in random.integers(0, max(1, len(text)), 2):
                text[place : place + 1] = random.bytes(1)
            reader.send_multipart([b"%d" % number, bytes(text)])
            assert reader.poll(10_000), bytes(text)
            answer, *_ = frames = reader.recv_multipart()
            assert answer == b"%d" % number
            assert isinstance(ANSWERS.decode(frames[1]), Refusal | Piece)
        for frames in ([b""], [b"", b"", b""], [os.urandom(10)]):
            reader.send_multipart(frames)
        wait_until(lambda: archive.statistics().dropped == 3, 10, "requests were dropped")
        assert archive.statistics().refused > 100
        assert all_numbers(ArchiveClient(feed).blocks(0)) == list(range(100))


@pytest.mark.parametrize("place", [(0, 65), (0, 1 << 62), (999_999, 64), (0, 0)])
def test_a_cursor_of_nowhere_does_no_harm(tmp_path: Path, place: tuple[int, int]) -> None:
    feed = archived_feed()
    recorded(tmp_path, feed, 100)
    archive = Pieces(tmp_path / feed.name)
    cursor = archive.read(AskBlocks(slice_id=0)).piece.cursor
    wrong = msgspec.structs.replace(cursor, segment=place[0], offset=place[1])
    assert archive.read(AskBlocks(slice_id=0, cursor=wrong)).piece.state in ("more", "later", "done")


def test_what_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    feed = archived_feed()
    recorded(tmp_path, feed, 10)
    wide = msgspec.structs.replace(feed, slices=feed_of(slices=2).slices)
    other = msgspec.structs.replace(feed, name="other")
    with ArchiveServer(tmp_path / feed.name, feed.archives):
        with pytest.raises(ArchiveError, match="slice was 1, expected 0 to 0"):
            next(ArchiveClient(wide).blocks(1))
        with pytest.raises(ArchiveError, match="day was '../x', expected one of"):
            ArchiveClient(feed).about("../x")
        with pytest.raises(ArchiveError, match="archive was of feed 'tape', key_bytes 0, expected feed 'other'"):
            next(ArchiveClient(other).blocks(0))
        with pytest.raises(EndpointError, match="is in use"):
            ArchiveServer(tmp_path, feed.archives).open()
    with pytest.raises(ArchiveError, match=r"no archive of feed 'tape' answered: .* did not answer within 0\.1 s"):
        ArchiveClient(feed, timeout=0.1).about()


def test_settings_that_cannot_be_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"archive was 'inproc://x', expected tcp:// or ipc://"):
        feed_of(archives=("inproc://x",))
    with pytest.raises(ConfigError, match="was named twice"):
        feed_of(archives=("tcp://127.0.0.1:1", "tcp://127.0.0.1:1"))
    with pytest.raises(ConfigError, match="had no archives"):
        Recorder(feed_of(), tmp_path, serve=True)
    with pytest.raises(ConfigError, match="had no archives"):
        ArchiveClient(feed_of())
    with pytest.raises(ConfigError, match="a position without a key"):
        ArchiveClient(archived_feed()).blocks(0, start=(1, 1))
    with pytest.raises(ArchiveError, match="a position without a key"):
        Pieces(tmp_path).read(AskBlocks(slice_id=0, start=Position(1, 1)))
    with pytest.raises(ArchiveError, match="ranges came with another choice"):
        Pieces(tmp_path).read(AskBlocks(slice_id=0, prefix=b"A", ranges=[Range(b"", 1, 0, 1)]))
    with pytest.raises(ArchiveError, match="range was 5 to 5"):
        Pieces(tmp_path).read(AskBlocks(slice_id=0, ranges=[Range(b"", 1, 5, 5)]))
    with pytest.raises(ArchiveError, match="had no recorded day"):
        Pieces(tmp_path).about(AskAbout().day)
