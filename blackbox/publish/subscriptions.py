"""What a slice's subscribers have asked for: filters, confirmations, acceptances. Whoever asks may be hostile."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

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
from blackbox.feed.key_rule import key_size
from blackbox.publish.peers import MOST_TOLD_REFUSALS, Peer, Why, topics_of

log = logging.getLogger("blackbox")

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
_MOST_LATE_S: Final = 5.0
"""How long what a connection asks for may wait for libzmq to know whose it is."""
_MOST_NONCES: Final = 1_024
"""Confirmations that one connection may ask for without withdrawing any."""
_MOST_REFUSED: Final = 65_536
"""Refused prefixes that one connection may go on asking for."""
_MOST_TOLD: Final = 1_000
"""Refused keys and hosts that are told one by one."""
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


class RecorderNotes(Protocol):
    """Takes in what recorders tell."""

    def begin_epoch(self, epoch: int) -> None:
        """Expect what is told of another epoch."""

    def note(self, line: int, said: bytes, what: Acknowledgement) -> None:
        """Take in what a recorder tells on a line."""

    def withdraw(self, line: int, said: bytes) -> None:
        """Note that what was told on a line stands no more."""


class Subscriptions:
    """The filters in force on each line of a slice, who has asked for them, and who has said that it knows.

    Changed by the thread that reads subscriptions, with `changed` held. Who derives from it hears of every filter that
    comes and goes by `filter_changed`.

    Each filter is counted once for each connection that has it. On inproc there are no connections, and who asks is
    trusted.

    Attributes: `lines`, how many there are; `unwelcome`, descriptors and cookies of connections to be ended, and why;
    `heard`, how many changes came on each descriptor; `is_behind`, whether changes wait to be read; `has_died`, whether
    a connection is gone of which something is kept; `most_filters`, how many a line may have beside MOST_WANTS;
    `most_each`, how many a connection may have; `refused`, how often one was refused; `times_asked`, how often
    recorders were asked how far they are.
    """

    def __init__(self, feed: Feed, lines: int, recorders: RecorderNotes) -> None:
        self.changed = threading.Condition()
        self.unwelcome: dict[tuple[int, int], str] = {}
        self.heard: dict[int, int] = {}
        self.asked: OrderedDict[Place, Asked] = OrderedDict()
        self.answered: OrderedDict[Place, int] = OrderedDict()
        """Confirmations that are not yet accepted, and the descriptor that each was asked for on."""
        self._accepted: list[OrderedDict[bytes, int]] = [OrderedDict() for _ in range(lines)]
        self._peers: list[dict[int, Peer]] = [{} for _ in range(lines)]
        """By descriptor."""
        self._filters: list[dict[bytes, int]] = [{} for _ in range(lines)]
        """With each filter how many have it."""
        self._wants = [0] * lines
        """How many of them say what is wanted."""
        self._told: set[tuple[str, Why]] = set()
        self.is_behind = self.has_died = False
        self.times_asked = self.refused = 0
        self.most_filters = feed.max_keys + _MORE_FILTERS
        self.most_each = feed.max_subscriptions
        self.lines = lines
        self._feed, self._key_size = feed, key_size(feed.key_rule)
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

    # Connections

    def peer(self, line: int, fd: int) -> Peer | None:
        """Return the connection that has a descriptor."""
        return self._peers[line].get(fd)

    def peers(self, line: int) -> list[Peer]:
        """Return the connections of a line. From other threads with `changed` held."""
        return list(self._peers[line].values())

    def meet(self, peer: Peer) -> Peer:
        """Expect what a new connection asks for."""
        self.heard.pop(peer.fd, None)
        self._peers[peer.line][peer.fd] = peer
        return peer

    def forget(self, peer: Peer) -> None:
        """Forget a connection that is gone, and what it asked for."""
        line = peer.line
        self._peers[line].pop(peer.fd, None)
        for prefix in tuple(peer.filters):
            self._leave_filter(line, peer, prefix)
        # Who connects again asks for the same confirmation, perhaps before this is noticed: that stands.
        for prefix in peer.acceptances:
            if self._accepted[line].get(prefix) == peer.fd:
                del self._accepted[line][prefix]
        self._drop_newest(peer)
        for place in peer.answers:
            if self.answered.get(place) == peer.fd:
                del self.answered[place]

    def admit(self, peer: Peer, change: bytes) -> bool:
        """Whether a connection may have what it asks for; who may not is told, and counted."""
        prefix = change[1:]
        if change[:1] != SUBSCRIBE:
            return peer.refused.pop(prefix, None) is None
        why = peer.why_refused(prefix, self.most_each)
        if why is None:
            return True
        peer.refuse(prefix, why)
        self.refused += 1
        if len(peer.refused) > _MOST_REFUSED:
            self.unwelcome[peer.fd, peer.cookie] = f"it asks for more than {_MOST_REFUSED} topics that it may not have"
        told = peer.key or peer.address.rpartition(":")[0], why
        if told not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(told)
            reason = (
                "it has no right to that (rights.toml)"
                if why is Why.NO_RIGHT
                else f"it has {len(peer.filters)} subscriptions, expected at most {self.most_each} (max_subscriptions)"
            )
            log.warning(
                "feed %r: refused %s the topics %r: %s; further ones are only counted",
                self._feed.name,
                peer.called,
                topics_of(prefix),
                reason,
            )
        return False

    def refused_to(self, ask: Asked) -> dict[bytes, Why]:
        """Return what who asks for a confirmation was refused, and still wants: as much as one answer tells."""
        peer = self._peers[ask.line].get(ask.fd)
        return dict(islice(peer.refused.items(), MOST_TOLD_REFUSALS)) if peer is not None else {}

    def was_told(self, ask: Asked) -> None:
        """Note that who asked for a confirmation was told of what it was refused."""
        self.asked.pop((ask.line, ask.key), None)

    def find_late(self) -> None:
        """Have those connections ended that have waited for too long: libzmq does not know whose their words are."""
        since = time.monotonic() - _MOST_LATE_S
        with self.changed:
            for peer in (peer for of_line in self._peers for peer in of_line.values()):
                if peer.late and peer.late_since < since:
                    self.unwelcome[peer.fd, peer.cookie] = "what it asked for was lost: it is to ask again"

    # What they ask for

    def note(self, line: int, fd: int, change: bytes, size: int, after: int) -> None:
        """Take in a subscription or unsubscription of `size` bytes, of which `change` are the first.

        `after`: as in `Asked`.
        """
        peer = None
        if fd >= 0:
            peer = self._peers[line].get(fd) or self.meet(Peer(line, fd))
            self.heard[fd] = self.heard.get(fd, 0) + 1
        what, prefix = change[:1], change[1:]
        if what == UNSUBSCRIBE:
            self._withdraw(line, fd, peer, prefix)
        elif what == SUBSCRIBE:
            of_keys = prefix.removeprefix(SHARED_KEY)
            lets_through = len(of_keys) <= self._key_size and of_keys[:1] != b"\0"
            if prefix in _CONTROL or lets_through or is_want(prefix, size):
                self._add_filter(line, peer, prefix)
            elif prefix.startswith(CONFIRM_KEY) and size == 1 + len(CONFIRM_KEY) + NONCE_BYTES:
                self._ask(Asked(line, prefix, fd, after, time.monotonic(), self.demand_version), peer)
            elif prefix.startswith(ACCEPT_KEY) and prefix.endswith(self._mine[line]):
                self._accept(line, prefix)
            elif prefix.startswith(RECORDED_KEY) and (told := Acknowledgement.decode(prefix)):
                if self._add_filter(line, peer, prefix):
                    self._recorders.note(line, prefix, told)
            elif peer is not None and not self._is_of_other_line(prefix):
                peer.useless += size
                if peer.useless > MOST_USELESS:
                    peer.useless = 0
                    why = f"it asked for {MOST_USELESS} bytes of filters longer than any key"
                    self.unwelcome[fd, peer.cookie] = why

    def _add_filter(self, line: int, peer: Peer | None, prefix: bytes) -> bool:
        """Count one more who has a filter; return whether it is the first one."""
        if peer is not None:
            if prefix in peer.filters:
                return False
            peer.filters.add(prefix)
            peer.wants += prefix.startswith(WANT_KEY)
        filters = self._filters[line]
        count = filters[prefix] = filters.get(prefix, 0) + 1
        if count == 1 and not prefix.startswith(RECORDED_KEY):
            self._wants[line] += prefix.startswith(WANT_KEY)
            self.filter_changed((line, prefix), 1)
        return count == 1

    def _leave_filter(self, line: int, peer: Peer | None, prefix: bytes) -> None:
        """Count one less who has a filter, if it has it."""
        filters = self._filters[line]
        if peer is not None:
            if prefix not in peer.filters:
                return
            peer.filters.remove(prefix)
            peer.wants -= prefix.startswith(WANT_KEY)
        elif prefix not in filters:
            return
        filters[prefix] -= 1
        if filters[prefix]:
            return
        del filters[prefix]
        if prefix.startswith(RECORDED_KEY):
            self._recorders.withdraw(line, prefix)
        else:
            self._wants[line] -= prefix.startswith(WANT_KEY)
            self.filter_changed((line, prefix), -1)

    def _ask(self, ask: Asked, peer: Peer | None) -> None:
        place = ask.line, ask.key
        if peer is not None:  # one at a time for each connection: who asks again has withdrawn what it asked before
            self._drop_newest(peer)
            peer.newest = place
            peer.nonces.add(ask.key)
            if len(peer.nonces) > _MOST_NONCES:
                why = f"it asked for {_MOST_NONCES} confirmations, and withdrew none"
                self.unwelcome[peer.fd, peer.cookie] = why
        self.asked[place] = ask
        _drop_first(self.asked, _MOST_ASKED)

    def _drop_newest(self, peer: Peer) -> None:
        place = peer.newest
        if place is not None and place in self.asked and self.asked[place].fd == peer.fd:
            del self.asked[place]

    def _accept(self, line: int, prefix: bytes) -> None:
        """Count the subscriber that had asked for this confirmation, whoever accepts it: nonces can be overheard."""
        place = line, CONFIRM_KEY + prefix[len(ACCEPT_KEY) :][:NONCE_BYTES]
        if place in self.answered:
            fd = self._accepted[line][prefix] = self.answered.pop(place)
            if (peer := self._peers[line].get(fd)) is not None:
                peer.acceptances.add(prefix)
            _drop_first(self._accepted[line], _MOST_ANSWERED)

    def _is_of_other_line(self, prefix: bytes) -> bool:
        """Whether this accepts a confirmation of another line: a subscriber asks all its connections for the same."""
        nonce = prefix[len(ACCEPT_KEY) :][:NONCE_BYTES]
        return any(
            prefix == ACCEPT_KEY + nonce + mine
            and (prefix in self._accepted[line] or (line, CONFIRM_KEY + nonce) in self.answered)
            for line, mine in enumerate(self._mine)
        )

    def _withdraw(self, line: int, fd: int, peer: Peer | None, prefix: bytes) -> None:
        """Take in that something is not asked for any more, by who has asked for it."""
        place = line, prefix
        if prefix.startswith(CONFIRM_KEY):
            if peer is not None:
                peer.nonces.discard(prefix)
            if place in self.asked and self.asked[place].fd == fd:
                del self.asked[place]
            if self.answered.get(place) == fd:
                del self.answered[place]
        elif self._accepted[line].get(prefix) == fd:
            del self._accepted[line][prefix]
            if peer is not None:
                peer.acceptances.discard(prefix)
        else:
            self._leave_filter(line, peer, prefix)

    def confirmed(self, ask: Asked) -> None:
        """Note that a confirmation was sent."""
        place = ask.line, ask.key
        if self.asked.pop(place, None) is not None:
            self.answered[place] = ask.fd
            if (peer := self._peers[ask.line].get(ask.fd)) is not None:
                peer.answers.append(place)
            _drop_first(self.answered, _MOST_ANSWERED)

    def subscribers(self, prefix: bytes, *, whole: bool = False) -> int:
        """How many subscribers have all their filters in force, if any filter can match topics with `prefix`; else 0.

        `whole`: can match the topic that is equal to `prefix`. Plain SUB sockets, which want no heartbeats and ask for
        nothing, count as one.
        """
        best = 0
        key = self._feed.subscription_of(prefix, whole=whole)
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

    def held(self, line: int, *, wants: bool) -> tuple[dict[int, int], int]:
        """How many filters of a line each descriptor has, and how many distinct ones there are.

        `wants`: of those that say what is wanted, else of the others.
        """
        with self.changed:
            held = {peer.fd: peer.wants if wants else len(peer.filters) - peer.wants for peer in self.peers(line)}
            return held, self._wants[line] if wants else len(self._filters[line]) - self._wants[line]

    def _accepted_on(self, line: int, ending: bytes = b"") -> int:
        fds = [fd for accepted, fd in self._accepted[line].items() if accepted.endswith(ending)]
        return sum(fd < 0 for fd in fds) + len({fd for fd in fds if fd >= 0})


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
