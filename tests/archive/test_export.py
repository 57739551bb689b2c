"""Export to the venue's own format: the exported file equals the published one."""

from __future__ import annotations

import gzip
import os
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy
import pytest
from blackbox_feeds.iex import Iex
from blackbox_feeds.io.length_prefixed import length_prefixed
from blackbox_feeds.itch50 import Itch50
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox import ConfigError, Recording
from blackbox.archive.export import time_order as by_time
from blackbox.archive.export.source_file import Exported, export, load_exporter
from blackbox.archive.export.time_order import Order, in_order_of_time
from blackbox.archive.read.filter import Filter
from blackbox.errors import JournalError
from tests.examples import examples
from tests.feeds.build import messages_of
from tests.journals import Day, Put, Row, feed_of
from tests.recorded import recorded

ITCH = "itch50/runk_locate-13-10k.bin"
SNIPPET = "itch50/jamison_12302019_SNIPPET.NASDAQ_ITCH50"
TOPS = "iex/goiex_TOPS16.pcapng.gz"


def unframed(data: bytes, order: Any) -> list[bytes]:
    messages, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 2], order)
        messages.append(data[at + 2 : at + 2 + size])
        assert len(messages[-1]) == size
        at += 2 + size
    return messages


def test_a_published_itch_file_is_exported_byte_for_byte(shared_data: Path, tmp_path: Path) -> None:
    """Also a time range of it."""
    recording = recorded(tmp_path, lambda: Itch50(shared_data / ITCH, date="2020-01-30"), key_bytes=4)
    whole = (shared_data / ITCH).read_bytes()
    done = export(recording, tmp_path / "day.bin")
    assert (tmp_path / "day.bin").read_bytes() == whole
    assert done == Exported(messages=10_000, file_bytes=len(whole), ties=done.ties, late=0)
    (chunk,) = Itch50(shared_data / ITCH, date="2020-01-30").chunks()
    first, end = int(chunk.ts_event[4_000]), int(chunk.ts_event[6_000])
    low, high = (int(numpy.searchsorted(chunk.ts_event, time)) for time in (first, end))
    assert export(recording, tmp_path / "part.bin", first, end).messages == high - low
    assert (tmp_path / "part.bin").read_bytes() == whole[chunk.starts[low] - 2 : chunk.starts[high] - 2]


def test_iex_messages_are_exported_as_the_source_decodes_them(shared_data: Path, tmp_path: Path) -> None:
    expected = [payload for *_, payload in messages_of(Iex(shared_data / TOPS))]
    one = recorded(tmp_path / "one", lambda: Iex(shared_data / TOPS), slices=1)
    assert export(one, tmp_path / "one.bin").messages == len(expected) == 57_674
    assert unframed((tmp_path / "one.bin").read_bytes(), "little") == expected


def test_a_second_epoch_of_the_publisher_follows_the_first(shared_data: Path, tmp_path: Path) -> None:
    recording = recorded(tmp_path, lambda: Itch50(shared_data / SNIPPET), slices=1, runs=2)
    assert export(recording, tmp_path / "day.bin.gz").ties == 0
    assert gzip.decompress((tmp_path / "day.bin.gz").read_bytes()) == 2 * (shared_data / SNIPPET).read_bytes()


@st.composite
def days(draw: st.DrawFn) -> tuple[int, int, list[tuple[int, Put]]]:
    """Draw slices, key_bytes, and blocks as (slice, block), of one epoch."""
    slices, key_bytes = draw(st.integers(1, 3)), draw(st.sampled_from([0, 2]))
    puts = []
    sequences: Counter[int] = Counter()
    clock = 0
    for number in range(draw(st.integers(0, 12))):
        slice_id = draw(st.integers(0, slices - 1))
        key = chr(65 + slice_id) + (draw(st.sampled_from("xy")) if key_bytes else "")
        rows: list[Row] = []
        for _ in range(draw(st.integers(1, 4))):
            clock = max(0, clock + draw(st.sampled_from([0, 0, 1, 1, 3, -1])))
            payload = b"%d" % (1_000 * number + len(rows))
            rows.append(Row(f"{key}.t".encode(), payload * draw(st.integers(0, 2)), clock))
        put = Put(
            tuple(rows),
            sequence=sequences[slice_id],
            ts_out=number + draw(st.integers(0, 3)),
            first_row=draw(st.integers(0, len(rows) - 1)),
            codec=draw(st.integers(0, 2)),
        )
        puts.append((slice_id, put))
        sequences[slice_id] += len(rows)
    return slices, key_bytes, puts


def expected_order(key_bytes: int, puts: list[tuple[int, Put]]) -> tuple[list[tuple[int, bytes]], Order]:
    latest: dict[tuple[int, bytes], int] = {}
    told: list[tuple[int, int, int, tuple[int, bytes], Row]] = []
    late = 0
    for slice_id, put in puts:
        for row in put.rows[put.first_row :]:
            stream = slice_id, row.topic[:key_bytes]
            late += row.ts_event < latest.get(stream, -1)
            latest[stream] = max(latest.get(stream, -1), row.ts_event)
            told.append((latest[stream], slice_id, len(told), stream, row))
    told.sort(key=lambda each: each[:3])
    streams = defaultdict(set)
    for place, _, _, stream, _ in told:
        streams[place].add(stream)
    ties = sum(len(streams[place]) > 1 for place, *_ in told)
    return [(row.ts_event, row.payload or b"") for *_, row in told], Order(len(told), ties, late)


@given(day=days(), part_rows=st.sampled_from([1, 3, 131_072]))
@settings(max_examples=examples(80))
def test_messages_are_merged_by_their_times(day: tuple[int, int, list[tuple[int, Put]]], part_rows: int) -> None:
    slices, key_bytes, puts = day
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(by_time, "_PART_ROWS", part_rows)
        written = Day(Path(directory), feed_of(slices, key_bytes))
        for slice_id, put in puts:
            written.put(slice_id, put)
        order = Order()
        found = []
        for part in in_order_of_time(Recording.open(directory), Filter(key_bytes), order):
            assert len(part.ts_event) <= part_rows
            data = part.payloads.tobytes()
            texts = [data[a:b] for a, b in pairwise(part.offsets.tolist())]
            found += list(zip(part.ts_event.tolist(), texts, strict=True))
        assert (found, order) == expected_order(key_bytes, puts)


def test_messages_after_one_at_the_end_of_all_times_are_exported(tmp_path: Path) -> None:
    times = [[5, (1 << 63) - 1, 6], [7, (1 << 63) - 2, (1 << 63) - 1]]
    day = Day(tmp_path, feed_of(2))
    for slice_id, mine in enumerate(times):
        for place, time in enumerate(mine):
            day.put(slice_id, Put((Row(b"AB"[slice_id : slice_id + 1], b"a", time),), place, ts_out=place))
    parts = list(in_order_of_time(Recording.open(tmp_path), Filter(0), Order()))
    assert [time for part in parts for time in part.ts_event.tolist()] == [5, 7, *times[0][1:], *times[1][1:]]


def test_messages_beyond_the_waiting_limit_are_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_time, "_WINDOW_ROWS", 64)
    monkeypatch.setattr(by_time, "_PART_ROWS", 8)
    day = Day(tmp_path, feed_of(2))
    for number in range(60):
        day.put(0, Put(tuple(Row(b"A", b"a", 1_000 + 100 * number + i) for i in range(100)), sequence=100 * number))
    day.put(1, Put((Row(b"B", b"late", 5),), ts_out=1))
    # The index has no time for the first run of slice 1, so no message is safe.
    order = Order()
    assert sum(len(part.ts_event) for part in in_order_of_time(Recording.open(tmp_path), Filter(0), order)) == 6_001
    assert order.messages == 6_001


def test_a_draft_that_a_killed_export_left_is_in_no_way(tmp_path: Path) -> None:
    day = Day(tmp_path / "day", msgspec.structs.replace(feed_of(), schema="itch50"))
    day.put(0, Put((Row(b"A", b"a", 1),)))
    (tmp_path / f".x.bin.{os.getpid()}.new").touch()  # of a process with the same PID in another container
    export(Recording.open(day.path), tmp_path / "x.bin")
    assert sorted(path.name for path in tmp_path.iterdir()) == [f".x.bin.{os.getpid()}.new", "day", "x.bin"]
    (tmp_path / "plain").touch()
    assert (tmp_path / "x.bin").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_an_impossible_export_raises(tmp_path: Path) -> None:
    day = Day(tmp_path / "day", feed_of())
    day.put(0, Put((Row(b"A", b"a", 1),)))
    recording = Recording.open(day.path)
    with pytest.raises(ConfigError, match="schema to export was 'raw', expected one of: .*iex_tops16, itch50"):
        export(recording, tmp_path / "x.bin")
    itch = Day(tmp_path / "itch", msgspec.structs.replace(feed_of(), schema="itch50"))
    itch.put(0, Put((Row(b"A", b"a", 1),)))
    recording = Recording.open(itch.path)
    (tmp_path / "there").touch()
    with pytest.raises(JournalError, match=r"there exists, expected the name of a new file"):
        export(recording, tmp_path / "there")
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match=r"file/x\.bin cannot be written: "):
        export(recording, tmp_path / "file" / "x.bin")
    with pytest.raises(ValueError, match="time was 'noon'"):
        export(recording, tmp_path / "x.bin", start="noon")
    assert {path.name for path in tmp_path.iterdir()} == {"day", "file", "itch", "there"}


def test_a_message_too_long_for_the_format_raises() -> None:
    part = by_time.Messages(numpy.zeros(65_536, numpy.uint8), numpy.array([0, 65_536]), numpy.zeros(1, numpy.int64))
    with pytest.raises(Exception, match="a message had 65536 bytes, expected at most 65535"):
        list(length_prefixed([part], big_endian=True))


def test_every_schema_of_a_venue_has_an_exporter() -> None:
    for name in ("iex_deep10", "dbn_ts_out"):
        assert callable(load_exporter(name))
