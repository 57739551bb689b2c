"""Start of each slice, from the arguments of `start`: a time, positions, an image or a count of messages."""

from __future__ import annotations

import datetime
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from operator import index
from typing import TYPE_CHECKING, Final, NamedTuple, get_args

from blackbox.archive.files.day import day_end_ns, session_date
from blackbox.archive.serve.protocol import MOST_PREFIXES, Snapshot
from blackbox.arguments import check_integers
from blackbox.block.position import Position
from blackbox.errors import ArchiveError, ConfigError
from blackbox.feed.feed import Feed
from blackbox.feed.routing.prefixes import common_prefix
from blackbox.receive.slices.catching_up import Since
from blackbox.timestamps import check_unit, ns_of, parse_time

if TYPE_CHECKING:
    from blackbox.archive.serve.client import ArchiveClient

log = logging.getLogger("blackbox")

Time = int | str | datetime.datetime
Positions = Mapping[int, tuple[int, int]]
"""(epoch, sequence) of the next message, by slice."""

SESSION: Final = "session"
"""Value of `since`: the start of the current session."""


class Beginning(NamedTuple):
    """Arguments of `Subscriber.start`; at most one is set. If none is, all slices begin live."""

    since: Time | Positions | None = None
    back: int | None = None
    snapshot: Snapshot | None = None

    def __str__(self) -> str:
        return " and ".join(f"{name} {value!r}" for name, value in self._asdict().items() if value is not None)

    def check(self) -> None:
        """Raise ConfigError for two fields at once or an unknown snapshot."""
        if sum(value is not None for value in self) > 1:
            raise ConfigError(f"start was given {self}, expected one of them")
        if self.snapshot not in (None, *get_args(Snapshot)):
            raise ConfigError(f"snapshot was {self.snapshot!r}, expected 'latest' or 'books'")


def beginning_of(
    feed: Feed,
    archives: ArchiveClient | None,
    beginning: Beginning,
    timeout: float,
    prefixes: Collection[bytes] = (),
) -> Callable[[int], Since | None] | None:
    """Return where each slice begins; None: all begin live. See `Subscriber.start`.

    `prefixes`: subscribed topics. Raises ConfigError, ValueError or TypeError for an invalid beginning, and
    ArchiveError if an image or a count of messages is needed and no archive answers within `timeout` seconds.
    """
    beginning.check()
    if beginning == Beginning():
        return None
    since, back, snapshot = beginning
    if archives is None:
        raise ConfigError(f"feed {feed.name!r} had no archives, expected endpoints such as tcp://host:5600")
    if back is not None:
        check_integers(("back", back, 1, 1 << 62))
        return _counted_back(archives, back, timeout)
    if snapshot is not None:
        return _image(archives, snapshot, prefixes, timeout).get
    if isinstance(since, Mapping):
        # Epoch 0: nothing was recorded yet. The slice begins with the first recorded message.
        positions = {n: Since(each) if each.epoch else Since() for n, each in positions_of(since).items()}
        slices = range(len(feed.slices))
        if not positions.keys() <= set(slices):
            raise ConfigError(f"since was for slices {sorted(positions)}, expected some of 0 to {slices[-1]}")
        return positions.get
    at = Since(start_ns=_ns_of(feed, since))
    return lambda _slice_id: at


def positions_of(since: Positions) -> dict[int, Position]:
    """Return the positions of a checkpoint. Raises ConfigError or ValueError for anything else."""
    try:
        found = {n: Position(*map(index, each)) for n, each in since.items()}
    except TypeError as error:
        raise ConfigError(f"since was {since!r}, expected the (epoch, sequence) of each slice") from error
    for epoch, sequence in found.values():
        check_integers(("epoch", epoch, 0, (1 << 63) - 1), ("sequence", sequence, 0, 1 << 62))
    return found


def _ns_of(feed: Feed, since: Time | None) -> int:
    """Return a time in ns since 1970; a time of day is in the current session."""
    if isinstance(since, datetime.datetime):
        return ns_of(since)
    if isinstance(since, str):
        now_ns = time.time_ns()
        today = session_date(feed, now_ns)
        begin_ns = day_end_ns(feed, today - datetime.timedelta(1))
        if since == SESSION:
            return begin_ns
        return parse_time(since, feed.time_zone, begin_ns, day_end_ns(feed, today) - 1)
    check_integers(("since", since, 0, 1 << 62))
    assert isinstance(since, int)
    return check_unit(since, time.time_ns())


def _image(archives: ArchiveClient, of: Snapshot, prefixes: Collection[bytes], timeout: float) -> dict[int, Since]:
    """Return the image of each slice that may hold topics of `prefixes`, and the position that follows it."""
    found, feed = dict[int, Since](), archives.feed
    for slice_id in sorted({slice_id for prefix in prefixes for slice_id in feed.slices_for(prefix)}):
        wanted = {prefix for prefix in prefixes if slice_id in feed.slices_for(prefix)}
        asked = wanted if len(wanted) <= MOST_PREFIXES else {common_prefix(wanted)}
        # Topics that the key may not read are not subscribed either; the subscriber reports them.
        image = archives.image(slice_id, asked, of=of, timeout=timeout, may_narrow=True)
        is_empty = image.position.epoch == 0
        since = Since(image.position, image=deque(image.blocks), is_unsure=image.is_unsure)
        found[slice_id] = Since() if is_empty else since
    return found


def _counted_back(archives: ArchiveClient, count: int, timeout: float) -> Callable[[int], Since]:
    """Return the position of the `count`-th last message of each slice, or of the first that any archive has."""
    archives.about(timeout=timeout)  # from now on one answers
    feed, failures = archives.feed, list[str]()
    held: dict[int, dict[int, tuple[int, int]]] = {slice_id: {} for slice_id in range(len(feed.slices))}
    for endpoint in feed.archives:
        try:
            with archives.only(endpoint).kept() as archive:
                _add_ranges(held, archive, count)
        except ArchiveError as error:
            log.warning("messages are counted without those of an archive: %s", error)
            failures.append(str(error))
    if len(failures) == len(feed.archives):
        raise ArchiveError("; ".join(failures))
    found = dict[int, Since]()
    for slice_id, ranges in held.items():
        left = count
        for epoch, (first, stop) in sorted(ranges.items(), reverse=True):
            many = min(left, stop - first)
            left -= many
            if many > 0:
                found[slice_id] = Since(Position(epoch, stop - many))
    return lambda slice_id: found.get(slice_id, Since())


def _add_ranges(held: dict[int, dict[int, tuple[int, int]]], archive: ArchiveClient, count: int) -> None:
    """Add the first sequence, and that after the last, of each epoch, back to at least `count` messages a slice."""
    newest = archive.about()
    left = dict.fromkeys(held, count)
    for day in reversed(newest.days):
        about = newest if day == newest.day else archive.about(day)
        for slice_id in held.keys() & about.slices.keys():  # an earlier day may have more slices
            told = about.slices[slice_id]
            for epoch, first, last in zip(told.epochs, told.first_sequences, told.last_sequences, strict=True):
                known = held[slice_id].get(epoch, (first, last + 1))
                held[slice_id][epoch] = min(known[0], first), max(known[1], last + 1)
                left[slice_id] -= last + 1 - first
        if max(left.values()) <= 0:
            break
