"""The byte layout of a recording, its compression and notes, and a stored recording that must stay readable."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import xxhash

from blackbox import Feed, Publisher, Recording
from blackbox.archive.files import codec as codecs
from blackbox.archive.files.format import ENTRY_SPAN_BYTES, OFFSET_BLOCK_HEADER, MarkKind
from blackbox.archive.files.marks import Mark, places_of_marks, read_mark
from blackbox.errors import JournalError
from blackbox.publish.send.ring import MAX_NOTE_BYTES
from tests import golden, journals, wire
from tests.archive.written_days import told
from tests.archive.written_journals import Journal, block
from tests.damaged import flip
from tests.journals import Day, Put, Row, check_index, feed_of


def test_records_written_by_hand_are_read_field_by_field(tmp_path: Path) -> None:
    put = Put(
        (Row(b"AB.x", b"1", -5), Row(b"AB.y", b"23", 7)),
        sequence=11,
        ts_out=12,
        ts_recv=13,
        epoch=2**63 - 3,
        first_row=1,
        schema=9,
        flags=wire.CHECKSUM | wire.LINE_B,
    )
    Day(tmp_path, feed_of(2)).put(1, put)
    (run,) = Recording.open(tmp_path).runs()
    header, body = put.block(1)
    head = run.heads[0]
    seen = {name: head[name] for name in ("ts_recv", "first_row", "codec", "schema", "slice", "count", "sequence")}
    assert seen == {"ts_recv": 13, "first_row": 1, "codec": 0, "schema": 9, "slice": 1, "count": 2, "sequence": 11}
    assert (head["epoch"], head["ts_out"], head["stored_bytes"]) == (2**63 - 3, 12, len(body))
    assert head["stored_checksum"] == xxhash.xxh3_64_intdigest(body) & 0xFFFFFFFF
    assert head.tobytes()[OFFSET_BLOCK_HEADER:] == header
    assert head.tobytes()[:4] == b"BREC"


def test_an_index_made_of_the_records_equals_a_slow_one(tmp_path: Path) -> None:
    rows = (Row(b"AB.x", bytes(30_000), 5), Row(b"AC.x", b"", -9), Row(b"AB.y", b"z", 3))
    puts = [
        Put((rows[i % 3],), sequence=i, ts_out=100 - i, ts_recv=i * i, epoch=1 + i // 7, codec=i % 3) for i in range(40)
    ]
    segment = Day(tmp_path, feed_of(key_bytes=2)).put(0, *puts, index=False)
    ((_, (indexed,)),) = Recording.open(tmp_path).segments.of()
    found = indexed.entries
    assert journals.SPAN == ENTRY_SPAN_BYTES
    assert len(found) > 5
    assert found.tobytes() == b"".join(segment.entries())


def test_the_golden_recording_still_reads(tmp_path: Path) -> None:
    recording = Recording.open(golden.RECORDING)
    assert told(recording.batches()) == golden.write_recording(tmp_path)
    assert (recording.verify(), recording.gaps()[1:]) == ([], [])
    assert (recording.feed.name, recording.feed.key_bytes, str(recording.date)) == ("recorded", 2, "2026-11-20")


@pytest.mark.parametrize(("codec", "module", "indexed"), [(1, "lz4.block", True), (2, "zstandard", False)])
def test_a_missing_codec_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: int, module: str, indexed: bool
) -> None:
    Day(tmp_path, feed_of()).put(0, Put((Row(b"A", b"x"),), codec=codec), index=indexed)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(JournalError, match=r"pip install 'blackbox-md\[compression\]'"):
        list(Recording.open(tmp_path).batches())


@pytest.mark.parametrize("name", list(codecs.CODECS))
def test_a_body_of_another_size_is_rejected(name: str) -> None:
    packed = codecs.compress(name, b"data")
    assert codecs.decompress(codecs.CODECS[name], packed, 4).tobytes() == b"data"
    with pytest.raises(JournalError, match="expected|unpack"):
        codecs.decompress(codecs.CODECS[name], packed, 5)


def test_an_unknown_codec_is_rejected() -> None:
    with pytest.raises(JournalError, match="compression was 'gzip', expected one of: none, lz4, zstd"):
        codecs.compress("gzip", b"")
    with pytest.raises(JournalError, match="the codec of a body was 3"):
        codecs.decompress(3, b"", 0)


SECOND = 10**9


def notes(day: Path) -> list[Mark]:
    """Return the notes of a day, in order."""
    found = []
    for _, segments in Recording.open(day).segments.of():
        for segment in segments:
            found += [read_mark(segment, place) for place in places_of_marks(segment, are_notes=True).tolist()]
    assert None not in found
    return [mark for mark in found if mark is not None]


def test_a_note_and_its_block_are_one_write(tmp_path: Path) -> None:
    with Journal(tmp_path, is_outbox=True) as journal:
        journal.put(block(0))
        before = journal.writer.state.writes
        journal.note(b"note", SECOND)
        assert journal.writer.state.writes == before
        journal.put(block(1))
        assert journal.writer.state.writes == before + 1
        journal.note(b"alone", SECOND, is_alone=True)
        assert journal.writer.state.writes == before + 2


def test_notes_of_any_size_precede_their_blocks_and_damage_is_reported(tmp_path: Path) -> None:
    bodies = [bytes(size) + b"end" for size in (0, 1, 28, 29, 30, 700_000)]
    with Journal(tmp_path, is_outbox=True) as journal:
        for number, body in enumerate(bodies):
            journal.note(body, (number + 1) * SECOND, number)
            journal.put(block(number, 1, (number + 1) * SECOND))
    (segment,) = tmp_path.glob("slice-*/*.journal")
    check_index(segment)
    for _ in range(2):
        assert [(note.note, note.sequence) for note in notes(tmp_path)] == [(body, n) for n, body in enumerate(bodies)]
        day = Recording.open(tmp_path)
        assert MarkKind.NOTE not in [mark.kind for mark in day.marks()]
        assert [int(batch.sequence[0]) for batch in day.batches()] == list(range(len(bodies)))
        assert day.verify() == []
        segment.with_suffix(".index").unlink(missing_ok=True)  # it is rebuilt with its notes
    flip(segment, b"end")
    (damage,) = Recording.open(tmp_path).verify()
    assert "the note here does not match its checksum" in str(damage)


def test_a_publisher_puts_notes_up_to_the_limit_next_to_what_it_publishes(tmp_path: Path) -> None:
    feed, largest = Feed.local("tape", 1), bytes(MAX_NOTE_BYTES)
    with Publisher(feed, outbox=tmp_path) as publisher:
        for number in range(20):
            publisher._running()[0].ring.put_note(b"note%d" % number, is_alone=False)
            publisher.publish(b"A", b"%d" % number)
        for _ in range(6):  # more than the publisher's queue has room for
            publisher._running()[0].ring.put_note(largest, is_alone=True)
        with pytest.raises(ValueError, match=f"note had {MAX_NOTE_BYTES + 1} bytes, expected at most {MAX_NOTE_BYTES}"):
            publisher._running()[0].ring.put_note(largest + b"0", is_alone=True)
    (manifest,) = (tmp_path / feed.name).glob("*/manifest.json")
    found = notes(manifest.parent)
    assert [note.note for note in found] == [*(b"note%d" % number for number in range(20)), *[largest] * 6]
    assert [note.sequence for note in found] == [*range(20), *[20] * 6]
    assert Recording.open(manifest.parent).verify() == []
