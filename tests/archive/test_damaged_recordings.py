"""Recordings with flipped bits and cut files: no crash, no false message, and losses are reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox import Recording
from blackbox.archive.files.segment import Damage
from blackbox.block.form.layout import RECORD
from blackbox.errors import JournalError
from tests import wire
from tests.archive.written_days import told
from tests.damaged import damage_body, flip
from tests.examples import examples
from tests.journals import Day, Put, Row, Segment, Told, feed_of, opened, record_of, sealed

few = settings(max_examples=examples(150))
PLACES = st.floats(0, 1, exclude_max=True)


def small_day(path: str | Path, indexed: bool = True) -> Day:
    """Two slices, three segments, bodies of every codec, blocks with and without a checksum, two epochs."""
    day = Day(Path(path), feed_of(2, key_bytes=1))
    sequence = 0
    for slice_id, first, count in ((0, 0, 9), (0, 9, 5), (1, 0, 6)):
        puts = []
        for i in range(count):
            topics = [b"A.x", b"A.y"] if slice_id == 0 else [b"B"]
            payload = bytes([i, sequence % 256]) * (40 * (i % 4))
            rows = tuple(Row(topics[j % len(topics)], payload[j:], 10 * i + j) for j in range(i % 3 + 1))
            codec, flags = i % 3, wire.CHECKSUM * (i % 2)
            first_row = len(rows) - 1 if i % 5 == 4 else 0
            ts_out = 5 * (first + i)
            puts.append(Put(rows, sequence, ts_out, ts_out + 1, 1 + i // 7, first_row, codec, flags=flags))
            sequence += len(rows)
        day.put(slice_id, *puts, index=indexed)
    return day


def flip_at(path: Path, share: float, bit: int) -> int:
    """Flip a bit of a file. Return the offset of its byte."""
    place = int(path.stat().st_size * share)
    flip(path, place, bit=bit)
    return place


def cut(path: Path, share: float) -> int:
    data = path.read_bytes()
    size = int(len(data) * share)
    path.write_bytes(data[:size])
    return size


def hit(segment: Segment, place: int) -> Put | None:
    """Return the block with a byte at an offset; None for padding and the head of the file."""
    for put, (start, _) in zip(segment.puts, segment.places, strict=True):
        stored = record_of(put, segment.slice_id)
        size = RECORD.size + opened(RECORD, stored[: RECORD.size])["stored_bytes"]
        if start <= place < start + size:
            return put
    return None


def without(day: Day, segment: Segment, lost: Callable[[Put], bool]) -> list[Told]:
    gone = {message for put in segment.puts if lost(put) for message in put.told(segment.slice_id)}
    return [message for message in day.told() if message not in gone]


def check_reading(recording: Recording, expected: list[Told]) -> None:
    """Check that every way to read gives `expected`, slice by slice, and reports damage only once."""
    for prefix, start, stop in ((b"", None, None), (b"A.y", None, None), (b"", 20, 45), (b"B", 15, None)):
        read = told(recording.batches(prefix, start=start, stop=stop))
        wanted = [
            message
            for message in expected
            if message.topic.startswith(prefix)
            and (start is None or message.ts_event >= start)
            and (stop is None or message.ts_event < stop)
        ]
        assert read == wanted
    known = list(recording.damage)
    assert recording.verify()[: len(known)] == sorted(recording.damage)[: len(known)]
    assert len(set(recording.damage)) == len(recording.damage)
    assert sum(recording.counts().values()) == len(expected)
    recording.gaps(), recording.summary(), recording.rate(), recording.to_arrow()


@few
@given(st.integers(0, 2), PLACES, st.integers(0, 7), st.booleans())
def test_a_flipped_bit_loses_one_block_and_is_reported(number: int, share: float, bit: int, indexed: bool) -> None:
    with TemporaryDirectory() as path:
        day = small_day(path, indexed)
        segment = day.segments[number]
        place = flip_at(segment.path, share, bit)
        lost = hit(segment, place)
        if place < 16:  # magic, version, slice and number identify the file
            with pytest.raises(JournalError, match=str(segment.path)):
                Recording.open(path)
            return
        recording = Recording.open(path)
        check_reading(recording, without(day, segment, lambda put: put is lost))
        if lost is not None or place < 24 or 60 <= place < 64:
            (damage, *rest) = recording.verify()
            assert not rest
            assert damage.path == segment.path
            assert damage.offset <= place < damage.offset + damage.size


@few
@given(st.integers(0, 2), PLACES, st.booleans())
def test_a_cut_segment_keeps_whole_records_and_reports_the_rest(number: int, share: float, indexed: bool) -> None:
    with TemporaryDirectory() as path:
        day = small_day(path, indexed)
        segment = day.segments[number]
        size = cut(segment.path, share)
        kept = [put for put, (_, stop) in zip(segment.puts, segment.places, strict=True) if stop <= size]
        recording = Recording.open(path)
        check_reading(recording, without(day, segment, lambda put: not any(put is other for other in kept)))
        ends = [64, *(end for place in segment.places for end in place)]
        told_of = {damage.path for damage in recording.verify()}
        # Without an index, only a later segment shows a cut directly after a record or mark.
        if indexed or size not in [0, *ends]:
            assert segment.path in told_of
        elif number == 0:
            assert told_of
        else:
            assert not told_of


@few
@given(st.integers(0, 2), PLACES, st.integers(0, 7), st.booleans())
def test_a_damaged_index_loses_no_message(number: int, share: float, bit: int, shorten: bool) -> None:
    with TemporaryDirectory() as path:
        day = small_day(path)
        index = day.segments[number].path.with_suffix(".index")
        if shorten:
            cut(index, share)
        else:
            flip_at(index, share, bit)
        recording = Recording.open(path)
        check_reading(recording, day.told())
        assert all(damage.path == index for damage in recording.verify())
        size = index.stat().st_size
        assert shorten or recording.damage or 16 <= int(size * share) < 60


@few
@given(st.lists(st.tuples(st.integers(0, 5), PLACES, st.integers(0, 7), st.booleans()), min_size=2, max_size=12))
def test_much_damage_never_gives_a_wrong_message(damages: list[tuple[int, float, int, bool]]) -> None:
    with TemporaryDirectory() as path:
        day = small_day(path)
        for number, share, bit, shorten in damages:
            file = day.segments[number % 3].path.with_suffix(".journal" if number < 3 else ".index")
            if shorten:
                cut(file, 0.5 + share / 2)
            elif file.stat().st_size:
                flip_at(file, share, bit)
        try:
            recording = Recording.open(path)
        except JournalError:
            return
        for slice_id in range(2):
            rest = iter([message for message in day.told() if message.slice_id == slice_id])
            assert all(message in rest for message in told(recording.batches(slices=[slice_id])))
        complete = len(told(recording.batches())) == len(day.told())
        assert complete or recording.verify() or recording.gaps() or any(shorten for *_, shorten in damages)


def test_garbage_between_records_is_skipped_with_and_without_an_index(tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of())
    segment = day.segment()
    puts = [Put((Row(b"A", bytes(500)),), i, i) for i in range(6)]
    segment.append(*puts[:3])
    with segment.path.open("ab") as file:
        file.write(b"BREC" + bytes(92))
    segment.append(*puts[3:])
    damage = Damage(segment.path, segment.places[2][1], 96, "no good record begins here")
    for entries in (0, None, 1):
        if entries != 0:
            segment.write_index(entries)
        recording = Recording.open(tmp_path)
        assert told(recording.batches()) == day.told()
        assert recording.verify() == [damage]


def test_a_record_of_another_slice_is_left_out(tmp_path: Path) -> None:
    segment = Day(tmp_path, feed_of(2)).put(0, Put((Row(b"A", b""),)), index=False)
    with segment.path.open("ab") as file:
        file.write(record_of(Put((Row(b"B", b"other"), Row(b"B", b"")), 1), 1))
    recording = Recording.open(tmp_path)
    assert [message.topic for message in told(recording.batches())] == [b"A"]
    (damage,) = recording.damage
    assert (damage.what, damage.messages) == ("a block came on the line of another slice", 2)


@pytest.mark.parametrize("size", [0, 63])
def test_a_segment_without_a_head_is_reported_unless_it_is_the_last(tmp_path: Path, size: int) -> None:
    day = Day(tmp_path, feed_of())
    segment = day.put(0, Put((Row(b"A", b""),)), index=False)
    cut_off = segment.path.read_bytes()[:size]
    segment.path.write_bytes(cut_off)
    assert Recording.open(tmp_path).damage == []
    day.put(0, Put((Row(b"A", b""),), 1))
    recording = Recording.open(tmp_path)
    assert [(damage.path, damage.size) for damage in recording.damage] == [(segment.path, size)]
    assert len(told(recording.batches())) == 1


def test_missing_segments_and_slices_are_reported(tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of(3))
    for i in range(7):
        day.put(0, Put((Row(b"A", b""),), i, i))
    assert Recording.open(tmp_path).damage == []  # slices 1 and 2 were silent
    for number in (0, 2, 3):
        day.segments[number].path.unlink()
    for segment in day.segments[5:]:
        segment.path.unlink()  # only its index is left
    (tmp_path / "slice-00001").rmdir()
    (tmp_path / "slice-00003").mkdir()
    recording = Recording.open(tmp_path)
    assert [message.sequence for message in told(recording.batches())] == [1, 4]
    assert sorted((damage.path.name, damage.what) for damage in recording.damage) == [
        ("000000.journal", "1 segment missing, from this one on"),
        ("000002.journal", "2 segments missing, from this one on"),
        ("000005.journal", "missing: only the indexes of 2 segments are left"),
        ("slice-00001", "missing: the manifest has such a slice"),
        ("slice-00003", "the manifest has no such slice"),
    ]
    assert [(gap.sequence, gap.count) for gap in recording.gaps()] == [(2, 2)]


def test_the_next_refresh_raises_if_a_segment_is_removed(tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of())
    day.put(0, Put((Row(b"A", b""),)))
    recording = Recording.open(tmp_path)
    day.segments[0].path.unlink()
    with pytest.raises(JournalError, match="has lost segment 000000 since it was opened"):
        recording.refresh()
    assert len(told(recording.batches())) == 1


def test_a_torn_tail_is_reported_until_it_is_cut(tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of())
    segment = day.put(0, Put((Row(b"A", b"1"),)), index=False)
    whole = segment.path.read_bytes()
    segment.path.write_bytes(whole + record_of(Put((Row(b"A", b"2"),), 1), 0)[:-32])
    recording = Recording.open(tmp_path)
    assert recording.summary().torn_bytes == len(segment.path.read_bytes()) - len(whole)
    assert recording.damage == []
    assert [damage.what for damage in recording.verify()] == ["torn tail: no whole record"]
    segment.path.write_bytes(whole)
    recording.refresh()
    segment.append(Put((Row(b"A", b"2"),), 1))
    recording.refresh()
    assert told(recording.batches()) == day.told()
    assert recording.summary().torn_bytes == 0


def test_a_damaged_block_is_logged_once_and_is_a_gap(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    day = Day(tmp_path, feed_of())
    segment = day.put(0, *(Put((Row(b"A", b"x"), Row(b"A", b"y")), 2 * i, i) for i in range(3)))
    damage_body(segment, 1)
    recording = Recording.open(tmp_path)
    for _ in range(2):
        assert [message.sequence for message in told(recording.batches())] == [0, 1, 4, 5]
    (damage,) = recording.damage
    assert (damage.offset, damage.messages) == (segment.places[1][0], 2)
    assert len(caplog.records) == 1
    assert "2 messages" in caplog.text
    assert [(gap.sequence, gap.count) for gap in recording.gaps()] == [(2, 2)]


def test_a_head_with_more_messages_than_its_body_can_hold_is_invalid(tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of())
    segment = day.put(0, *(Put((Row(b"A", b"x"),), i, i) for i in range(3)), index=False)
    start = segment.places[1][0]
    data = bytearray(segment.path.read_bytes())
    fields = opened(RECORD, bytes(data[start : start + RECORD.size]))
    fields["block"] = wire.pack(wire.unpack(fields["block"])._replace(count=0xFFFFFFF0))
    data[start : start + RECORD.size] = sealed(RECORD, **fields)
    segment.path.write_bytes(data)
    recording = Recording.open(tmp_path)
    assert [message.sequence for message in told(recording.batches())] == [0, 2]
    assert recording.summary().messages == 2
    assert [damage.offset for damage in recording.damage] == [start]


def test_a_manifest_changed_by_hand_is_rejected(tmp_path: Path) -> None:
    path = Day(tmp_path, feed_of()).path / "manifest.json"
    path.write_text(path.read_text().replace("2026-11-20", "2026-11-21"))
    with pytest.raises(JournalError, match="is damaged, or was changed by hand: checksum was"):
        Recording.open(tmp_path)
