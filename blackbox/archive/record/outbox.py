"""A publisher's outbox: each block is in a journal before it is sent, so that a killed publisher can continue.

In: the blocks of a publisher's senders. Out: days in the format of a recorder; at the next start the epoch and
sequences to continue, and the last blocks, to be sent again.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple, Unpack

import numpy
from numpy.typing import NDArray

from blackbox.archive.files.day import recorded_days, replace_file
from blackbox.archive.files.format import FILE_HEAD_BYTES, MarkKind
from blackbox.archive.files.marks import NAMES_LEFT_OUT, Totals, end_of, marks_of
from blackbox.archive.files.segment import Segment
from blackbox.archive.read.reader import RecordRun, Span, blocks_of, read_spans
from blackbox.archive.record.journals import Journals
from blackbox.archive.record.resumption import own_archive
from blackbox.archive.record.settings import JournalKeywords, JournalSettings
from blackbox.archive.recording import Recording
from blackbox.archive.serve.client import ArchiveClient
from blackbox.archive.serve.server import ArchiveStatistics
from blackbox.arguments import check_integers, duration_ns
from blackbox.block.form.block import Block
from blackbox.block.form.format import layout_of, read_header, sequence_of
from blackbox.block.position import End
from blackbox.errors import BlackBoxError, ConfigError, JournalError
from blackbox.feed.feed import Feed, with_archive
from blackbox.feed.routing.compiled_routing import find_key
from blackbox.feed.routing.key_rule import MAX_KEY_BYTES
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import int32s_at
from blackbox.native.tables.name_table import FULL, Numbering, NumberingAt, number_of
from blackbox.publish.send.outbox import OpenOutbox, OutboxSlice

log = logging.getLogger("blackbox")

_BOOT: Final = "boot"
"""File with the boot id of the system and the epoch written since that boot."""
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_ASK_S: Final = 0.5
_LONGEST_WAIT_S: Final = 1_000_000.0
_NOTHING: Final = -1


class Outbox:
    """Journal of a publisher: `Publisher(feed, outbox=Outbox("outbox"))`.

    A publisher that was killed continues its epoch with the next sequence. It sends the last blocks again if no archive
    of the feed has them. It begins a new epoch in three cases:

    - It was closed.
    - The system was restarted and blocks were not synced one by one, so the last ones may be missing here.
    - It has keys, was killed before the first heartbeat of a day, and earlier days were deleted. The ends of its keys
      are then unknown.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        again_bytes: int = 16 << 20,
        again_wait: float | timedelta = 1.0,
        epoch: int = 0,
        continues: bool = True,
        keeps_days: bool = False,
        **settings: Unpack[JournalKeywords],
    ) -> None:
        """Settings; nothing is opened before the publisher starts. Durations are seconds or `timedelta`.

        Args:
            directory: directory of the journal, with the format of a recording. Created if missing.
            again_bytes: maximum number of bytes to send again for each slice. Earlier blocks remain only in the outbox.
            again_wait: time that a start waits for subscribers if there are blocks to send again.
            epoch: epoch to continue even if some of its messages were lost here, because the caller has them.
            continues: False to begin another epoch, because the caller has found that messages were lost.
            keeps_days: True to delete no day until `delete_before` is called.
            settings: of the journals, see `JournalKeywords`.
        """
        check_integers(("again_bytes", again_bytes, 0, 1 << 40))
        self.directory = Path(directory)
        self.again_wait_s = duration_ns("again_wait", again_wait, 0, _LONGEST_WAIT_S) / 1e9
        self._again_bytes, self._keeps_days = again_bytes, keeps_days
        self._epoch, self._continues = epoch, continues
        self._settings = JournalSettings(**settings)
        self._journals: Journals | None = None

    def open(self, feed: Feed) -> OpenOutbox:
        """Lock the files and find the last published position.

        Raises JournalError naming file and reason if they cannot be opened or another publisher owns them; ConfigError,
        EndpointError, LimitError.
        """
        if self._journals is not None:
            raise JournalError(f"outbox {str(self.directory)!r} was used before, expected one for each publisher")
        # After a failure the next block fails, which ends the publisher.
        journals = Journals(feed, self.directory, self._settings, lambda: None, is_outbox=True)
        self._journals = journals
        try:
            journals.open()
            opened = self._open(journals, feed)
            if not self._keeps_days:
                journals.begin_deleting()
            return opened
        except BaseException as error:
            journals.close(lambda: True)
            if isinstance(error, OSError) and not isinstance(error, BlackBoxError):
                raise JournalError(f"outbox {str(self.directory)!r} cannot be read: {error}") from error
            raise

    def _open(self, journals: Journals, feed: Feed) -> OpenOutbox:
        before = _Before(feed, [Recording.open(day) for day in recorded_days(journals.directory)])
        slices, failure = range(len(feed.slices)), journals.failure
        if self._epoch and before.epoch > self._epoch:
            raise JournalError(f"outbox {str(self.directory)!r} had epoch {before.epoch}, expected {self._epoch}")
        note = _Note(journals.directory, self._epoch or before.epoch)
        is_whole = self._settings.fsync == "block" or note.is_there
        may_go_on = self._continues and is_whole and before.epoch and not before.is_ended
        goes_on = before.epoch == self._epoch if self._epoch else may_go_on
        found = [before.reached(each) if goes_on else _NOTHING_REACHED for each in slices]
        reached = [each or _NOTHING_REACHED for each in found]
        is_known = not before.is_damaged and None not in found  # `reached` finds damage
        again: list[list[Block]] = [[] for _ in slices]
        if self._epoch:
            epoch = self._epoch
            if goes_on and feed.key_rule and not is_known:
                raise JournalError(
                    f"outbox {str(self.directory)!r} lacks the end of some key in epoch {epoch}: "
                    f"blocks cannot be read or were deleted"
                )
        elif not goes_on or not is_known:  # the last sequence may be unreadable
            epoch, reached = max(time.time_ns(), before.epoch + 1), [_NOTHING_REACHED for _ in slices]
        else:
            epoch, held = before.epoch, self._held_elsewhere(feed, before.epoch)
            for each in slices:
                bounds = self._again_bytes, held.get(each, _NOTHING), reached[each].sequence
                again[each] = before.last_blocks(each, *bounds)
        if is_whole or note.epoch != epoch:
            note.write(epoch)
        boxes = [OutboxSlice(journals.handler(each), failure, *reached[each], again[each]) for each in slices]
        return OpenOutbox(epoch, boxes)

    def close(self) -> None:
        """Close the files after the senders have ended. Raises JournalError if messages were lost."""
        if self._journals is not None:
            self._journals.close(lambda: True)
            if self._journals.error is not None:
                raise self._journals.error

    @property
    def archive_statistics(self) -> ArchiveStatistics | None:
        """Statistics of the archive; None if the outbox is not served."""
        return self._journals.archive_statistics if self._journals else None

    def sync(self, slice_id: int) -> None:
        """Sync everything that a slice has written so far. Raises JournalError."""
        assert self._journals is not None
        self._journals.sync(slice_id)

    def day(self) -> Path:
        """Return the oldest day with an open segment."""
        assert self._journals is not None
        return self._journals.day()

    def delete_before(self, day: Path) -> None:
        """Allow days before this one to be deleted when they are beyond the retention."""
        assert self._journals is not None
        self._journals.begin_deleting(day)

    def __repr__(self) -> str:
        return f"Outbox({str(self.directory)!r})"

    def _held_elsewhere(self, feed: Feed, epoch: int) -> dict[int, int]:
        """Return by slice the last sequence of an epoch in any other archive that answers now."""
        own = own_archive(feed, self._settings.serve)
        held: dict[int, int] = {}
        for endpoint in feed.archives:
            if endpoint == own:
                continue
            try:
                about = ArchiveClient(with_archive(feed, endpoint), timeout=_ASK_S).about()
            except ConfigError as error:
                log.warning("archive %s does not answer, so all last blocks are sent again: %s", endpoint, error)
                continue
            except BlackBoxError:
                continue
            for slice_id, has in about.slices.items():
                last = dict(zip(has.epochs, has.last_sequences, strict=True)).get(epoch, _NOTHING)
                held[slice_id] = max(last, held.get(slice_id, _NOTHING))
        return held


def has_lost_power(directory: Path) -> bool:
    """Return True if the system was restarted since an outbox wrote the days in a directory."""
    return (directory / _BOOT).exists() and not _Note(directory, _Note(directory, 0).epoch).is_there


class _Note:
    """File with the written epoch and the boot id of the system. After a reboot, the end of that epoch may be lost.

    The file then stays unchanged until a new epoch begins, so that a publisher started after a kill also detects it.
    """

    def __init__(self, directory: Path, epoch: int) -> None:
        """Read the file. `is_there` is True if all of `epoch` was written since this boot."""
        self._path = directory / _BOOT
        self._now = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
        then, _, noted = (self._path.read_text(errors="replace") if self._path.exists() else "").partition(" ")
        self.epoch = int(noted) if noted.isdigit() else 0
        """Epoch in the file; 0: none."""
        self.is_there = bool(self._now) and (then, self.epoch) == (self._now, epoch)

    def write(self, epoch: int) -> None:
        """Write an epoch and the current boot id. Raises OSError."""
        replace_file(self._path, self._path.with_suffix(".new"), f"{self._now} {epoch}".encode())


class _Reached(NamedTuple):
    """Next sequence of a slice and the end of each key."""

    sequence: int
    ends: dict[bytes, End]


_NOTHING_REACHED: Final = _Reached(0, {})


class _Before:
    """Contents of the days for the last epoch."""

    def __init__(self, feed: Feed, days: list[Recording]) -> None:
        self._feed, self._days = feed, days
        self.epoch = max((epoch for _, each in self._segments() for epoch in _epochs(each)), default=0)

    @property
    def is_ended(self) -> bool:
        """True if the publisher has closed each slice that it began."""
        heard, ended = set[int](), set[int]()
        for slice_id, segment in self._segments():
            if self.epoch in _epochs(segment):
                heard.add(slice_id)
                marks = marks_of([segment])
                if any(mark.epoch == self.epoch and mark.kind is MarkKind.EPOCH_END for mark in marks):
                    ended.add(slice_id)
        return heard == ended

    @property
    def is_damaged(self) -> bool:
        """True if unreadable data was found."""
        return any(day.damage for day in self._days)

    def reached(self, slice_id: int) -> _Reached | None:
        """Return the end of a slice; None if the end of some key may be in deleted days.

        Reads days from the newest back to one whose marks name the ends of all keys.
        """
        sequence, is_known = 0, False
        begin: int | None = None
        ends = _KeyEnds(self._feed)
        for day in reversed(self._days):
            segments = dict(day.segments.of()).get(slice_id, [])
            records = [each.entries[each.entries["records"] > 0] for each in segments]
            mine = [each[each["epoch"] == self.epoch] for each in records]
            marks = [mark for mark in marks_of(segments) if mark.epoch == self.epoch]
            lows = [int(each["min_sequence"].min()) for each in mine if len(each)]
            highs = [int(each["max_sequence"].max()) + 1 for each in mine if len(each)]
            sequence = max(sequence, *highs, *(mark.sequence for mark in marks), 0)
            begin = min(lows, default=begin)
            if not self._feed.key_rule:
                continue
            for run in day.runs(slices=[slice_id], epoch=self.epoch):
                ends.take(run)
            for mark in marks:
                ends.note(mark.keys)
                is_all = bool(mark.keys) and not mark.flags & NAMES_LEFT_OUT
                is_known |= is_all and mark.sequence >= (begin or 0)
            if is_known:
                break
        if not self._feed.key_rule:
            return _Reached(sequence, {b"": End(sequence, sequence)})
        is_known |= (sequence if begin is None else begin) == 0
        return _Reached(sequence, ends.found()) if is_known else None

    def last_blocks(self, slice_id: int, most_bytes: int, held: int, stop: int) -> list[Block]:
        """Return the last blocks of a slice after sequence `held`, in order, with at most `most_bytes` bytes.

        Returns no block if the slice ends with messages that the source lacks, before `stop`.
        """
        found: list[Block] = []
        for block in self._blocks_backwards(slice_id):
            most_bytes -= block.body.nbytes
            if most_bytes < 0 or block.number_of(-1) <= held or (not found and block.number_of(-1) + 1 < stop):
                break
            found.append(block)
        return found[::-1]

    def _blocks_backwards(self, slice_id: int) -> Iterator[Block]:
        for span in self._last_spans(slice_id):
            runs = read_spans([[span]], self._may, self._feed.key_rule, lambda _: None)
            yield from reversed([each.block for run in runs for each in blocks_of(run, self._feed.key_rule)])

    def _may(self, heads: NDArray[Any]) -> NDArray[numpy.bool_]:
        may: NDArray[numpy.bool_] = heads["epoch"] == self.epoch
        return may

    def _last_spans(self, slice_id: int) -> Iterator[Span]:
        """Yield spans with records of the last epoch, newest first."""
        for _, segment in reversed(list(self._segments(slice_id))):
            for entry in segment.entries[::-1]:
                if int(entry["epoch"]) == self.epoch and int(entry["records"]):
                    yield Span(segment, max(FILE_HEAD_BYTES, int(entry["start"])), int(entry["stop"]))

    def _segments(self, slice_id: int | None = None) -> Iterator[tuple[int, Segment]]:
        for day in self._days:
            for number, segments in day.segments.of():
                if slice_id in (None, number):
                    yield from ((number, segment) for segment in segments)


def _epochs(segment: Segment) -> set[int]:
    """Return the epochs of a segment's index entries, and the last one of its marks."""
    return {*numpy.unique(segment.entries["epoch"]).tolist(), end_of(segment, Totals()).epoch}


class _KeyEnds:
    """End of each key of a slice, as reported by blocks and marks."""

    def __init__(self, feed: Feed) -> None:
        self._key_rule = feed.key_rule
        self._most = feed.max_keys
        self._names = Numbering(self._most, MAX_KEY_BYTES)
        self._ends = numpy.zeros((self._most, 2), numpy.int64)
        self._marked: dict[bytes, End] = {}

    def take(self, run: RecordRun) -> None:
        """Add checked records. Raises JournalError if they have more keys than the feed allows."""
        if not _note_ends(self._names.at, self._ends, run.headers, run.bodies, self._key_rule):
            raise JournalError(f"outbox had more than {self._most} keys in a slice, expected at most max_topics")

    def note(self, ends: dict[bytes, End]) -> None:
        """Add the ends that a mark names."""
        self._marked |= {key: max(end, self._marked.get(key, end)) for key, end in ends.items()}

    def found(self) -> dict[bytes, End]:
        """Return the end of each key found so far."""
        names = self._names.names()
        ends = {key: End(*each) for key, each in zip(names, self._ends[: len(names)].tolist(), strict=True)}
        return ends | {key: max(end, ends.get(key, end)) for key, end in self._marked.items()}


@njit(nogil=True, cache=True)
def _note_ends(
    names: NumberingAt,
    ends: NDArray[numpy.int64],
    headers: NDArray[numpy.int64],
    bodies: NDArray[numpy.int64],
    key_rule: int,
) -> bool:
    """Update the ends of the keys of checked blocks. Return False if there are too many keys."""
    for index in range(len(headers)):
        block, body = read_header(headers[index]), bodies[index]
        layout = layout_of(block)
        key, size = find_key(key_rule, body + layout.topics, numpy.int64(int32s_at(body + layout.topic_offsets, 2)[1]))
        number = number_of(names, key, size)
        if number == FULL:
            return False
        end = sequence_of(block, layout, body, block.count - 1) + 1
        if end > ends[number, 0]:
            ends[number, 0], ends[number, 1] = end, block.key_sequence + block.count
    return True
