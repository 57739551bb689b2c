"""The disk of a simulated hub of two: days with notes and blocks, and their remains after a kill or a power cut."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy

from blackbox.archive.files.format import FILE_HEAD_BYTES
from blackbox.errors import JournalError
from blackbox.feed.feed import Feed
from blackbox.services.hub.pair.entries import TooFarBehindError, part_of
from blackbox.services.hub.pair.protocol import Entry, Kept
from blackbox.services.hub.server.history import Copy, History, Part, _End, _Place
from blackbox.services.hub.server.notes import HEAD, JUDGED, Notes, head_of
from blackbox.services.hub.server.revisions import Revision

_MOST_ENTRIES = 3
"""Most entries sent to a peer at once."""


class SimBlock(NamedTuple):
    """A block: messages with consecutive sequences. Without messages, it is a mark of where a segment begins."""

    epoch: int
    sequence: int
    messages: tuple[tuple[bytes, bytes | None], ...]

    @property
    def end(self) -> int:
        return self.sequence + len(self.messages)


class Segment:
    """Records of one slice, day and process."""

    def __init__(self, day: int) -> None:
        self.day = day
        self.records: list[bytes | SimBlock] = []
        self.path = Path(f"day-{day}")


class Disk:
    """Files of a hub. `boot` is the epoch that was written since the system started; 0: unknown."""

    def __init__(self, feed: Feed, role: str) -> None:
        self.feed, self.today = feed, 1
        self.kept = Kept(role)  # type: ignore[arg-type]  # a role
        self.boot_epoch = self._epoch = 0
        self.has_lost_power = False
        self.slices: list[list[Segment]] = [[] for _ in feed.slices]
        self.synced = [0 for _ in feed.slices]
        """Records of each slice that are on the disk; the rest is in the page cache."""
        self.has_deleted = False
        self.deleted: set[tuple[int, int, int]] = set()

    def append(self, slice_id: int, record: bytes | SimBlock) -> None:
        segments = self.slices[slice_id]
        if segments[-1].day != self.today:
            self._begin_segment(slice_id)
        segments[-1].records.append(record)

    def open(self, epoch: int) -> None:
        self._epoch = epoch
        for slice_id in range(len(self.slices)):
            self._begin_segment(slice_id)

    def _begin_segment(self, slice_id: int) -> None:
        segment, following = Segment(self.today), self.reached(slice_id, self._epoch)
        segment.records.append(SimBlock(self._epoch, following, ()))
        self.slices[slice_id].append(segment)

    def day(self) -> int:
        return min(segments[-1].day for segments in self.slices)

    def sync(self, slice_id: int) -> None:
        self.synced[slice_id] = sum(len(each.records) for each in self.slices[slice_id])

    def cut_power(self, random: Random) -> None:
        """Lose some records that were not synced. Each slice loses a different number."""
        self.has_lost_power = True
        for segments, synced in zip(self.slices, self.synced, strict=True):
            records = sum(len(each.records) for each in segments)
            left = random.randint(synced, records) if random.random() < 0.7 else synced
            for segment in segments:
                del segment.records[left:]
                left = max(0, left - len(segment.records))
        self.note_sizes()

    def note_sizes(self) -> None:
        """Mark all remaining records as synced."""
        for slice_id in range(len(self.slices)):
            self.sync(slice_id)

    def delete_before(self, day: int) -> None:
        """Delete days before this one; the last day is kept."""
        for slice_id, segments in enumerate(self.slices):
            gone = [each for each in segments if each.day < day and each is not segments[-1]]
            self.has_deleted |= bool(gone)
            for segment in gone:
                self.synced[slice_id] = max(0, self.synced[slice_id] - len(segment.records))
                self.deleted.update(place for place, _ in _messages(slice_id, segment.records))
                segments.remove(segment)

    def newest_epoch(self) -> int:
        return max((block.epoch for _, block in self.blocks()), default=0)

    def reached(self, slice_id: int, epoch: int) -> int:
        """Return the next sequence of a slice in an epoch."""
        return max((block.end for each, block in self.blocks() if (each, block.epoch) == (slice_id, epoch)), default=0)

    def blocks(self) -> Iterator[tuple[int, SimBlock]]:
        for slice_id, segments in enumerate(self.slices):
            for segment in segments:
                yield from ((slice_id, each) for each in segment.records if isinstance(each, SimBlock))

    def messages(self) -> list[tuple[tuple[int, int, int], tuple[bytes, bytes | None]]]:
        """Return slice, epoch, sequence of each message, and the message."""
        return [
            found
            for slice_id, segments in enumerate(self.slices)
            for each in segments
            for found in _messages(slice_id, each.records)
        ]

    def newest_places(self) -> dict[bytes, Revision]:
        newest: dict[bytes, tuple[Revision, bool]] = {}
        for (_, *place), (topic, payload) in self.messages():
            revision = place[0], place[1]
            newest[topic] = max(newest.get(topic, (revision, payload is not None)), (revision, payload is not None))
        return {topic: revision for topic, (revision, has_value) in newest.items() if has_value}


def _messages(
    slice_id: int, records: list[bytes | SimBlock]
) -> Iterator[tuple[tuple[int, int, int], tuple[bytes, bytes | None]]]:
    for block in records:
        if isinstance(block, SimBlock):
            for offset, message in enumerate(block.messages):
                yield (slice_id, block.epoch, block.sequence + offset), message


class SimNotes(Notes):
    """Notes of a simulated segment."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment  # type: ignore[assignment]  # a simulated one
        at = [place for place, each in enumerate(segment.records) if isinstance(each, bytes)]
        heads = [segment.records[place][: HEAD.itemsize] for place in at]
        self.places = numpy.array(at, numpy.int64) + FILE_HEAD_BYTES
        self._take_heads(numpy.frombuffer(b"".join(heads), HEAD))  # type: ignore[arg-type]  # of notes

    def text(self, place: int) -> bytes:
        return self.segment.records[place - FILE_HEAD_BYTES]  # type: ignore[attr-defined,no-any-return]


class SimHistory(History):
    """The shipped reader of notes, on a simulated disk."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(Path("nowhere"), disk.feed)
        self._disk = disk

    def _back(self, slice_id: int) -> Iterator[Part]:
        for segment in reversed(self._disk.slices[slice_id]):
            yield Part(slice_id, segment, SimNotes(segment))  # type: ignore[arg-type]  # a simulated one

    def _stored_after(self, copy: Copy) -> Iterator[_Place]:
        records: list[bytes | SimBlock] = []
        for part in self._parts_after(copy):
            segment: Any = part.segment
            records += segment.records if part is not copy.part else segment.records[copy.place - FILE_HEAD_BYTES + 1 :]
        for record in records:
            if isinstance(record, bytes):
                return
            yield from (place for place, _ in _messages(copy.slice_id, [record]))

    def _cut(self, segment: Segment, size: int) -> None:  # type: ignore[override]  # a simulated one
        del segment.records[size - FILE_HEAD_BYTES :]

    def _topics(self, slice_id: int, after: int, wanted: dict[_Place, list[_End]]) -> list[bytes]:
        topics: dict[bytes, None] = {}
        number = 0
        for segment in self._disk.slices[slice_id]:
            for each in segment.records:
                if isinstance(each, bytes):
                    head = head_of(each)
                    number = int(head["number"]) if head["kind"] == JUDGED else number
                elif number > after:
                    for place, (topic, _) in _messages(slice_id, [each]):
                        topics[topic] = None
                        for end in wanted.get(place, ()):
                            end.topic = topic
        return list(topics)


class SimEntries:
    """Reads entries like `Entries`."""

    def __init__(self, disk: Disk, first: int) -> None:
        found: dict[int, dict[int, list[tuple[bytes, list[SimBlock]]]]] = {}
        for slice_id, segments in enumerate(disk.slices):
            blocks: list[SimBlock] = []
            for record in (record for segment in segments for record in segment.records):
                if isinstance(record, SimBlock):
                    blocks += [record] if record.messages else []
                else:
                    blocks = []
                    parts = found.setdefault(int(head_of(record)["number"]), {})
                    parts.setdefault(slice_id, []).append((record, blocks))
        self._entries = [entry_of(number, each) for number, each in sorted(found.items()) if number >= first]
        if not self._entries or self._entries[0].number != first:
            raise TooFarBehindError(f"no turn {first}")

    def take(self, most_bytes: int) -> list[Entry]:
        count = _MOST_ENTRIES if most_bytes else 1
        found, self._entries = self._entries[:count], self._entries[count:]
        return found


def entry_of(number: int, parts: dict[int, list[tuple[bytes, list[SimBlock]]]]) -> Entry:
    """Return an entry of notes and blocks by slice."""
    all_parts = [(slice_id, note, blocks) for slice_id, notes in sorted(parts.items()) for note, blocks in notes]
    epoch = max((block.epoch for _, _, blocks in all_parts for block in blocks), default=0)
    return Entry(
        number,
        epoch,
        [
            part_of(slice_id, blocks[0].sequence if blocks else 0, note, list(blocks))  # type: ignore[arg-type]  # simulated
            for slice_id, note, blocks in all_parts
        ],
    )


def check_epoch(disk: Disk, epoch: int) -> None:
    """Raise JournalError for an epoch before that of some block, as an outbox does."""
    if (newest := disk.newest_epoch()) > epoch:
        raise JournalError(f"outbox had epoch {newest}, expected {epoch}")
