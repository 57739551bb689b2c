"""Merging the small blocks of a recording: the same messages before and after, in fewer blocks."""

from __future__ import annotations

import ctypes
import time
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox import Recording
from blackbox.archive.files.format import MarkKind
from blackbox.archive.maintain import merge_blocks
from blackbox.archive.maintain.compact import Compacted, compact
from blackbox.archive.read.digest import Digest
from blackbox.block.form.format import FLAG_END
from blackbox.errors import JournalError
from tests.archive.written_days import days, made, told
from tests.archive.written_journals import Journal, block
from tests.damaged import damage_body
from tests.examples import examples
from tests.journals import Day, Put, Row, Told, feed_of

Blocks = dict[tuple[int, int, bytes], list[tuple[int, int, list[Told]]]]


def told_of(messages: list[Told]) -> list[Told]:
    """Return messages without the times of their blocks, which merging changes."""
    return [message._replace(ts_out=0, ts_recv=0) for message in messages]


def blocks_of(day: Day, key_bytes: int) -> Blocks:
    """Return the expected `ts_out`, `ts_recv` and messages of each block, by slice, epoch and key."""
    found: Blocks = defaultdict(list)
    last: dict[int, tuple[int, int, bytes]] = {}
    for segment in day.segments:
        for put in segment.puts:
            messages = told_of(put.told(segment.slice_id))
            name = segment.slice_id, put.epoch, put.rows[0].topic[:key_bytes]
            blocks = found[name]
            if last.get(segment.slice_id) != name or blocks[-1][2][-1].sequence + 1 != messages[0].sequence:
                blocks.append((put.ts_out, put.ts_recv, []))
            blocks[-1][2].extend(messages)
            last[segment.slice_id] = name
    return found


def read(recording: Recording) -> Blocks:
    found: Blocks = defaultdict(list)
    for batch in recording.batches():
        assert batch.rows is None, "rows recorded before are left out"
        block = batch.block
        messages = told_of(told(iter([batch])))
        found[block.slice_id, block.epoch, block.key].append((batch.ts_out, batch.ts_recv, messages))
    return found


@given(day=days(), compression=st.sampled_from(["none", "lz4", "zstd"]))
@settings(max_examples=examples(60))
def test_compacting_keeps_all_messages(day: Any, compression: Any) -> None:
    with TemporaryDirectory() as directory:
        written = made(Path(directory) / "day", day)
        before = {file: file.read_bytes() for file in written.path.rglob("*.*")}
        recording = Recording.open(written.path)
        out = Path(directory) / "out"
        done = compact(recording, out, compression=compression)
        again = Recording.open(out)
        expected = blocks_of(written, day[1])
        assert read(again) == expected
        assert sorted(again.gaps()) == sorted(recording.gaps())
        assert again.verify() == []
        assert done == Compacted(
            messages=len(written.told()),
            blocks_before=sum(len(segment.puts) for segment in written.segments),
            blocks_after=sum(map(len, expected.values())),
            file_bytes_before=done.file_bytes_before,
            file_bytes_after=sum(file.stat().st_size for file in out.glob("slice-*/*")),
            left_out=0,
        )
        assert {file: file.read_bytes() for file in written.path.rglob("*.*")} == before
        # The index equals one rebuilt from the records.
        entries = [segment.entries for stream in again.segments.streams(b"") for segment in stream]
        for index in out.glob("slice-*/*.index"):
            index.unlink()
        found = [segment.entries for stream in Recording.open(out).segments.streams(b"") for segment in stream]
        assert all((a == b).all() for a, b in zip(entries, found, strict=True))


def day_of(path: Path, blocks: int, rows: int = 10, apart_ns: int = 1_000) -> Day:
    day, puts = Day(path, feed_of()), []
    for number in range(blocks):
        first = number * rows
        made = tuple(Row(b"A.%d" % (i % 3), b"%09d" % (first + i), 5 + number) for i in range(rows))
        puts.append(Put(made, sequence=first, ts_out=1 + number * apart_ns))
    day.put(0, *puts)
    return day


def test_sizes_of_merged_blocks_and_segments_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blackbox.archive.maintain.slice_rewriter.SEGMENT_BYTES", 16 << 10)
    recording = Recording.open(day_of(tmp_path / "day", 400).path)
    compact(recording, tmp_path / "out", block_bytes=4 << 10)
    again = Recording.open(tmp_path / "out")
    sizes = [batch.block.body.nbytes for batch in again.batches()]
    assert max(sizes) <= 4 << 10
    assert min(sizes[:-1]) > 2 << 10
    segments = sorted((tmp_path / "out" / "slice-00000").glob("*.journal"))
    assert len(segments) > 3
    assert max(path.stat().st_size for path in segments) < 24 << 10
    assert again.counts() == recording.counts()


def test_a_merged_block_spans_at_most_a_second(tmp_path: Path) -> None:
    day = day_of(tmp_path / "day", 40, apart_ns=100_000_000)
    done = compact(Recording.open(day.path), tmp_path / "out")
    assert (done.blocks_before, done.blocks_after) == (40, 4)


def test_alternating_keys_keep_order_and_sequences(tmp_path: Path) -> None:
    day = Day(tmp_path / "day", feed_of(key_bytes=1))
    ends: dict[bytes, int] = {}
    counts: dict[bytes, int] = {}
    for number, key in enumerate([b"A", b"A", b"B", b"A", b"A", b"A", b"B"]):
        row = Row(key + b".x", b"%d" % number)
        put = Put((row, row), sequence=2 * number, previous=ends.get(key, 0), key_sequence=counts.get(key, 0))
        day.put(0, put)
        ends[key], counts[key] = 2 * number + 2, counts.get(key, 0) + 2
    compact(Recording.open(day.path), tmp_path / "out")
    blocks = [batch.block for batch in Recording.open(tmp_path / "out").batches()]
    assert [(block.key, block.count, block.sequence, block.previous, block.key_sequence) for block in blocks] == [
        (b"A", 4, 0, 0, 0),
        (b"B", 2, 4, 0, 0),
        (b"A", 6, 6, 4, 4),
        (b"B", 2, 12, 6, 2),
    ]


@pytest.mark.parametrize("is_past", [False, True])
def test_marks_stay_before_the_same_blocks(tmp_path: Path, is_past: bool) -> None:
    """Also if the blocks are older than the marks, as in an imported day."""
    now = 0 if is_past else time.time_ns()
    with Journal(tmp_path / "day") as journal:
        for epoch in (1, 2):
            journal.put(block(0, 2, now + epoch, epoch))
            journal.hear({b"": 5}, epoch, now + epoch + 1)
            journal.put(block(5, 1, now + epoch + 1, epoch))
            journal.hear({b"": 6}, epoch, now + epoch + 1, flags=FLAG_END)

    def marks(day: Path) -> list[tuple[MarkKind, int, int]]:
        return [(mark.kind, mark.epoch, mark.totals.records) for mark in Recording.open(day).marks()]

    compact(Recording.open(tmp_path / "day"), tmp_path / "out")
    expected = marks(tmp_path / "day")
    assert (MarkKind.EPOCH_BEGIN, 2, 2) in expected
    assert marks(tmp_path / "out") == expected


def test_damaged_blocks_become_gaps_and_are_counted(tmp_path: Path) -> None:
    day = day_of(tmp_path / "day", 20)
    damage_body(day.segments[0], 7)
    with day.segments[0].path.open("ab") as file:
        file.write(b"torn")
    done = compact(Recording.open(day.path), tmp_path / "out")
    assert (done.messages, done.left_out, done.blocks_after) == (190, 10, 2)
    (gap,) = Recording.open(tmp_path / "out").gaps()
    assert (gap.sequence, gap.count) == (70, 10)
    assert Recording.open(tmp_path / "out").verify() == []


def test_the_copy_is_checked_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    day = day_of(tmp_path / "day", 20)
    right = merge_blocks.write_merge

    def wrong(headers: Any, bodies: Any, first_rows: Any, tables: Any, plan: Any, target: int) -> None:
        right(headers, bodies, first_rows, tables, plan, target)
        ctypes.memset(target, 1, 1)

    monkeypatch.setattr(merge_blocks, "write_merge", wrong)
    with pytest.raises(JournalError, match="200 messages of checksum [0-9a-f]{16}, expected 200 of"):
        compact(Recording.open(day.path), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["day"]


def test_the_digest_detects_every_change(tmp_path: Path) -> None:
    rows = [Row(b"A.x", b"one", 1), Row(b"A.y", b"two", 2)]

    def digest(name: str, rows: list[Row] = rows, slice_id: int = 0, **more: Any) -> Digest:
        day = Day(tmp_path / name, feed_of(2))
        day.put(slice_id, Put(tuple(rows), **more))
        found = Digest()
        for recorded in Recording.open(day.path).segments.blocks(slice_id):
            found.add(recorded)
        return found

    expected = digest("a")
    assert digest("same", ts_out=5, ts_recv=6) == expected
    assert digest("topic", [Row(b"A.z", b"one", 1), rows[1]]) != expected
    assert digest("payload", [rows[0], Row(b"A.y", b"twO", 2)]) != expected
    assert digest("ts_event", [rows[0], rows[1]._replace(ts_event=3)]) != expected
    assert digest("sequence", sequence=1) != expected
    assert digest("epoch", epoch=2) != expected
    assert digest("slice", slice_id=1) != expected
    assert digest("order", rows[::-1]) != expected


def test_invalid_settings_are_rejected(tmp_path: Path) -> None:
    recording = Recording.open(day_of(tmp_path / "day", 1).path)
    with pytest.raises(ValueError, match="compression was 'gzip', expected one of: none, lz4, zstd"):
        compact(recording, tmp_path / "out", compression="gzip")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="block_bytes were 1, expected 1024 to 67108864"):
        compact(recording, tmp_path / "out", block_bytes=1)
    with pytest.raises(JournalError, match="day exists, expected the name of a new directory"):
        compact(recording, tmp_path / "day")
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match="out cannot be written: "):
        compact(recording, tmp_path / "file" / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["day", "file"]
    compact(recording, tmp_path / "archive" / "out")
    assert Recording.open(tmp_path / "archive" / "out").counts() == recording.counts()
