"""Damage one file of a recorded day: no wrong message is read, and missing or repeated messages are reported."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple

from blackbox import Recording
from blackbox.archive.files.closed import note_closed
from blackbox.archive.files.marks import Totals
from blackbox.archive.maintain.manifest_repair import repair
from blackbox.errors import JournalError
from tests.journals import Day, Put, Row, feed_of
from tests.torture.outcome import Outcome

Message = tuple[int, int, int, bytes, bytes]
"""Slice, epoch, sequence number, topic, payload."""


class Made(NamedTuple):
    """A day as written."""

    messages: list[Message]
    files: dict[Path, bytes]
    """Contents by path within the day."""


def attack(random: Random, seconds: float) -> Outcome:
    """Damage a file of a fresh day, read the day in every way and compare."""
    outcome = Outcome(0, "damaged files")
    deadline = time.monotonic() + seconds
    with TemporaryDirectory() as directory:
        day = Path(directory, "recorded", "2026-11-20")
        made = _make(random, day)
        while outcome.tried == 0 or time.monotonic() < deadline:
            for name, data in made.files.items():
                (day / name).write_bytes(data)
            (day / "manifest.json.damaged").unlink(missing_ok=True)
            name = random.choice(list(made.files))
            what = _damage(random, day / name, made.files[name])
            outcome.tried += 1
            outcome.found += [f"{name}, {what}: {wrong}" for wrong in _wrong(day, name, made)]
    return outcome


def _make(random: Random, path: Path) -> Made:
    """Write a recorded day of two slices and several segments; the recorder of one slice was killed."""
    day = Day(path, feed_of(2))
    for slice_id, segments in ((0, 3), (1, 2)):
        sequence = 0
        topic = next(b"%c.t" % letter for letter in range(65, 91) if day.feed.slice_of(b"%c.t" % letter) == slice_id)
        for number in range(segments):
            segment = day.segment(slice_id)
            for _ in range(random.randrange(2, 12)):
                rows = tuple(
                    Row(topic, random.randbytes(random.randrange(300)), sequence + i)
                    for i in range(random.randrange(1, 5))
                )
                segment.append(Put(rows, sequence, sequence, sequence, codec=random.randrange(3)))
                sequence += len(rows)
            if slice_id == 0 or number < segments - 1:
                segment.close()
                totals = day.totals[slice_id]
                noted = Totals(totals.records, totals.messages, totals.marks, totals.chain)
                note_closed(path, slice_id, noted, segments)
            segment.write_index()
    recording = Recording.open(path)
    found = recording.verify() or recording.gaps()
    assert not found, found
    files = {each.relative_to(path): each.read_bytes() for each in sorted(path.rglob("*")) if each.is_file()}
    return Made(_read(recording), files)


def _damage(random: Random, path: Path, data: bytes) -> str:
    """Damage a file in one way; return a description."""
    place, other = sorted((random.randrange(len(data)), random.randrange(len(data))))
    changed = bytearray(data)
    way = random.choice(("a bit", "a cut", "zeros", "a copied part", "a deleted part", "removed", "emptied", "junk"))
    if way == "a bit":
        changed[place] ^= 1 << random.randrange(8)
    elif way == "a cut":
        del changed[place:]
    elif way == "zeros":
        changed[place:other] = bytes(other - place)
    elif way == "a copied part":
        start, stop = place // 32 * 32, other // 32 * 32
        target = random.randrange(len(data) // 32 + 1) * 32
        changed[target:target] = data[start:stop]
    elif way == "a deleted part":
        del changed[place // 32 * 32 : other // 32 * 32]
    elif way == "emptied":
        changed.clear()
    elif way == "junk":
        changed[place:other] = random.randbytes(other - place)
    if way == "removed":
        path.unlink()
    else:
        path.write_bytes(changed)
    return f"{way} at {place} to {other}"


def _wrong(day: Path, name: Path, made: Made) -> list[str]:
    """Read the damaged day in every way; return the defects."""
    try:
        recording = Recording.open(day)
    except JournalError:
        if name.name != "manifest.json":
            return []
        repair(day, feed_of(2))
        recording = Recording.open(day)
        return [] if _read(recording) == made.messages else ["the repaired day has different messages"]
    read = _read(recording)
    damage, gaps, _ = recording.examine()
    written, found = Counter(made.messages), Counter(read)
    wrong = []
    if set(found) - set(written):
        wrong.append("a message was read that was never written")
    if found != written and not damage and not gaps:
        wrong.append(f"{len(read)} of {len(made.messages)} messages were read without a report")
    if (day / name).suffix == ".index" and found != written:
        wrong.append("messages were lost because of a damaged index")
    return wrong


def _read(recording: Recording) -> list[Message]:
    return [
        (batch.block.slice_id, batch.block.epoch, sequence, message.topic, message.payload)
        for batch in recording.batches()
        for message, sequence in zip(batch, batch.sequence.tolist(), strict=True)
    ]
