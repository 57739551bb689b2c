"""Marks between records: epochs, outages, heartbeats, totals, and the gaps that they show."""

from __future__ import annotations

import errno
import os
import resource
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy
import pytest

from blackbox import Recording
from blackbox.archive.files.closed import ClosedSlice, note_closed, note_segments, read_closed
from blackbox.archive.files.format import ENTRY, FILE_HEAD_BYTES, MarkKind
from blackbox.archive.files.marks import AFTER_KILL, NAMES_LEFT_OUT, Mark, Totals
from blackbox.archive.files.segment import NO_GOOD_RECORD
from blackbox.archive.record.crash_recovery import recover_day
from blackbox.archive.record.journal_state import Wanted
from blackbox.block.form.ack_format import NOTHING_MISSING
from blackbox.block.form.format import FLAG_END
from blackbox.block.form.layout import MARK
from blackbox.testing import wait_until
from tests import wire
from tests.archive.written_journals import FOREVER, Journal, block
from tests.damaged import flip
from tests.journals import Day, Put, Row, Segment, check_index, feed_of, read_segment, sealed, stored_marks

SECOND = 10**9


def marks(day: Path) -> list[Mark]:
    return list(Recording.open(day).marks())


def kinds(day: Path) -> list[str]:
    return [mark.kind.name for mark in marks(day)]


def test_a_journal_has_marks_of_recorders_and_epochs(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.put(block(0, 3, SECOND, epoch=7))
        journal.put(block(3, 2, 2 * SECOND, epoch=7))
        journal.put(block(0, 1, 3 * SECOND, epoch=9))
        journal.hear({b"": 1}, 9, 4 * SECOND)
        journal.hear({b"": 1}, 9, 5 * SECOND, flags=FLAG_END)
    expected = [
        "SEGMENT_BEGIN", "RECORDER_BEGIN", "EPOCH_BEGIN", "EPOCH_BEGIN", "HEARD", "EPOCH_END", "RECORDER_END",
        "SEGMENT_END",
    ]  # fmt: skip
    found = marks(tmp_path)
    assert [mark.kind.name for mark in found] == expected
    assert [mark.epoch for mark in found] == [0, 0, 7, 9, 9, 9, 9, 9]
    assert [(mark.totals.records, mark.totals.messages) for mark in found] == [(0, 0)] * 3 + [(2, 5)] + [(3, 6)] * 4
    assert [mark.totals.marks for mark in found] == list(range(8))
    assert (found[4].ts, found[4].ts_out, found[4].keys) == (4 * SECOND, 4 * SECOND - 1, {})
    assert [mark.sequence for mark in found] == [0, 0, 0, 0, 1, 1, 0, 0]
    recording = Recording.open(tmp_path)
    assert recording.verify() == recording.gaps() == []
    (segment,) = tmp_path.glob("slice-*/*.journal")
    check_index(segment)
    by_hand = stored_marks(segment)
    assert [(mark.kind, mark.totals.records, mark.totals.messages) for mark in by_hand] == [
        (mark.kind, mark.totals.records, mark.totals.messages) for mark in found
    ]
    assert [mark.totals.chain for mark in by_hand] == [mark.totals.chain % (1 << 64) for mark in found]


def test_a_mark_names_all_ends_once_if_records_do_not_reach_its_sequence(tmp_path: Path) -> None:
    lost = {b"A": (3, 3), b"B": (5, 2), b"C": (7, 2)}
    with Journal(tmp_path, key_bytes=1) as journal:
        journal.put(block(0, 3, 0, topic=b"A"))
        journal.put(block(3, 2, 0, topic=b"B"))
        journal.hear({b"A": (3, 3), b"B": (5, 2)}, 1, SECOND)
        for ts in (2 * SECOND, 20 * SECOND, 40 * SECOND):
            journal.hear(lost, 1, ts)
        journal.hear(lost | {b"C": (9, 3)}, 1, 41 * SECOND, sequence=10)
    heard = [mark for mark in marks(tmp_path) if mark.kind is MarkKind.HEARD]
    assert [mark.sequence for mark in heard] == [5, 7, 7, 7, 10]
    assert [mark.keys for mark in heard] == [{}, lost, {}, {}, lost | {b"C": (9, 3)}]
    assert Recording.open(tmp_path).verify() == []


def test_many_keys_are_named_by_several_marks(tmp_path: Path) -> None:
    ends = {b"%08d" % key: (key + 5, 1 + key % 2) for key in range(9_000)}
    with Journal(tmp_path, key_bytes=8) as journal:
        journal.put(block(0, topic=b"00000000"))
        journal.hear(ends, 1, SECOND, flags=FLAG_END)
    found = [mark for mark in marks(tmp_path) if mark.keys]
    assert [(mark.kind.name, mark.flags) for mark in found] == [("HEARD", NAMES_LEFT_OUT), ("EPOCH_END", 0)]
    assert {mark.sequence for mark in found} == {9_004}
    assert {key: end for mark in found for key, end in mark.keys.items()} == ends
    assert Recording.open(tmp_path).verify() == []


def test_an_outbox_names_all_ends_once_per_day_and_epoch(tmp_path: Path) -> None:
    ends = {b"A": (3, 3), b"B": (4, 1)}
    with Journal(tmp_path, key_bytes=1, is_outbox=True) as journal:
        journal.put(block(0, 3, 0, topic=b"A"))
        journal.put(block(3, 1, 0, topic=b"B"))
        for ts in (SECOND, 20 * SECOND):
            journal.hear(ends, 1, ts)
        journal.put(block(0, 1, 21 * SECOND, epoch=2, topic=b"B"))
        journal.hear({b"A": (0, 0), b"B": (1, 1)}, 2, 22 * SECOND)
    heard = [mark for mark in marks(tmp_path) if mark.kind is MarkKind.HEARD]
    assert [mark.keys for mark in heard] == [ends, {}, {b"A": (0, 0), b"B": (1, 1)}]


def test_heartbeats_without_news_are_rarely_marked(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        for tenth in range(1_000):
            if tenth < 500:
                journal.put(block(tenth, 1, tenth * SECOND // 10))
            journal.hear({b"": min(tenth + 1, 500)}, 1, tenth * SECOND // 10)
    heard = [mark.ts for mark in marks(tmp_path) if mark.kind is MarkKind.HEARD]
    assert 50 <= len(heard) <= 52 + 5
    assert all(later - before >= SECOND for before, later in zip(heard[1:], heard[2:], strict=False))


def test_sequences_ahead_of_the_other_line_are_not_marked(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.put(block(0, 1, 0))
        journal.hear({b"": 9}, 1, 20 * SECOND, held=1)
    assert "HEARD" not in kinds(tmp_path)


@pytest.mark.parametrize("by_block", [True, False])
def test_an_epoch_begins_even_if_the_clock_was_set_back(tmp_path: Path, by_block: bool) -> None:
    with Journal(tmp_path) as journal:
        journal.put(block(0, 1, 0, epoch=5))
        journal.hear({b"": 1}, 5, SECOND, flags=FLAG_END)
        if by_block:
            journal.put(block(0, 1, 2 * SECOND, epoch=4))
        journal.hear({b"": 1}, 4, 20 * SECOND)
        journal.hear({b"": 1}, 4, 40 * SECOND, flags=FLAG_END)
    about = [(mark.kind.name, mark.epoch) for mark in marks(tmp_path) if "E" in mark.kind.name[:1] or mark.kind == 7]
    expected = [("EPOCH_BEGIN", 5), ("EPOCH_END", 5), ("EPOCH_BEGIN", 4), ("HEARD", 4), ("EPOCH_END", 4)]
    assert about == expected


def test_messages_before_the_recorder_are_counted_and_not_a_gap(tmp_path: Path) -> None:
    with Journal(tmp_path, key_bytes=1) as journal:
        journal.put(block(7, 3, 0, topic=b"A"))
        journal.put(block(10, 2, 0, topic=b"B"))
        journal.hear({b"A": (10, 4), b"B": (12, 2)}, 1, SECOND)
        journal.put(block(2, 1, 0, epoch=2, topic=b"A"))
        journal.hear({b"A": (5, 5)}, 3, 2 * SECOND)
        journal.put(block(5, 1, 0, epoch=3, topic=b"A"))
    assert journal.writer.state.unheard == 7 + 2 + 5
    examined = Recording.open(tmp_path).examine()
    assert (examined.damage, examined.gaps) == ([], [])


def test_the_recorded_position_continues_on_the_next_day(tmp_path: Path) -> None:
    first, second = (tmp_path / name for name in ("2026-11-20", "2026-11-21"))
    Day(second, feed_of(key_bytes=1))
    journal = Journal(first, key_bytes=1)
    journal.writer._day_of, journal.writer.state.day_end = lambda _: (second, FOREVER), 10 * SECOND
    journal.put(block(0, 3, 0, topic=b"A"))
    journal.hear({b"A": 3}, 1, SECOND)
    assert journal.writer.position() == (1, 0, 3, NOTHING_MISSING)

    def is_switched() -> bool:
        journal.writer.tend()
        return journal.writer.state.switches > 0

    thread = threading.Thread(target=wait_until, args=[is_switched])
    thread.start()
    journal.put(block(3, 2, 11 * SECOND, topic=b"B"))
    thread.join()
    journal.hear({b"A": (3, 3), b"B": (5, 2)}, 1, 12 * SECOND)
    assert journal.writer.position() == (1, 0, 5, NOTHING_MISSING)
    journal.hear({b"A": (3, 3), b"B": (6, 3)}, 1, 13 * SECOND)
    assert journal.writer.position() == (1, 0, 5, 5)
    journal.writer.close()
    assert journal.writer.state.unheard == 0
    assert "EPOCH_BEGIN" in kinds(second)
    assert [mark.keys for mark in marks(second) if mark.keys] == [{b"A": (3, 3), b"B": (6, 3)}]


@pytest.mark.parametrize("has_messages", [False, True])
def test_a_day_that_ends_with_an_empty_segment_is_not_damaged(tmp_path: Path, has_messages: bool) -> None:
    """Either nothing was received, or the next segment was begun just before midnight."""
    first, second = (tmp_path / name for name in ("2026-11-20", "2026-11-21"))
    Day(second, feed_of())
    journal, midnight = Journal(first), 10 * SECOND
    writer = journal.writer
    writer._day_of = lambda now_ns: (first, midnight) if now_ns < midnight else (second, FOREVER)
    writer.state.day_end = midnight
    if has_messages:
        journal.put(Put((Row(b"A", bytes(1 << 20)),)))
        journal.put(block(1))
        writer.tend()
        assert writer.state.next_ready

    def is_next_day() -> bool:
        if writer.state.wanted == Wanted.NEW_DAY:
            writer.tend()
        return writer.state.next_is_new_day == 1

    thread = threading.Thread(target=wait_until, args=[is_next_day])
    thread.start()
    journal.put(block(2, 1, 11 * SECOND))
    thread.join()
    journal.rest()
    writer._sync(what_is_written=False)  # the keeper has not noticed yet that the segment is another one
    writer.sync(what_is_written=False)
    assert what_is_wrong(first) == what_is_wrong(second) == []
    writer.close()
    assert what_is_wrong(first) == what_is_wrong(second) == []
    assert [read_closed(day).get(0, ClosedSlice()).segments for day in (first, second)] == [has_messages, 1]


def test_a_second_recorder_continues_totals_and_chain(tmp_path: Path) -> None:
    """It marks that the one before was killed."""
    for number in range(2):
        record(tmp_path, block(number, 1, number))
    with killed_journal(tmp_path, block(2)):
        record(tmp_path, block(3))
        begins = [mark for mark in marks(tmp_path) if mark.kind is MarkKind.RECORDER_BEGIN]
        assert [(mark.totals.records, mark.flags) for mark in begins] == [(0, 0), (1, 0), (2, 0), (3, AFTER_KILL)]
        assert Recording.open(tmp_path).verify() == []
        assert read_closed(tmp_path)[0].records == 4


def record(path: Path, *puts: Put) -> None:
    with Journal(path) as journal:
        for put in puts:
            journal.put(put)


@contextmanager
def killed_journal(path: Path, *puts: Put) -> Iterator[Path]:
    """Yield the segment of a recorder that writes its buffer, but never closes."""
    killed = Journal(path)
    for put in puts:
        killed.put(put)
    killed.rest()
    killed.writer.sync(what_is_written=False)
    yield max(path.glob("slice-*/*.journal"))
    killed.writer.refuse()
    killed.writer.close()


def closed_day(path: Path, segments: int = 3, puts: int = 4) -> list[Segment]:
    """Write a slice of several segments with marks, and its `closed.json`."""
    day = Day(path, feed_of())
    made = []
    for number in range(segments):
        first = number * puts
        made.append(day.put(0, *(block(first + i, 1, first + i) for i in range(puts)), index=False))
        made[-1].close()
        made[-1].write_index()
    totals = day.totals[0]
    note_closed(path, 0, Totals(totals.records, totals.messages, totals.marks, totals.chain), segments)
    assert what_is_wrong(path) == []
    return made


def what_is_wrong(path: Path) -> list[str]:
    return [damage.what for damage in Recording.open(path).verify()]


def index_of(segment: Segment) -> Path:
    return segment.path.with_suffix(".index")


def remove(segment: Segment) -> None:
    segment.path.unlink()
    index_of(segment).unlink()


def replace_record(segment: Segment, number: int, *by: tuple[Segment, int]) -> None:
    """Replace a record by others, and remove the index."""
    start, stop = segment.places[number]
    data = segment.path.read_bytes()
    others = b"".join(other.path.read_bytes()[slice(*other.places[place])] for other, place in by)
    segment.path.write_bytes(data[:start] + others + data[stop:])
    index_of(segment).unlink()


def flip_unindexed(segment: Segment, offset: int) -> None:
    flip(segment.path, offset)
    index_of(segment).unlink()


def cut(segment: Segment, number: int) -> None:
    """Cut a segment after a record, and remove the index."""
    os.truncate(segment.path, segment.places[number][1])
    index_of(segment).unlink()


REPEATED = "these messages are recorded twice"


@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (lambda s: replace_record(s[1], 2), ["records are missing before this offset: 7 found, 8"]),
        (lambda s: replace_record(s[0], 1, (s[2], 1)), ["the records before this offset differ from", REPEATED]),
        (lambda s: replace_record(s[0], 1, (s[2], 1), (s[0], 1)), ["too many records before this offset: 5", REPEATED]),
        (lambda s: remove(s[2]), ["missing: 3 segments had been begun", "slice 0 held 12 records of 12 messages when"]),
        (lambda s: remove(s[1]), ["1 segment missing, from this one", "records are missing before this offset: 4"]),
        (lambda s: [*map(remove, s)], ["missing: 3 segments had been begun", "slice 0 held 12 records of 12 messages"]),
        (lambda s: cut(s[0], 2), ["records are missing before this offset: 3 found"]),
        (lambda s: cut(s[2], 2), ["slice 0 held 12 records of 12 messages when it was closed"]),
        (lambda s: flip(s[1].path, 70), ["the segment does not begin with a SEGMENT_BEGIN mark", NO_GOOD_RECORD]),
        (lambda s: flip(s[1].path, 110), ["the segment does not begin with a SEGMENT_BEGIN mark", NO_GOOD_RECORD]),
        (lambda s: flip(s[2].path, -60), [NO_GOOD_RECORD]),
        (lambda s: flip_unindexed(s[2], -60), ["torn tail: no whole record"]),
        (lambda s: s[0].path.parents[1].joinpath("closed.json").write_bytes(b"{"), ["closed.json is damaged"]),
    ],
)
def test_harm_to_a_closed_day_is_detected(
    tmp_path: Path, harm: Callable[[list[Segment]], object], expected: list[str]
) -> None:
    segments = closed_day(tmp_path)
    harm(segments)
    found = what_is_wrong(tmp_path)
    assert len(found) == len(expected), found
    assert all(any(text in what for what in found) for text in expected), found


def test_a_record_copied_after_the_last_mark_is_detected(tmp_path: Path) -> None:
    with killed_journal(tmp_path, *(block(4 * number, 4) for number in range(3))) as path:
        records, _, _ = read_segment(path)
        data = path.read_bytes()
        assert what_is_wrong(tmp_path) == []
        path.write_bytes(data + data[records[-1].start : records[-1].stop])
        (damage,) = Recording.open(tmp_path).verify()
        assert (damage.what, damage.offset, damage.messages) == (REPEATED, len(data), 4)


@pytest.mark.parametrize("count", [1, 3])
def test_a_lost_last_segment_of_a_killed_recorder_is_detected(tmp_path: Path, count: int) -> None:
    with ExitStack() as stack:
        paths = [stack.enter_context(killed_journal(tmp_path, block(number))) for number in range(count)]
        path = paths[-1]
        assert what_is_wrong(tmp_path) == []
        path.unlink()
        path.with_suffix(".index").unlink()
        (damage,) = Recording.open(tmp_path).damage
        assert (damage.path, damage.what) == (path, f"missing: {count} segments had been begun")


def test_a_segment_removed_by_recovery_is_not_reported(tmp_path: Path) -> None:
    with killed_journal(tmp_path, block(0)) as path:
        path.write_bytes(path.read_bytes()[:70])
        assert recover_day(tmp_path) == 6
        assert not path.exists()
        assert what_is_wrong(tmp_path) == []


@pytest.mark.parametrize(
    "changes",
    [
        *({name: 99} for name in ("min_ts_event", "keys", "max_sequence", "messages", "epoch", "records", "marks")),
        {"records": 0, "marks": 6},
    ],
)
def test_an_index_with_wrong_values_is_detected(tmp_path: Path, changes: dict[str, int]) -> None:
    (segment,) = closed_day(tmp_path, 1)
    data = bytearray(index_of(segment).read_bytes())
    entry = numpy.frombuffer(data, ENTRY, 1, FILE_HEAD_BYTES)
    for name, value in changes.items():
        entry[name] = value
    data[-4:] = struct.pack("<I", wire.checksum(bytes(data[FILE_HEAD_BYTES:-4])))
    index_of(segment).write_bytes(data)
    assert what_is_wrong(tmp_path) == ["the index entry does not match its records"]


def test_a_full_segment_ends_with_a_mark_and_the_next_continues(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        for i in range(40):
            journal.put(Put((Row(b"A", bytes(60_000)),), i, i, i))
            journal.writer.tend()
            journal.writer.sync(what_is_written=False)
    paths = sorted(tmp_path.glob("slice-*/*.journal"))
    assert [int(path.stem) for path in paths] == [0, 1, 2]
    assert all(path.stat().st_size >= 1 << 20 for path in paths[:-1])
    for path in paths:
        records, found, torn = read_segment(path)
        assert (found[0].kind, found[-1].kind, torn) == (MarkKind.SEGMENT_BEGIN, MarkKind.SEGMENT_END, 0)
        assert found[-1].start > records[-1].start
        check_index(path)
    assert Recording.open(tmp_path).verify() == []


def test_a_mark_whose_body_is_too_short_for_its_keys_is_reported(tmp_path: Path) -> None:
    segment = Day(tmp_path, feed_of()).segment()
    segment.append(block(0))
    body = struct.pack("<7i", 0, 0, 1, *bytes(4))
    fields = {"kind": MarkKind.HEARD, "names": 1, "stored_bytes": len(body), "stored_checksum": wire.checksum(body)}
    with segment.path.open("ab") as file:
        file.write(sealed(MARK, **asdict(segment.totals), **fields) + body + bytes(-(MARK.size + len(body)) % 32))
    assert "HEARD" not in kinds(tmp_path)
    assert what_is_wrong(tmp_path) == ["the mark here does not match its checksum"]


def test_data_recorded_after_opening_is_not_reported_as_damage(tmp_path: Path) -> None:
    record(tmp_path, block(0, 3))
    opened = Recording.open(tmp_path)
    record(tmp_path, block(3, 2))
    assert opened.verify() == []
    opened.refresh()
    assert opened.verify() == Recording.open(tmp_path).verify() == []


def test_threads_that_close_slices_of_a_day_at_the_same_time_lose_no_entry(tmp_path: Path) -> None:
    def close(slice_id: int) -> None:
        note_segments(tmp_path, slice_id, 1)
        note_closed(tmp_path, slice_id, Totals(1, 1, 1, 1), 1)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(close, range(200)))
    assert [each.records for each in read_closed(tmp_path).values()] == [1] * 200


def test_a_failed_write_of_the_end_is_not_marked_as_closed(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.put(Put((Row(b"A", bytes(100_000)),), 0, 0, 0))
    journal.rest()
    (path,) = tmp_path.glob("slice-*/*.journal")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    journal.put(block(1, 5))
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, hard))
    try:
        journal.writer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    state = journal.writer.state
    assert (state.error, state.messages, state.lost) == (errno.EFBIG, 1, 5)
    assert read_closed(tmp_path)[0].totals is None
    assert Recording.open(tmp_path).verify() == []
    record(tmp_path, block(6, 1))
    assert Recording.open(tmp_path).verify() == []
    assert [mark.flags for mark in marks(tmp_path) if mark.kind is MarkKind.RECORDER_BEGIN] == [0, AFTER_KILL]
