"""Notes of a publisher in its journal, next to its blocks. Readers of messages and other marks skip them."""

from __future__ import annotations

from pathlib import Path

import pytest

from blackbox import Publisher, Recording
from blackbox.archive.files.format import MarkKind
from blackbox.archive.files.marks import Mark, places_of_marks, read_mark
from blackbox.publish.send.ring import MAX_NOTE_BYTES
from tests.archive.recorders import feed_of
from tests.archive.written_journals import Journal, block
from tests.journals import check_index

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


def test_notes_of_any_size_precede_their_blocks_and_damage_is_reported(tmp_path: Path) -> None:
    journal, bodies = Journal(tmp_path, is_outbox=True), [bytes(size) + b"end" for size in (0, 1, 28, 29, 30, 700_000)]
    for number, body in enumerate(bodies):
        journal.note(body, (number + 1) * SECOND, number)
        journal.put(block(number, 1, (number + 1) * SECOND))
    journal.writer.close()
    (segment,) = tmp_path.glob("slice-*/*.journal")
    check_index(segment)
    for _ in range(2):
        assert [(note.note, note.sequence) for note in notes(tmp_path)] == [(body, n) for n, body in enumerate(bodies)]
        day = Recording.open(tmp_path)
        assert MarkKind.NOTE not in [mark.kind for mark in day.marks()]
        assert [int(batch.sequence[0]) for batch in day.batches()] == list(range(len(bodies)))
        assert day.verify() == []
        segment.with_suffix(".index").unlink(missing_ok=True)  # it is rebuilt with its notes
    data = bytearray(segment.read_bytes())
    data[data.index(b"end")] ^= 1
    segment.write_bytes(data)
    (damage,) = Recording.open(tmp_path).verify()
    assert "the note here does not match its checksum" in str(damage)


def test_a_publisher_puts_notes_up_to_the_limit_next_to_what_it_publishes(tmp_path: Path) -> None:
    feed, largest = feed_of(), bytes(MAX_NOTE_BYTES)
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
