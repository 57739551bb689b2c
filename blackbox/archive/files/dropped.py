"""Sequences and topics of the messages that retention has dropped from days that are kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from blackbox.archive.files.day import read_document, write_document
from blackbox.block.position import Number, Position
from blackbox.documents import Decoder

_DROPPED: Final = "dropped.json"
_MOST_BYTES: Final = 1 << 30
_MOST_KNOWN: Final = 1_024
"""Answers that are remembered."""
_NONE: Final = Position(-1, -1)

Sequences = tuple[int, int, int]
"""Epoch, first sequence, and the sequence after the last one."""


class DroppedSlice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages of a slice that were dropped."""

    had: list[Sequences] = []
    """Ranges that days had before messages were dropped, in order. All messages missing from these were dropped."""
    topics: list[tuple[bytes, Position]] = []
    """The last dropped message of each topic that has one. All earlier messages of the topic are dropped, too."""

    def joined(self, had: Iterable[Sequences], topics: dict[bytes, Position], deleted: Position) -> DroppedSlice:
        """Return this with what was dropped in addition, but for what is before the end of deleted days."""
        ranges: list[Sequences] = []
        for epoch, first, stop in sorted([*self.had, *had]):
            if ranges and ranges[-1][0] == epoch and first <= ranges[-1][2]:
                ranges[-1] = epoch, ranges[-1][1], max(stop, ranges[-1][2])
            else:
                ranges.append((epoch, first, stop))
        last = dict(self.topics)
        for topic, position in topics.items():
            last[topic] = max(position, last.get(topic, position))
        return DroppedSlice(
            [each for each in ranges if (each[0], each[2]) > deleted],
            [(topic, position) for topic, position in sorted(last.items()) if position > deleted],
        )


class Dropped(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages that were dropped from the days of a feed, as noted in `dropped.json` in its directory."""

    through: str = ""
    """The last day that messages were dropped from; empty: none."""
    rule: tuple[int | None, bool] = (None, False)
    """`messages_per_topic` and `only_wanted` of the `Retention` that held then."""
    slices: dict[Number, DroppedSlice] = {}

    @classmethod
    def read(cls, directory: Path) -> Dropped:
        """Return what is noted in a feed's directory. Raises JournalError when that cannot be read."""
        return read_document(directory / _DROPPED, _DECODER, _MOST_BYTES) or cls()

    def joined(
        self,
        dropped: Mapping[int, tuple[list[Sequences], dict[bytes, Position]]],
        deleted: Mapping[int, list[Position]],
    ) -> Dropped:
        """Return this with what was dropped in addition, see `DroppedSlice`. `deleted`: as of `Deleted`."""
        slices = dict(self.slices)
        for slice_id, (had, topics) in dropped.items():
            end = max(deleted.get(slice_id, []), default=_NONE)
            slices[slice_id] = slices.get(slice_id, DroppedSlice()).joined(had, topics, end)
        return msgspec.structs.replace(self, slices=slices)

    def write(self, directory: Path) -> None:
        """Note it durably. Raises OSError."""
        write_document(directory / _DROPPED, self)


_DECODER: Final = Decoder[Dropped]("json", Dropped, _MOST_BYTES)


class DroppedMessages:
    """Answers for readers of one feed's days which missing messages were dropped. Not thread-safe."""

    def __init__(self, directory: Path) -> None:
        """`directory`: the feed's."""
        self._directory = directory
        self._read: tuple[int, ...] = ()
        self._dropped = Dropped()
        self._last: dict[tuple[int, tuple[bytes, ...]], Position] = {}

    def were_dropped(self, slice_id: int, first: Position, stop: int) -> bool:
        """Return True if each message from a position to before a sequence was dropped."""
        had = self._fresh().slices.get(slice_id, DroppedSlice()).had
        return any(epoch == first.epoch and begin <= first.sequence and stop <= end for epoch, begin, end in had)

    def has(self, slice_id: int, first: Position, prefixes: tuple[bytes, ...]) -> bool:
        """Return True if a message from a position on was dropped whose topic begins with one of some prefixes."""
        dropped, asked = self._fresh(), (slice_id, prefixes)
        if asked not in self._last:
            if len(self._last) == _MOST_KNOWN:
                self._last.clear()
            topics = dropped.slices.get(slice_id, DroppedSlice()).topics
            self._last[asked] = max((last for topic, last in topics if topic.startswith(prefixes)), default=_NONE)
        return first <= self._last[asked]

    def _fresh(self) -> Dropped:
        """Return what the file says now: it is replaced before messages are dropped."""
        try:
            status = (self._directory / _DROPPED).stat()
        except FileNotFoundError:
            return self._dropped
        if (now := (status.st_ino, status.st_mtime_ns, status.st_size)) != self._read:
            self._dropped, self._read = Dropped.read(self._directory), now
            self._last.clear()
        return self._dropped
