"""What a slice's subscribers have asked for: filters, confirmations, acceptances. Whoever asks may be hostile."""

from __future__ import annotations

import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import zmq

from blackbox.block.acknowledgement import Acknowledgement
from blackbox.block.format import (
    ACCEPT_KEY,
    CONFIRM_KEY,
    HEARTBEAT_KEY,
    MOST_WANT_BYTES,
    NONCE_BYTES,
    PATH_KEY,
    RECORDED_KEY,
    SHARED_KEY,
    WANT_KEY,
)
from blackbox.feed.feed import Feed
from blackbox.publish.send_loop import SUBSCRIPTION_HEAD_BYTES

_MORE_FILTERS: Final = 4_096
"""Distinct filters of a line beyond one for each key that there may be."""
MOST_WANTS: Final = 131_072
"""Prefixes on a line that say what is wanted."""
_MOST_ASKED: Final = 65_536
"""Confirmations asked for and not yet sent, on all lines; those asked for first are forgotten."""
_MOST_ANSWERED: Final = 65_536
"""Confirmations sent and not yet accepted, and acceptances of a line; the oldest are forgotten."""
MOST_USELESS: Final = 65_536
"""Bytes of filters longer than any key that one connection may ask for: libzmq keeps them, and they match nothing."""
SUBSCRIBE: Final = b"\1"
UNSUBSCRIBE: Final = b"\0"
_CONTROL: Final = frozenset((HEARTBEAT_KEY, PATH_KEY))
"""Filters that let no data through."""

Place = tuple[int, bytes]
"""A line, and a filter on it."""


class Asked(NamedTuple):
    """A confirmation to be sent."""

    line: int
    key: bytes
    fd: int
    after: int
    """What must have been passed before it is sent. For a publisher the pass of its ring in which it was asked for:
    a later one has counted what was unwanted until then."""
    since: float
    """When that was, by the monotonic clock."""
    demand: int
    """The `demand_version` of then."""


class _Asker:
    """A connection that was the first to ask for some of the filters in force."""

    __slots__ = ("filters", "line", "wants")

    def __init__(self, line: int) -> None:
        self.line, self.filters, self.wants = line, 0, 0

    def count(self, prefix: bytes, by: int) -> None:
        """Note one more filter of its own, or one less."""
        if prefix.startswith(WANT_KEY):
            self.wants += by
        else:
            self.filters += by


_HEAD = struct.Struct("=iii")
assert _HEAD.size == SUBSCRIPTION_HEAD_BYTES


def split_changes(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Give descriptor, size and first bytes of what `read_subscriptions` read."""
    place = 0
    while place < len(data):
        kept, fd, size = _HEAD.unpack_from(data, place)
        start = place + _HEAD.size
        yield fd, size, data[start : start + kept]
        place = (start + kept + 3) & -4


class RecorderNotes(Protocol):
    """Takes in what recorders tell."""

    def begin_epoch(self, epoch: int) -> None:
        """Expect what is told of another epoch."""

    def note(self, line: int, said: bytes, what: Acknowledgement) -> None:
        """Take in what a recorder tells on a line."""

    def withdraw(self, line: int, said: bytes) -> None:
        """Note that what was told on a line stands no more."""


class Subscriptions:
    """The filters in force on each line of a slice, who is to be told so, and who has said that it knows.

    Changed by the thread that reads subscriptions, with `changed` held. Who derives from it hears of every filter that
    comes and goes by `filter_changed`.

    libzmq tells when a filter is asked for by a first peer, and when nobody has it any more, and on which descriptor
    that came; on none for inproc, and when a connection is gone. But it passes on an unsubscription of what others
    have, too. So one that came on a descriptor is a doubt: its reader subscribes and unsubscribes itself, and hears of
    it only if nobody else has that filter.

    Attributes: `doubts`; `unwelcome`, descriptors of connections to be ended, and why; `heard`, how many changes came
    on each descriptor; `is_behind`, whether changes wait to be read; `most_filters`, how many a line may have
    beside MOST_WANTS; `times_asked`, how often recorders were asked how far they are.
    """

    def __init__(self, feed: Feed, lines: int, recorders: RecorderNotes) -> None:
        self.changed = threading.Condition()
        self.doubts: list[Place] = []
        self.unwelcome: dict[int, str] = {}
        self.heard: dict[int, int] = {}
        self.asked: OrderedDict[Place, Asked] = OrderedDict()
        self.answered: OrderedDict[Place, int] = OrderedDict()
        """Confirmations that are not yet accepted, and the descriptor that each was asked for on."""
        self._accepted: list[OrderedDict[bytes, int]] = [OrderedDict() for _ in range(lines)]
        self._newest: dict[Place, Place] = {}
        """What was asked for last on a line and descriptor."""
        self._filters: list[dict[bytes, _Asker | None]] = [{} for _ in range(lines)]
        """With each filter who asked for it first, if that is known."""
        self._wants = [0] * lines
        """How many of them say what is wanted."""
        self._askers: dict[int, _Asker] = {}
        self._useless: dict[int, int] = {}
        self.is_behind = False
        self.times_asked = 0
        self.most_filters = (feed.max_topics if feed.key_bytes else 1) + _MORE_FILTERS
        self._feed = feed
        self._recorders = recorders
        self._mine = [b""] * lines

    @property
    def demand_version(self) -> int:
        """How often what is wanted has changed, for who tells of that before it confirms."""
        return 0

    def filter_changed(self, place: Place, by: int) -> None:
        """Hear of a filter that nobody had on its line (`by` 1), or that nobody has there any more (-1)."""

    def begin_epoch(self, epoch: int, *lines: int) -> None:
        """Expect acceptances of another epoch, on all lines or some. Those of the one before count while they stand."""
        for line in lines or range(len(self._mine)):
            self._mine[line] = epoch.to_bytes(8, "little") + bytes([line])
        self._recorders.begin_epoch(epoch)

    def note(self, line: int, fd: int, change: bytes, size: int, after: int) -> None:
        """Take in a subscription or unsubscription of `size` bytes, of which `change` are the first.

        `after`: as in `Asked`.
        """
        if fd >= 0:
            self.heard[fd] = self.heard.get(fd, 0) + 1
        what, prefix = change[:1], change[1:]
        if what == UNSUBSCRIBE:
            self._withdraw(line, fd, prefix)
        elif what == SUBSCRIBE:
            of_keys = prefix.removeprefix(SHARED_KEY)
            lets_through = len(of_keys) <= self._feed.key_bytes and of_keys[:1] != b"\0"
            if prefix in _CONTROL or lets_through or is_want(prefix, size):
                self._add_filter(line, fd, prefix)
            elif prefix.startswith(CONFIRM_KEY) and size == 1 + len(CONFIRM_KEY) + NONCE_BYTES:
                self._ask(Asked(line, prefix, fd, after, time.monotonic(), self.demand_version))
            elif prefix.startswith(ACCEPT_KEY) and prefix.endswith(self._mine[line]):
                self._accept(line, prefix)
            elif prefix.startswith(RECORDED_KEY) and (told := Acknowledgement.decode(prefix)):
                self._recorders.note(line, prefix, told)
            elif fd >= 0 and not self._is_of_other_line(prefix):
                self._useless[fd] = self._useless.get(fd, 0) + size
                if self._useless[fd] > MOST_USELESS:
                    del self._useless[fd]
                    self.unwelcome[fd] = f"it asked for {MOST_USELESS} bytes of filters longer than any key"

    def _add_filter(self, line: int, fd: int, prefix: bytes) -> None:
        filters = self._filters[line]
        if prefix not in filters:
            filters[prefix] = asker = self._askers.setdefault(fd, _Asker(line)) if fd >= 0 else None
            if asker is not None:
                asker.count(prefix, 1)
            self._wants[line] += prefix.startswith(WANT_KEY)
            self.filter_changed((line, prefix), 1)

    def _ask(self, ask: Asked) -> None:
        place = ask.line, ask.key
        if ask.fd >= 0:  # one at a time for each connection: who asks again has withdrawn what it asked before
            owner = ask.line, b"%d" % ask.fd
            self.asked.pop(self._newest.get(owner, place), None)
            self._newest[owner] = place
        self.asked[place] = ask
        _drop_first(self.asked, _MOST_ASKED)

    def _accept(self, line: int, prefix: bytes) -> None:
        """Count the subscriber that had asked for this confirmation, whoever accepts it: nonces can be overheard."""
        place = line, CONFIRM_KEY + prefix[len(ACCEPT_KEY) :][:NONCE_BYTES]
        if place in self.answered:
            self._accepted[line][prefix] = self.answered.pop(place)
            _drop_first(self._accepted[line], _MOST_ANSWERED)

    def _is_of_other_line(self, prefix: bytes) -> bool:
        """Whether this accepts a confirmation of another line: a subscriber asks all its connections for the same."""
        nonce = prefix[len(ACCEPT_KEY) :][:NONCE_BYTES]
        return any(
            prefix == ACCEPT_KEY + nonce + mine
            and (prefix in self._accepted[line] or (line, CONFIRM_KEY + nonce) in self.answered)
            for line, mine in enumerate(self._mine)
        )

    def _withdraw(self, line: int, fd: int, prefix: bytes) -> None:
        place = line, prefix
        if prefix.startswith(RECORDED_KEY):
            self._recorders.withdraw(line, prefix)
        elif prefix.startswith(CONFIRM_KEY):
            if place in self.asked and fd in (-1, self.asked[place].fd):
                del self.asked[place]
            if fd in (-1, self.answered.get(place)):
                self.answered.pop(place, None)
        elif fd >= 0:
            if prefix in self._filters[line] or prefix in self._accepted[line]:
                self.doubts.append(place)
        elif prefix in self._filters[line]:
            asker = self._filters[line].pop(prefix)
            if asker is not None:
                asker.count(prefix, -1)
            self._wants[line] -= prefix.startswith(WANT_KEY)
            self.filter_changed(place, -1)
        else:
            self._accepted[line].pop(prefix, None)

    def confirmed(self, ask: Asked) -> None:
        """Note that a confirmation was sent."""
        place = ask.line, ask.key
        if self.asked.pop(place, None) is not None:
            self.answered[place] = ask.fd
            _drop_first(self.answered, _MOST_ANSWERED)

    def subscribers(self, prefix: bytes) -> int:
        """How many subscribers have all their filters in force, if any filter can match topics with `prefix`; else 0.

        Plain SUB sockets, which want no heartbeats and ask for nothing, count as one.
        """
        best = 0
        key = self._feed.subscription_of(prefix)
        for line, filters in enumerate(self._filters):
            if _any_matches(filters, key):
                best = max(best, self._accepted_on(line) if HEARTBEAT_KEY in filters else 1)
        return best

    def subscriber_count(self, *, of_this_epoch: bool = False) -> int:
        """Subscribers that have all their filters in force, on the line that has most.

        `of_this_epoch`: only those that have accepted a confirmation since it began.
        """
        with self.changed:
            endings = self._mine if of_this_epoch else [b""] * len(self._mine)
            return max(self._accepted_on(line, ending) for line, ending in enumerate(endings))

    def filter_count(self, *, wants: bool = True) -> int:
        """Distinct filters in force, on the line that has most; `wants`: also those that say what is wanted."""
        counts = zip(map(len, self._filters), self._wants, strict=True)  # other threads ask, too
        return max(filters - (0 if wants else of_wants) for filters, of_wants in counts)

    def asked_first(self, line: int, *, wants: bool) -> tuple[dict[int, int], int]:
        """How many filters of a line each descriptor was the first to ask for, and how many nobody who is there.

        `wants`: of those that say what is wanted, else of the others.
        """
        with self.changed:
            askers = {fd: asker for fd, asker in self._askers.items() if asker.line == line}
            first = {fd: asker.wants if wants else asker.filters for fd, asker in askers.items()}
            count = self._wants[line] if wants else len(self._filters[line]) - self._wants[line]
            return first, count - sum(first.values())

    def forget(self, fd: int) -> None:
        """Forget what a connection that is gone asked for: its descriptor may be another's next."""
        with self.changed:
            self._useless.pop(fd, None)
            self._askers.pop(fd, None)

    def _accepted_on(self, line: int, ending: bytes = b"") -> int:
        fds = [fd for accepted, fd in self._accepted[line].items() if accepted.endswith(ending)]
        return sum(fd < 0 for fd in fds) + len({fd for fd in fds if fd >= 0})


def resolve_doubts(subscriptions: Subscriptions, probes: Sequence[zmq.Socket[bytes]]) -> None:
    """Ask on its line's probe for each filter that may be gone, and withdraw it: libzmq tells if nobody has it."""
    while subscriptions.doubts:
        line, prefix = subscriptions.doubts.pop()
        probes[line].subscribe(prefix)
        probes[line].unsubscribe(prefix)


def is_want(prefix: bytes, size: int) -> bool:
    """Whether a subscription of `size` bytes says which topics are wanted."""
    return prefix.startswith(WANT_KEY) and size <= 1 + len(WANT_KEY) + MOST_WANT_BYTES


def _any_matches(filters: Mapping[bytes, object], key: bytes) -> bool:
    """Whether a filter lets keys through that start with `key`."""
    if not key:
        return any(has not in _CONTROL and not has.startswith(WANT_KEY) for has in filters)
    if any({key[:size], SHARED_KEY + key[:size]} & filters.keys() for size in range(len(key) + 1)):
        return True
    return any(has.startswith((key, SHARED_KEY + key)) for has in filters)


def _drop_first(places: OrderedDict[Any, Any], most: int) -> None:
    while len(places) > most:
        places.popitem(last=False)
