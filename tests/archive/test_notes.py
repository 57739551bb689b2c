"""Notes of a publisher in its journal, next to its blocks. Readers of messages and other marks skip them."""

from __future__ import annotations

from pathlib import Path

import pytest

from blackbox import Publisher, Recording
from blackbox.archive.marks import Mark, MarkKind, places_of_marks, read_mark
from blackbox.publish.ring import MAX_NOTE_BYTES
from tests.archive.recorders import feed_of
from tests.archive.written_journals import Journal, block
from tests.journals import check_index

SECOND = 10**9


def notes(day: Path) -> list[Mark]:
    """Return the notes of a day, in order."""
    found = []
    for _, segments in Recording.open(day)._segments_of():
        for segment in segments:
            found += [read_mark(segment, place) for place in places_of_marks(segment, are_notes=True).tolist()]
    assert None not in found
    return [mark for mark in found if mark is not None]


def write(day: Path, count: int = 50, body: bytes = b"note") -> Path:
    """Write a note before each of `count` blocks; return the segment."""
    journal = Journal(day, is_outbox=True)
    for number in range(count):
        journal.note(body + b"%d" % number, (number + 1) * SECOND, number)
        journal.put(block(number, 1, (number + 1) * SECOND))
    journal.writer.close()
    (segment,) = day.glob("slice-*/*.journal")
    return segment


def test_notes_precede_their_blocks_and_readers_skip_them(tmp_path: Path) -> None:
    segment = write(tmp_path)
    found = notes(tmp_path)
    assert [(note.note, note.sequence) for note in found] == [(b"note%d" % number, number) for number in range(50)]
    day = Recording.open(tmp_path)
    assert MarkKind.NOTE not in [mark.kind for mark in day.marks()]
    assert [int(batch.sequence[0]) for batch in day.batches()] == list(range(50))
    assert day.verify() == []
    check_index(segment)


def test_a_note_and_its_block_are_one_write(tmp_path: Path) -> None:
    journal = Journal(tmp_path, is_outbox=True)
    journal.put(block(0))
    before = journal.writer.state.writes
    journal.note(b"note", SECOND)
    assert journal.writer.state.writes == before
    journal.put(block(1))
    assert journal.writer.state.writes == before + 1
    journal.note(b"alone", SECOND, is_alone=True)
    assert journal.writer.state.writes == before + 2
    journal.writer.close()


@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 700_000])
def test_notes_of_any_size_are_kept(tmp_path: Path, size: int) -> None:
    segment = write(tmp_path, 3, bytes(size))
    assert [note.note for note in notes(tmp_path)] == [bytes(size) + b"%d" % number for number in range(3)]
    assert Recording.open(tmp_path).verify() == []
    check_index(segment)


def test_a_lost_index_is_rebuilt_with_its_notes(tmp_path: Path) -> None:
    write(tmp_path).with_suffix(".index").unlink()
    assert len(notes(tmp_path)) == 50
    assert Recording.open(tmp_path).verify() == []


def test_a_damaged_note_is_reported(tmp_path: Path) -> None:
    segment = write(tmp_path)
    data = bytearray(segment.read_bytes())
    data[data.index(b"note7")] ^= 1
    segment.write_bytes(data)
    (damage,) = Recording.open(tmp_path).verify()
    assert "the note here does not match its checksum" in str(damage)


def test_a_publisher_puts_notes_next_to_what_it_publishes(tmp_path: Path) -> None:
    feed = feed_of()
    with Publisher(feed, outbox=tmp_path) as publisher:
        for number in range(20):
            publisher._note(0, b"note%d" % number, is_alone=False)
            publisher.publish(b"A", b"%d" % number)
        publisher._note(0, b"last", is_alone=True)
        publisher.flush()
    (manifest,) = (tmp_path / feed.name).glob("*/manifest.json")
    found = notes(manifest.parent)
    assert [note.note for note in found] == [*(b"note%d" % number for number in range(20)), b"last"]
    assert [note.sequence for note in found] == list(range(21))
    assert Recording.open(manifest.parent).verify() == []


def test_the_largest_note_is_kept_and_a_larger_one_rejected(tmp_path: Path) -> None:
    feed, largest = feed_of(), bytes(MAX_NOTE_BYTES)
    with Publisher(feed, outbox=tmp_path) as publisher:
        for _ in range(6):  # more than the publisher's queue has room for
            publisher._note(0, largest, is_alone=True)
        with pytest.raises(ValueError, match=f"note had {MAX_NOTE_BYTES + 1} bytes, expected at most {MAX_NOTE_BYTES}"):
            publisher._note(0, largest + b"0", is_alone=True)
    (manifest,) = (tmp_path / feed.name).glob("*/manifest.json")
    assert [note.note for note in notes(manifest.parent)] == [largest] * 6
