"""The journals of a hub, to which a publisher with an outbox appends."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final, Literal

import numpy

from blackbox.archive.files.day import Lock, make_directory, recorded_days
from blackbox.archive.files.synced import RECENT_DAYS, forget_synced, note_all
from blackbox.archive.maintain.retention import Retention
from blackbox.archive.record.crash_recovery import recover_day
from blackbox.archive.record.outbox import Outbox, has_lost_power
from blackbox.block.form.rows import PayloadColumns, as_rows
from blackbox.feed.feed import Feed
from blackbox.publish.publisher import Publisher
from blackbox.publish.send.slice_writer import Resolved
from blackbox.services.hub.server.history import History
from blackbox.services.hub.server.judge import Fresh, Judge
from blackbox.services.hub.server.revisions import Revision, newest_places
from blackbox.services.hub.server.start_check import check_days

PATIENCE_S: Final = 60.0


class Store:
    """The journals of a hub, and the publisher that appends to them. Used by the hub's thread.

    Attributes: `days`, directory of the feed's days; `outbox` and `publisher`, once it is open.
    """

    publisher: Publisher

    def __init__(
        self,
        feed: Feed,
        directory: str | os.PathLike[str],
        fsync: Literal["interval", "block"],
        fsync_interval: float | timedelta,
        retention: Retention,
    ) -> None:
        if fsync not in ("interval", "block"):
            raise ValueError(f"fsync was {fsync!r}, expected interval or block")
        self.feed, self.directory = feed, Path(directory)
        self.days = self.directory / feed.name
        self._make_outbox = partial(
            Outbox,
            directory,
            fsync=fsync,
            fsync_interval=fsync_interval,
            retention=retention,
            keeps_days=True,
            again_bytes=0,  # subscribers fetch unsent messages from its archive
        )
        self.outbox = self._make_outbox()
        self._is_open = False
        self._is_patient = fsync == "interval"
        """True if it appends without syncing."""

    def check(self) -> None:
        """Check the days; after a power cut, recover them. Raises JournalError."""
        make_directory(self.days)
        with closing(Lock(self.days)):
            is_cut = self.has_lost_power()
            check_days(self.days, len(self.feed.slices), has_lost_power=is_cut)
            if is_cut:
                forget_synced(self.days)
                for day in recorded_days(self.days)[-RECENT_DAYS:]:
                    recover_day(day)
                if self._is_patient:  # else only the last turn may be incomplete, as after a kill
                    history = History(self.days, self.feed)
                    history.cut_back(history.newest()[0])
                note_all(self.days, len(self.feed.slices))

    def has_lost_power(self) -> bool:
        """Return True if the system has restarted and may have lost unsynced data."""
        return has_lost_power(self.days)

    def open(self, feed: Feed, *, serve: bool | str = True, epoch: int = 0) -> None:
        """Start the publisher of a feed, which has this store's slices.

        `epoch`: 0 for the one in the journals, or a new one after a power cut.
        """
        self.outbox = self._make_outbox(serve=serve, epoch=epoch, continues=not self.has_lost_power())
        self.publisher = Publisher(feed, outbox=self.outbox).start()
        self._is_open = True

    def close(self, *, says_end: bool = True) -> None:
        """Close the publisher, if there is one."""
        if self._is_open:
            self._is_open = False
            self.publisher.close(says_end=says_end)

    def tell(self, judge: Judge) -> Judge:
        """Restore the state of a judge from the journals, and return it."""
        History(self.days, self.feed).tell(judge.table, judge.conditions.deadlines, judge.topics)
        slices = range(len(self.feed.slices))
        judge.begin(self.publisher.epoch, [self.publisher.published_count(each) for each in slices])
        return judge

    def newest_places(self, following: Sequence[int], pause: Callable[[], None]) -> dict[bytes, Revision]:
        """As the function of this name, for the current epoch."""
        return newest_places(self.days, self.publisher.epoch, following, pause)

    def note(self, slice_id: int, note: bytes, *, is_alone: bool) -> None:
        """Append a note with the next blocks of a slice; `is_alone`: at once, without blocks."""
        self.publisher._running()[slice_id].ring.put_note(note, is_alone=is_alone)

    def publish(self, fresh: Fresh, judge: Judge) -> None:
        """Publish new puts."""
        columns, topics, rows, numbers = fresh
        starts, stops = columns.starts, columns.stops
        if len(rows) == 1 and not self.feed.key_rule:  # with keys, blocks would have another order
            row = int(rows[0])
            is_null = columns.valid is not None and not columns.valid[row]
            payload = None if is_null else columns.data[starts[row] : stops[row]].tobytes()
            time_ns = 0 if columns.times is None else int(columns.times[row])
            self.publisher.publish(topics[columns.index.item(row)], payload, time_ns)
        elif len(rows):
            chosen = PayloadColumns(
                columns.data,
                ts_event=None if columns.times is None else columns.times[rows],
                offsets=starts[rows],
                lengths=(stops - starts)[rows].astype(numpy.int32),
                valid=None if columns.valid is None else columns.valid[rows],
                same=columns.same_of(rows),
            )
            columns_of_rows, _alive = as_rows(chosen, len(rows))
            numbers = judge.topics.numbers(topics) if numbers is None else numbers
            slices, routes = judge.topics.routes(topics, numbers, self.publisher)
            self.publisher._publish_rows(Resolved.of(slices, routes), columns.index[rows], columns_of_rows)

    def wait_kept(self, ends: Iterable[tuple[int, int]]) -> None:
        """Wait until the journals have, of each slice, all messages before a sequence, and its notes.

        They are on the disk if each block is synced, else in the page cache. Raises PublisherError or JournalError.
        """
        deadline = time.monotonic() + PATIENCE_S
        for slice_id, sequence in ends:
            self.publisher._running()[slice_id].wait_kept(sequence, deadline)

    def sync(self) -> None:
        """Sync all slices, so that the disk has no turn without all turns before it."""
        for slice_id in range(len(self.feed.slices)):
            self.outbox.sync(slice_id)
