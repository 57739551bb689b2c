"""Recordings are read back in order while they grow, filters match plain Python, and wrong arguments are rejected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from blackbox import ConfigError, Recording
from blackbox.archive.read.filter import Selection
from blackbox.archive.read.reader import blocks_of
from blackbox.block.form.layout import VERSION
from blackbox.block.gap import Gap
from blackbox.errors import JournalError
from blackbox.feed.routing.symbol import RULES, SymbolRule
from tests.archive.written_days import CLOCKS, EPOCHS, days, few, made, many, told
from tests.damaged import damage_body
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
def test_everything_is_read_back_in_order_and_filters_match_plain_python(
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
        written = made(path, day)
        recording = Recording.open(path)
        assert told(recording.batches()) == told(recording.batches()) == written.told()
        assert recording.damage == recording.verify() == []
        assert recording.gaps() == gaps_of(written)
        assert recording.counts() == Counter(message.topic for message in written.told())
        assert recording.topics() == sorted({message.topic for message in written.told()})
        wanted = [
            message
            for message in written.told()
            if message.topic.startswith(prefix)
            and (start is None or getattr(message, by) >= start)
            and (stop is None or getattr(message, by) < stop)
            and (slices is None or message.slice_id in slices)
            and epoch in (None, message.epoch)
            and (first_sequence is None or message.sequence >= first_sequence)
        ]
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
            day.put(slice_id, *many(900, slice_id)[300 * part : 300 * (part + 1)], index=part != 1)
    order, most = [], 0
    for run in Recording.open(tmp_path).runs():
        order += list(zip(run.heads["ts_out"].tolist(), run.heads["slice"].tolist(), strict=True))
        most = max(most, len(run.heads))
        for address, number in zip(run.addresses.tolist(), run.segment_of.tolist(), strict=True):
            segment = run.segments[number]
            assert segment.address + 64 <= address < segment.address + segment.whole_bytes
    assert (len(order), order) == (2_700, sorted(order))
    assert most == 1_024


def test_reading_a_large_recording_takes_little_memory(tmp_path: Path) -> None:
    put = Put(tuple(Row(b"A", bytes(100_000)) for _ in range(10)))
    day = Day(tmp_path, feed_of())
    for _ in range(6):
        day.put(0, *([put] * 20))
    recording = Recording.open(tmp_path)
    list(recording.batches())
    before, highest = resident_bytes(), 0
    for batch in recording.batches():
        batch.payloads().sum()
        highest = max(highest, resident_bytes())
    assert recording.file_bytes > 110 << 20
    assert highest - before < 40 << 20


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


def test_a_summary_and_a_rate_have_the_counts_of_a_recording(tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of(2))
    recording = Recording.open(tmp_path)
    summary = recording.summary()
    assert (summary.messages, summary.blocks, summary.first_ts_out, summary.epochs) == (0, 0, None, ())
    assert recording.topics() == recording.gaps() == recording.verify() == list(recording.runs()) == []
    assert recording.rate(4).counts.tolist() == [0] * 4
    assert len(recording.to_arrow()) == len(recording.to_pandas()) == 0
    rows = (Row(b"A", b"1", 50), Row(b"A", b"2", 30))
    puts = [Put(rows, 0, 5, 6, epoch=9, first_row=1), Put(rows, 2, 7, 8, epoch=9), Put(rows, 0, 9, 9, epoch=3, codec=2)]
    segment = day.put(0, *puts[:2])
    day.put(0, puts[2], index=False)
    recording.refresh()
    summary = recording.summary()
    assert (summary.messages, summary.blocks, summary.body_bytes) == (5, 3, 3 * len(puts[0].block(0)[1]))
    assert (summary.first_ts_event, summary.last_ts_event) == (30, 50)
    assert (summary.first_ts_out, summary.last_ts_out) == (5, 9)
    assert (summary.epochs, summary.torn_bytes, summary.damage) == ((9, 3), 0, ())
    first, silent = summary.slices
    assert (silent.slice_id, silent.messages, silent.segments) == (1, 0, 0)
    assert (first.slice_id, first.messages, first.segments, first.epochs) == (0, 5, 2, (9, 3))
    assert first.file_bytes == segment.path.stat().st_size + day.segments[1].path.stat().st_size
    rate, times = recording.rate(13), [message.ts_out for message in day.told()]
    assert rate.times[0] <= min(times) <= max(times) < rate.times[-1]
    assert rate.counts.tolist() == numpy.histogram(times, rate.times)[0].tolist()


def test_messages_without_a_time_do_not_change_the_range_of_times(tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of(2))
    rows = [Row(b"A", bytes(70_000), time) for time in (0, 30, 50, 0, 60)]
    day.put(0, Put((rows[0],)), Put(tuple(rows[:3]), 1), Put(tuple(rows[3:]), 4))
    day.put(1, Put((rows[0],)))
    recording = Recording.open(tmp_path)
    assert recording.time_range() == (30, 60)
    summary = recording.summary()
    assert (summary.first_ts_event, summary.last_ts_event) == (30, 60)
    assert (summary.slices[1].first_ts_event, summary.slices[1].last_ts_event) == (None, None)


def test_a_damaged_body_does_not_change_the_range_of_times(tmp_path: Path) -> None:
    segment = Day(tmp_path, feed_of()).put(
        0, *(Put((Row(b"A", b"", 30 + i),), i, codec=1) for i in range(4)), index=False
    )
    damage_body(segment, 1)
    recording = Recording.open(tmp_path)
    assert recording.time_range() == (30, 33)
    assert (recording.summary().first_ts_event, recording.summary().last_ts_event) == (30, 33)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda recording: recording.batches(slices=[0, 2]), "slices had 2, expected 0 to 1"),
        (lambda recording: recording.gaps(slices=[9]), "slices had 9, expected 0 to 1"),
        (lambda recording: recording.marks([9]), "slices had 9, expected 0 to 1"),
        (lambda recording: recording.batches(by="time"), "by was 'time'"),
        (lambda recording: recording.runs(epoch=-1), "epoch was -1"),
        (lambda recording: recording.batches(b"\0H"), "prefix"),
        (lambda recording: recording.rate(0), "bins were 0"),
        (lambda recording: Recording.open(recording.path / "nothing"), "was not found"),
        (lambda recording: Recording.open(recording.path.parent), "holds 2 days, expected one of them: one, two"),
        (lambda recording: Recording.open(recording.path / "empty"), r"it has no manifest\.json"),
    ],
)
def test_invalid_arguments_are_rejected_at_once(tmp_path: Path, call: Callable[[Recording], Any], error: str) -> None:
    for name in ("one", "two"):
        Day(tmp_path / "days" / name, feed_of(2))
    (tmp_path / "days" / "one" / "empty").mkdir()
    with pytest.raises((ConfigError, JournalError, ValueError), match=error):
        call(Recording.open(tmp_path / "days" / "one"))


def test_an_unexpected_segment_is_rejected(tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of(2))
    first, second = day.put(0, *many(1)), day.put(1, *many(1, 1))
    good = first.path.read_bytes()
    for wrong, text in (
        (second.path.read_bytes(), "slice was 1, expected 0"),
        (b"X" + good[1:], "magic was b'XBOXJRNL', expected b'BBOXJRNL'"),
        (good[:8] + b"\1" + good[9:], f"version was 1, expected {VERSION}"),
        (good[:12] + b"\3" + good[13:], "segment was 3, expected 0"),
    ):
        first.path.write_bytes(wrong)
        with pytest.raises(JournalError, match=f"{first.path}: {text}"):
            Recording.open(tmp_path)


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


def test_a_reader_adds_data_recorded_since(tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of(2, key_bytes=2))
    recording = Recording.open(tmp_path)
    assert list(recording.batches()) == []
    segments = [day.segment(0), day.segment(1)]
    puts = [many(300, size=1_700), many(300, 1, size=1_700)]
    for part in range(15):
        running = recording.batches()
        started = next(running, None) is not None
        for slice_id in range(2):
            if part == 8:
                segments[slice_id].write_index()
                segments[slice_id] = day.segment(slice_id)
            segment = segments[slice_id]
            segment.append(*puts[slice_id][20 * part : 20 * (part + 1)])
            if part % 3:
                segment.write_index(len(segment.entries()) - part % 2)
        recording.refresh()
        assert told(recording.batches()) == day.told()
        assert len(told(running)) + started == 40 * part
        for slice_id in range(2):
            found = [len(segment.entries) for segment in dict(recording.segments.of())[slice_id]]
            assert found == [len(segment.entries()) for segment in day.segments if segment.slice_id == slice_id]
    assert recording.damage == recording.verify() == []


def test_a_segment_grows_while_the_next_one_is_ready(tmp_path: Path) -> None:
    day, puts = Day(tmp_path, feed_of(key_bytes=2)), many(30)
    first, second = day.segment(), day.segment()
    first.append(*puts[:15])
    recording = Recording.open(tmp_path)
    with first.path.open("ab") as file:
        file.write(b"BREC")
    recording.refresh()
    assert told(recording.batches()) == day.told()
    assert (recording.damage, recording.summary().torn_bytes) == ([], 4)
    first.path.write_bytes(first.path.read_bytes()[:-4])
    first.append(*puts[15:20])
    second.append(*puts[20:])
    recording.refresh()
    assert told(recording.batches()) == day.told()
    assert recording.damage == recording.verify() == []


def test_an_incomplete_block_is_not_read_until_it_is_complete(tmp_path: Path) -> None:
    segment = Day(tmp_path, feed_of()).put(0, *many(2, size=1), index=False)
    whole = segment.path.read_bytes()
    segment.path.write_bytes(b"")
    recording = Recording.open(tmp_path)
    for size in range(1, len(whole) + 1):
        with segment.path.open("ab") as file:
            file.write(whole[size - 1 : size])
        recording.refresh()
        blocks = [stop for _, stop in segment.places if stop <= size]
        whole_bytes = max(stop for stop in (0, 64, segment.places[0][0], *blocks) if stop <= size)
        assert len(told(recording.batches())) == len(blocks)
        assert recording.summary().torn_bytes == size - whole_bytes
    assert recording.damage == []
