"""Where a subscriber begins: what its user says, as a time or position of each slice."""

from __future__ import annotations

import datetime
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args

from blackbox.archive.day import day_end_ns, session_date
from blackbox.archive.serve.protocol import MOST_PREFIXES, Snapshot
from blackbox.arguments import check_integers
from blackbox.block.position import KeyPosition, Position, SlicePosition
from blackbox.errors import ConfigError
from blackbox.feed.feed import Feed
from blackbox.feed.prefixes import common_prefix
from blackbox.subscribe.repair import Since
from blackbox.timestamps import check_unit, ns_of, parse_time

if TYPE_CHECKING:
    from blackbox.archive.serve.client import ArchiveClient

Time = int | str | datetime.datetime
Positions = Mapping[int, tuple[Any, ...]]
"""By slice the (epoch, sequence) of what comes next; with keys a `KeyPosition`, or a tuple of its fields."""

SESSION: Final = "session"
"""For `since`: when the session that goes on now began."""
_MARGIN_HEARTBEATS: Final = 3
"""What was sent so long before the last block of an image is in it: lines, and keys, may be behind one another."""


class Beginning(NamedTuple):
    """Where to begin, as given to `Subscriber.start`: at most one of these; none: live."""

    since: Time | Positions | None = None
    back: int | None = None
    snapshot: Snapshot | None = None

    def __str__(self) -> str:
        return " and ".join(f"{name} {value!r}" for name, value in self._asdict().items() if value is not None)

    def check(self) -> None:
        """Raise ConfigError unless it can be."""
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

    `prefixes`: of the topics that are wanted. Raises ConfigError, ValueError or TypeError for a beginning that cannot
    be, ArchiveError when it is an image or a count of messages and no archive answers in `timeout` seconds.
    """
    beginning.check()
    if beginning == Beginning():
        return None
    since, back, snapshot = beginning
    if archives is None:
        raise ConfigError(f"feed {feed.name!r} had no archives, expected endpoints such as tcp://host:5600")
    if back is not None:
        check_integers(("back", back, 1, 1 << 62))
        return _timed_back(archives, back, timeout) if feed.key_bytes else _counted_back(archives, back, timeout)
    if snapshot is not None:
        return _image(archives, snapshot, prefixes, timeout).get
    if isinstance(since, Mapping):
        positions = {slice_id: _since(each) for slice_id, each in positions_of(feed, since).items()}
        slices = range(len(feed.slices))
        if not positions.keys() <= set(slices):
            raise ConfigError(f"since was for slices {sorted(positions)}, expected some of 0 to {slices[-1]}")
        return positions.get
    at = Since(0, {}, _ns_of(feed, since))
    return lambda _slice_id: at


def positions_of(feed: Feed, since: Positions) -> dict[int, SlicePosition]:
    """Return positions as a checkpoint gives them. Raises ConfigError when they are none of such a feed."""
    try:
        return {n: KeyPosition(*each) if feed.key_bytes else Position(*each) for n, each in since.items()}
    except TypeError as error:
        kind = "KeyPosition" if feed.key_bytes else "(epoch, sequence)"
        raise ConfigError(
            f"since was {since!r} with key_bytes {feed.key_bytes}, expected a {kind} of each slice"
        ) from error


def position_of(feed: Feed, since: Since) -> SlicePosition | None:
    """Return the position at which a slice begins; None: it begins with an image, or at a time, so it has none."""
    if since.image is not None or since.epoch == 0 or (not feed.key_bytes and b"" not in since.next_sequences):
        return None
    if not feed.key_bytes:
        return Position(since.epoch, since.next_sequences[b""])
    prefixes = [b""] if since.prefixes is None else list(since.prefixes)
    return KeyPosition(since.epoch, dict(since.next_sequences), prefixes, since.done_ns, since.start_ns)


def _since(position: SlicePosition) -> Since:
    if isinstance(position, Position):
        return Since(position.epoch, {b"": position.sequence}, 0)
    return Since(position.epoch, position.next_sequences, position.since_ns, position.done_ns, position.prefixes)


def _ns_of(feed: Feed, since: Time | None) -> int:
    """Return a time, ns since 1970; a time of day is that of the session that goes on now."""
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
    """Return the image of each slice that may hold such topics, and where it goes on."""
    found, feed = dict[int, Since](), archives.feed
    for slice_id in sorted({slice_id for prefix in prefixes for slice_id in feed.slices_for(prefix)}):
        wanted = {prefix for prefix in prefixes if slice_id in feed.slices_for(prefix)}
        asked = wanted if len(wanted) <= MOST_PREFIXES else {common_prefix(wanted)}
        # What the key may not have is not put in force either, and told.
        image = archives.image(slice_id, asked, of=of, timeout=timeout, may_narrow=True)
        since = Since(image.epoch, image.next_sequences, 0, image=deque(image.blocks), is_unsure=image.is_unsure)
        if feed.key_bytes:
            margin_ns = _MARGIN_HEARTBEATS * feed.heartbeat_ns * len(feed.slices[slice_id].lines)
            keys = sorted(set(map(feed.subscription_of, wanted)))
            since = since._replace(done_ns=max(0, image.ts_out - margin_ns), prefixes=keys)
        found[slice_id] = since if image.epoch else Since(0, {}, 0)
    return found


def _counted_back(archives: ArchiveClient, count: int, timeout: float) -> Callable[[int], Since]:
    """Return where the last `count` recorded messages of each slice begin, over epochs and days; or its first one."""
    newest = archives.about(timeout=timeout)
    found: dict[int, Since] = {}
    left = dict.fromkeys(range(len(archives.feed.slices)), count)
    for day in reversed(newest.days):
        about = newest if day == newest.day else archives.about(day)
        for slice_id, held in about.slices.items():
            epochs = zip(held.epochs, held.first_sequences, held.last_sequences, strict=True)
            for epoch, first, last in reversed(list(epochs)):
                if left.get(slice_id, 0) > 0:
                    many = min(left[slice_id], last + 1 - first)
                    left[slice_id] -= many
                    found[slice_id] = Since(epoch, {b"": last + 1 - many}, 0)
        if not any(left.values()):
            break
    return lambda slice_id: found.get(slice_id, Since(0, {}, 0))


def _timed_back(archives: ArchiveClient, count: int, timeout: float) -> Callable[[int], Since]:
    """Return when the last `count` recorded messages of each slice began to come; or its first one.

    With keys no number says where in a slice they begin.
    """
    left = dict.fromkeys(range(len(archives.feed.slices)), count)
    newest = archives.about(timeout=timeout, back=left)
    found: dict[int, int] = {}
    for day in reversed(newest.days):
        about = newest if day == newest.day else archives.about(day, back=left)
        for slice_id, held in about.slices.items():
            if left.get(slice_id, 0) > 0 and held.messages:
                left[slice_id] -= held.messages
                found[slice_id] = min(held.back_ns, found.get(slice_id, held.back_ns))
        if max(left.values()) <= 0:
            break
    return lambda slice_id: Since(0, {}, found.get(slice_id, 0))
