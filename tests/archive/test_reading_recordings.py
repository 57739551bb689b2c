"""Recordings are read back in order, and filters match plain Python."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from blackbox import ConfigError, Recording
from blackbox.archive.filter import Selection
from blackbox.archive.reader import blocks_of
from blackbox.block.gap import Gap
from blackbox.feed.symbol import RULES, SymbolRule
from tests.archive.written_days import CLOCKS, EPOCHS, days, few, made, many, told
from tests.examples import examples
from tests.journals import Day, Put, Row, feed_of
from tests.process_state import resident_bytes
from tests.recorded import AS_SENT


def gaps_of(day: Day) -> list[Gap]:
    """Return the gaps, found block by block and sequence by sequence."""
    found = []
    for slice_id in sorted({segment.slice_id for segment in day.segments}):
        seen: dict[int, int] = {}
        for segment in day.segments:
            for put in segment.puts if segment.slice_id == slice_id else ():
                first = put.sequence + put.first_row
                highest = seen.get(put.epoch, first)
                missing = list(range(highest, first))
                if missing:
                    found.append(Gap(slice_id, put.epoch, b"", missing[0], len(missing), put.ts_out))
                seen[put.epoch] = max(highest, put.sequence + len(put.rows))
    return found


@few
@given(days())
def test_everything_is_read_back_in_order(day: Any) -> None:
    with TemporaryDirectory() as path:
        written = made(path, day)
        recording = Recording.open(path)
        assert told(recording.batches()) == written.told()
        assert told(recording.batches()) == told(Recording.open(path).batches())
        assert recording.damage == recording.verify() == []
        assert recording.gaps() == gaps_of(written)
        assert recording.counts() == Counter(message.topic for message in written.told())
        assert recording.topics() == sorted({message.topic for message in written.told()})


@few
@given(
    days(),
    st.sampled_from([b"", b"A", b"AX", b"AXYZ.", b"AY.trade.of", b"B", b"BXYZ", b"CY", b"Z"]),
    st.none() | st.integers(-1, 8),
    st.none() | st.integers(-1, 8),
    st.none() | st.lists(st.integers(0, 2), max_size=2),
    CLOCKS,
    st.none() | st.sampled_from([*EPOCHS, 7]),
    st.none() | st.integers(0, 20),
)
def test_a_filter_matches_plain_python(
    day: Any,
    prefix: bytes,
    start: int | None,
    stop: int | None,
    slices: list[int] | None,
    by: Any,
    epoch: int | None,
    first_sequence: int | None,
) -> None:
    slices = None if slices is None else [number for number in slices if number < day[0]]
    assume(start is None or stop is None or start <= stop)
    with TemporaryDirectory() as path:
        wanted = [
            message
            for message in made(path, day).told()
            if message.topic.startswith(prefix)
            and (start is None or getattr(message, by) >= start)
            and (stop is None or getattr(message, by) < stop)
            and (slices is None or message.slice_id in slices)
            and epoch in (None, message.epoch)
            and (first_sequence is None or message.sequence >= first_sequence)
        ]
        recording = Recording.open(path)
        selection = Selection(start=start, stop=stop, slices=slices, by=by, epoch=epoch, first_sequence=first_sequence)
        assert told(recording.batches(prefix, **selection)) == wanted
        table = recording.to_arrow(prefix, **selection, **AS_SENT)
        names = ("slice", "epoch", "sequence", "ts_out", "ts_recv", "topic", "payload", "ts_event")
        rows = [row | {"topic": row["topic"].encode()} for row in table.to_pylist()]
        assert [tuple(row[name] for name in names) for row in rows] == wanted


def test_slices_are_merged_by_the_time_of_sending(tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of(3))
    for slice_id in (2, 0, 1):
        for part in range(3):
            day.put(slice_id, *many(3_000, slice_id)[1_000 * part : 1_000 * (part + 1)], index=part != 1)
    runs = list(Recording.open(tmp_path).runs())
    heads = numpy.concatenate([run.heads for run in runs])
    order = list(zip(heads["ts_out"].tolist(), heads["slice"].tolist(), strict=True))
    assert order == sorted(order)
    assert len(order) == 9_000
    assert max(len(run.heads) for run in runs) == 1_024
    for run in runs:
        for address, number in zip(run.addresses.tolist(), run.segment_of.tolist(), strict=True):
            segment = run.segments[number]
            assert segment.address + 64 <= address < segment.address + segment.whole_bytes


def test_a_slice_with_decreasing_times_keeps_its_order_with_any_filter(tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of(2))
    late = [Put((Row(b"A", bytes(70_000), i),), i, ts_out) for i, ts_out in enumerate((10, 90, 20, 30, 100))]
    day.put(0, *late)
    day.put(1, *(Put((Row(b"B", b"", i),), i, 12 * i) for i in range(10)))
    recording = Recording.open(tmp_path)
    everything = told(recording.batches())
    assert everything == day.told()
    for start in range(5):
        assert told(recording.batches(start=start)) == [message for message in everything if message.ts_event >= start]


def test_entries_ruled_out_by_the_index_are_not_read(tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of(key_bytes=1))
    names = (b"A", b"B")
    puts = [Put((Row(names[i >= 1_000], bytes(1_000), i),), sequence=i, ts_out=i) for i in range(2_000)]
    entries = day.put(0, *puts).entries()
    recording = Recording.open(tmp_path)
    per_entry = len(puts) // len(entries) + 2
    assert sum(len(run.heads) for run in recording.runs(start=500, stop=501)) <= per_entry
    assert sum(len(run.heads) for run in recording.runs(b"B")) <= 1_000 + per_entry
    assert sum(len(run.heads) for run in recording.runs(start=7, stop=8, by="ts_out")) == 1
    assert sum(len(run.heads) for run in recording.runs(first_sequence=1_999)) == 1
    assert list(recording.runs(slices=[])) == []


def test_an_uncompressed_block_is_a_view_of_the_file(tmp_path: Path) -> None:
    Day(tmp_path, feed_of()).put(0, Put((Row(b"A", b"12345678"), Row(b"A", b"abcdefgh"))))
    recording = Recording.open(tmp_path)
    (run,) = recording.runs()
    (batch,) = recording.batches()
    assert numpy.shares_memory(batch.payloads(), run.segments[0].memory)
    payloads = batch.payloads()
    del recording, run, batch
    assert payloads.tobytes() == b"12345678abcdefgh"
    assert not payloads.flags.writeable


def test_an_empty_recording_is_empty(tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of(2))
    day.put(0)
    recording = Recording.open(tmp_path)
    summary = recording.summary()
    assert (summary.messages, summary.blocks, summary.first_ts_out, summary.epochs) == (0, 0, None, ())
    assert recording.topics() == recording.gaps() == recording.verify() == list(recording.runs()) == []
    assert recording.rate(4).counts.tolist() == [0] * 4
    assert len(recording.to_arrow()) == len(recording.to_pandas()) == len(recording.to_polars()) == 0


def test_reading_a_large_recording_takes_little_memory(tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of())
    put = Put(tuple(Row(b"A", bytes(100_000)) for _ in range(10)))
    for _ in range(6):
        day.put(0, *([put] * 20))
    recording = Recording.open(tmp_path)
    list(recording.batches())
    before, highest = resident_bytes(), 0
    for batch in recording.batches():
        batch.payloads().sum()
        highest = max(highest, resident_bytes())
    assert sum(len(segment.memory) for segment in dict(recording._segments_of())[0]) > 110 << 20
    assert highest - before < 40 << 20


@pytest.mark.parametrize("wanted", [[1, 3], [True, False, False, True]])
def test_blocks_of_chosen_records_keep_their_whole_headers(tmp_path: Path, wanted: list[Any]) -> None:
    puts = [Put((Row(b"A", b"x"),), sequence=number, schema=number) for number in range(4)]
    Day(tmp_path, feed_of()).put(0, *puts)
    (run,) = Recording.open(tmp_path).runs()
    chosen = [recorded.block.header for recorded in blocks_of(run.chosen(numpy.array(wanted)), 0)]
    assert chosen == [puts[place].block(0)[0] for place in numpy.arange(4)[numpy.array(wanted)].tolist()]


@settings(deadline=None, max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.lists(st.text("AB.", min_size=1, max_size=5).map(str.encode), min_size=1), min_size=1, max_size=4),
    st.lists(st.text("AB.", min_size=1, max_size=4), min_size=1, max_size=3),
    st.sampled_from([b"", b"A", b"B."]),
    st.sampled_from(RULES),
    st.sampled_from([0, 2]),
    st.sampled_from([{}, {"start": 3}, {"stop": 4}, {"first_sequence": 2, "epoch": 1}]),
)
def test_a_selection_by_symbols_matches_a_plain_loop(
    blocks: list[list[bytes]], symbols: list[str], prefix: bytes, rule: str, packed: int, selection: Any
) -> None:
    split = SymbolRule(rule)
    with TemporaryDirectory() as directory:
        day = Day(Path(directory) / "2026-11-20", feed_of(symbol=rule))
        number, expected = 0, []
        for block in blocks:
            rows = tuple(Row(topic, b"%d" % (number + at), number + at + 1) for at, topic in enumerate(block))
            day.put(0, Put(rows, sequence=number, codec=packed))
            for row in rows:
                time, sequence = row.ts_event, row.ts_event - 1
                in_range = selection.get("start", 0) <= time < selection.get("stop", 1 << 62)
                in_range &= sequence >= selection.get("first_sequence", 0)
                if in_range and row.topic.startswith(prefix) and split.symbol_of(row.topic).decode() in symbols:
                    expected.append(row.payload)
            number += len(block)
        recording = Recording.open(day.path)
        try:
            batches = list(recording.batches(prefix, symbols=symbols, **selection))
        except ConfigError:
            is_no_symbol = rule == "before_first" and any("." in symbol for symbol in symbols)
            is_beside_prefix = any(not symbol.encode().startswith(prefix) for symbol in symbols)
            assert expected == [] or is_no_symbol or is_beside_prefix
        else:
            assert [payload for batch in batches for payload in batch.payload_list()] == expected
            table = recording.to_arrow(prefix, symbols=symbols, **selection)
            assert table["payload"].to_pylist() == expected
