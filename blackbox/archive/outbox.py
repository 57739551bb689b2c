"""A publisher's outbox: each block is in a journal before it is sent, so that who is killed goes on where it was.

In: the blocks of a publisher's senders. Out: days as a recorder writes them; at the next start the epoch and the
numbers that go on, and the last blocks, to be sent again.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal

import numpy
from numpy.typing import NDArray

from blackbox.archive.day import recorded_days, replace_file
from blackbox.archive.format import FILE_HEAD_BYTES, SEGMENT_BYTES
from blackbox.archive.journals import Journals
from blackbox.archive.key_positions import next_numbers
from blackbox.archive.marks import MarkKind, marks_of
from blackbox.archive.reader import Span, blocks_of, read_spans
from blackbox.archive.recording import Recording
from blackbox.archive.retention import EVERYTHING, Retention
from blackbox.archive.segment import Segment
from blackbox.archive.serve.client import ArchiveClient
from blackbox.archive.serve.server import ArchiveStatistics
from blackbox.arguments import check_integers, duration_ns
from blackbox.block.acknowledgement import Acknowledgement
from blackbox.block.block import Block
from blackbox.errors import BlackBoxError, ConfigError, JournalError
from blackbox.feed.feed import Feed, with_archive
from blackbox.publish.outbox import OpenOutbox, OutboxSlice

log = logging.getLogger("blackbox")

_BOOT: Final = "boot"
"""The file that says since which start of the system which epoch is written."""
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_ASK_S: Final = 0.5
_LONGEST_WAIT_S: Final = 1_000_000.0
_NOTHING: Final = -1


class Outbox:
    """A journal of a publisher's own: `Publisher(feed, outbox=Outbox("outbox"))`.

    A publisher that was killed goes on in its epoch, with the number that follows what is in here; the last blocks that
    no archive of the feed has are sent again. One that was closed begins another epoch, as does one whose system was
    started anew, unless each block was synced: what was sent last may then be missing here.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        fsync: Literal["never", "interval", "block"] = "interval",
        fsync_interval: float | timedelta = 1.0,
        segment_bytes: int = SEGMENT_BYTES,
        compression: Literal["none", "lz4", "zstd"] = "none",
        serve: bool | str = False,
        retention: Retention = EVERYTHING,
        again_bytes: int = 16 << 20,
        again_wait: float | timedelta = 1.0,
        epoch: int = 0,
        are_told_before: bool = False,
    ) -> None:
        """Settings; nothing is opened before the publisher starts. Durations are seconds or `timedelta`.

        Args:
            directory: where it is; made if it is missing. It has the form of a recording.
            fsync: as `Recorder`. Whatever it says, a block is with the system before it is sent.
            fsync_interval: as `Recorder`.
            segment_bytes: as `Recorder`.
            compression: as `Recorder`.
            serve: as `Recorder`: whether to answer who asks for what is in here.
            retention: as `Recorder`. A feed with keys keeps everything: it needs the last number of each key.
            again_bytes: so much is sent again at most, for each slice; what is before that is only in here.
            again_wait: how long a start waits for subscribers, if there is something to send again.
            epoch: go on in this one behind what is here of it, also where some was lost: whoever says so has the rest.
            are_told_before: numbers of messages are told before these are here. Then no epoch goes on over another
                start of the system, whatever `fsync` says.
        """
        check_integers(("again_bytes", again_bytes, 0, 1 << 40))
        self.directory = Path(directory)
        self.again_wait_s = duration_ns("again_wait", again_wait, 0, _LONGEST_WAIT_S) / 1e9
        self._again_bytes, self._epoch = again_bytes, epoch
        self._is_synced = fsync == "block" and not are_told_before
        self.is_whole = False
        """Whether all that was written here before is here, once it is open."""
        self._serve, self._retention = serve, retention

        def make(feed: Feed) -> Journals:
            return Journals(
                feed,
                directory,
                lambda: None,  # the next block is refused, which ends the publisher
                fsync=fsync,
                fsync_interval=fsync_interval,
                segment_bytes=segment_bytes,
                compression=compression,
                serve=serve,
                retention=retention,
                write_each=True,
                acknowledge=self._note,
            )

        self._make = make
        self._journals: Journals | None = None
        self._told: dict[int, Acknowledgement] = {}

    def open(self, feed: Feed) -> OpenOutbox:
        """Take hold of the files, and find where the publisher was.

        Raises JournalError naming file and reason when they cannot be opened, or another publisher has them;
        ConfigError, EndpointError, LimitError.
        """
        if self._journals is not None:
            raise JournalError(f"outbox {str(self.directory)!r} was used before, expected one for each publisher")
        if feed.key_bytes and self._retention.is_bound:
            raise ConfigError(
                f"feed {feed.name!r} had key_bytes {feed.key_bytes}, expected 0 where an outbox deletes days"
            )
        self._journals = journals = self._make(feed)
        try:
            journals.open()
            return self._open(journals, feed)
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
        is_whole = self._is_synced or note.is_there
        goes_on = before.epoch == self._epoch if self._epoch else is_whole and before.epoch and not before.is_ended
        following = [before.next_sequences(each) if goes_on else {} for each in slices]
        self.is_whole = is_whole and not before.is_damaged  # which is known behind that
        again: list[list[Block]] = [[] for _ in slices]
        if self._epoch:
            epoch = self._epoch
            if feed.key_bytes and before.is_damaged:
                raise JournalError(
                    f"outbox {str(self.directory)!r} had blocks of epoch {epoch} that cannot be read, "
                    f"expected to know the last number of each key"
                )
        elif not goes_on or before.is_damaged:  # a number that cannot be read may have been the last one
            epoch, following = max(time.time_ns(), before.epoch + 1), [{} for _ in slices]
        else:
            epoch, held = before.epoch, self._held_elsewhere(feed, before.epoch)
            again = [before.last_blocks(each, self._again_bytes, held.get(each, _NOTHING)) for each in slices]
        if is_whole or note.epoch != epoch:
            note.write(epoch)
        boxes = [OutboxSlice(journals.at(each), failure, following[each], again[each]) for each in slices]
        return OpenOutbox(epoch, boxes)

    def close(self) -> None:
        """Close the files; senders have ended. Raises JournalError when some of what was taken is not there."""
        if self._journals is not None:
            self._journals.close(lambda: True)
            if self._journals.error is not None:
                raise self._journals.error

    @property
    def archive_statistics(self) -> ArchiveStatistics | None:
        """What it has answered so far; None: it does not serve."""
        return self._journals.archive_statistics if self._journals else None

    def synced(self, slice_id: int) -> tuple[int, int]:
        """Return how far a slice is on the disk: epoch and count of messages numbered in it; epoch 0: nothing is told.

        What was written before this outbox was opened counts as on the disk.
        """
        told = self._told.get(slice_id)
        return (told.epoch, told.synced) if told is not None else (0, 0)

    def _note(self, slice_id: int, said: bytes) -> None:
        if (told := Acknowledgement.decode(said)) is not None:
            self._told[slice_id] = told

    def __repr__(self) -> str:
        return f"Outbox({str(self.directory)!r})"

    def _held_elsewhere(self, feed: Feed, epoch: int) -> dict[int, int]:
        """Return by slice the last number that an archive has of an epoch, as far as any tells now."""
        own = self._serve if isinstance(self._serve, str) else feed.archives[0] if self._serve else ""
        held: dict[int, int] = {}
        for endpoint in () if feed.key_bytes else feed.archives:
            if endpoint == own:
                continue
            try:
                about = ArchiveClient(with_archive(feed, endpoint), timeout=_ASK_S).about()
            except ConfigError as error:
                log.warning("archive %s cannot be asked what it has, all is sent again: %s", endpoint, error)
                continue
            except BlackBoxError:
                continue
            for slice_id, has in about.slices.items():
                last = dict(zip(has.epochs, has.last_sequences, strict=True)).get(epoch, _NOTHING)
                held[slice_id] = max(last, held.get(slice_id, _NOTHING))
        return held


class _Note:
    """Which epoch is written, and since which start of the system: another start may find it with its end lost.

    Then the note stays, until another epoch begins: whatever is killed meanwhile, the next one is told so, too.
    """

    def __init__(self, directory: Path, epoch: int) -> None:
        """Look whether all of an epoch was written since this start."""
        self._path = directory / _BOOT
        self._now = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
        then, _, noted = (self._path.read_text() if self._path.exists() else "").partition(" ")
        self.epoch = int(noted) if noted.isdigit() else 0
        """That is noted."""
        self.is_there = bool(self._now) and (then, self.epoch) == (self._now, epoch)

    def write(self, epoch: int) -> None:
        """Note an epoch. Raises OSError."""
        replace_file(self._path, self._path.with_suffix(".new"), f"{self._now} {epoch}".encode())


class _Before:
    """What the days hold of the last epoch."""

    def __init__(self, feed: Feed, days: list[Recording]) -> None:
        self._feed, self._days = feed, days
        entries = [each.entries["epoch"] for _, each in self._segments()]
        self.epoch = max((int(epochs.max()) for epochs in entries if len(epochs)), default=0)

    @property
    def is_ended(self) -> bool:
        """Whether the publisher has closed each slice that it began."""
        heard, ended = set[int](), set[int]()
        for slice_id, segment in self._segments():
            if self.epoch in segment.entries["epoch"]:
                heard.add(slice_id)
                marks = marks_of([segment])
                if any(mark.epoch == self.epoch and mark.kind is MarkKind.EPOCH_END for mark in marks):
                    ended.add(slice_id)
        return heard == ended

    @property
    def is_damaged(self) -> bool:
        """Whether something was found that cannot be read."""
        return any(day.damage for day in self._days)

    def next_sequences(self, slice_id: int) -> dict[bytes, int]:
        """Return the number that follows what was written of each key."""
        found: dict[bytes, int] = {}
        for _, segment in self._segments(slice_id):
            for mark in marks_of([segment]):
                if mark.epoch == self.epoch:
                    for key, number in mark.keys.items():
                        found[key] = max(number, found.get(key, 0))
            mine = segment.entries[(segment.entries["epoch"] == self.epoch) & (segment.entries["records"] > 0)]
            if len(mine) and not self._feed.key_bytes:
                found[b""] = max(int(mine["max_sequence"].max()) + 1, found.get(b"", 0))
        if self._feed.key_bytes:
            runs = (run for day in self._days for run in day.runs(slices=[slice_id], epoch=self.epoch))
            for key, number in next_numbers(runs, self._feed.key_bytes, self._feed.max_topics).items():
                found[key] = max(number, found.get(key, 0))
        return found

    def last_blocks(self, slice_id: int, most_bytes: int, held: int) -> list[Block]:
        """Return the last blocks of a slice, in order, up to so many bytes, but for those up to the number `held`."""
        found: list[Block] = []
        for span in self._last_spans(slice_id):
            runs = read_spans([[span]], self._may, self._feed.key_bytes, lambda _: None)
            blocks = [recorded.block for run in runs for recorded in blocks_of(run, self._feed.key_bytes)]
            for block in reversed(blocks):
                most_bytes -= block.body.nbytes
                if most_bytes < 0 or int(block.sequences[-1]) <= held:
                    return found[::-1]
                found.append(block)
        return found[::-1]

    def _may(self, heads: NDArray[Any]) -> NDArray[numpy.bool_]:
        may: NDArray[numpy.bool_] = heads["epoch"] == self.epoch
        return may

    def _last_spans(self, slice_id: int) -> Iterator[Span]:
        """Yield what holds records of the last epoch, the latest first."""
        for _, segment in reversed(list(self._segments(slice_id))):
            for entry in segment.entries[::-1]:
                if int(entry["epoch"]) == self.epoch and int(entry["records"]):
                    yield Span(segment, max(FILE_HEAD_BYTES, int(entry["start"])), int(entry["stop"]))

    def _segments(self, slice_id: int | None = None) -> Iterator[tuple[int, Segment]]:
        for day in self._days:
            for number, segments in day._segments_of():
                if slice_id in (None, number):
                    yield from ((number, segment) for segment in segments)
