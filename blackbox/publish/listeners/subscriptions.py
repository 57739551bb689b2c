"""A slice's subscriptions: filters, confirmations, acceptances. They are untrusted input."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

from blackbox.block.form.ack_format import Acknowledgement
from blackbox.block.form.format import (
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
from blackbox.feed.routing.key_rule import key_size
from blackbox.publish.listeners.peers import MOST_TOLD_REFUSALS, Peer, Why, topics_of

log = logging.getLogger("blackbox")

_MORE_FILTERS: Final = 4_096
"""Distinct filters allowed on a line in addition to one per possible key."""
MOST_WANTS: Final = 131_072
"""Most wanted prefixes on a line."""
_MOST_ASKED: Final = 65_536
"""Most requested confirmations not yet sent, on all lines; the oldest are dropped."""
_MOST_ANSWERED: Final = 65_536
"""Most confirmations not yet accepted, and acceptances of a line; the oldest are dropped."""
MOST_USELESS: Final = 65_536
"""Most bytes of filters longer than any key per connection: libzmq keeps them, but they match nothing."""
_MOST_LATE_S: Final = 5.0
"""Longest time that changes of a connection wait until libzmq can attribute them."""
_MOST_NONCES: Final = 1_024
"""Most confirmations that one connection may request without withdrawing any."""
_MOST_REFUSED: Final = 65_536
"""Most refused prefixes that one connection may keep requesting."""
_MOST_TOLD: Final = 1_000
"""Refused keys and hosts that are logged individually."""
SUBSCRIBE: Final = b"\1"
UNSUBSCRIBE: Final = b"\0"
_CONTROL: Final = frozenset((HEARTBEAT_KEY, PATH_KEY))
"""Filters that match no data."""

Place = tuple[int, bytes]
"""A line, and a filter on it."""


class Asked(NamedTuple):
    """A requested confirmation."""

    line: int
    key: bytes
    fd: int
    after: int
    """Pass that must be over before it is sent. For a publisher: the current pass of its ring, as the next one has
    counted all earlier unwanted messages.
    """
    since: float
    """When it was requested, monotonic."""
    demand: int
    """The `demand_version` at that time."""


class RecorderNotes(Protocol):
    """Receives acknowledgements of recorders."""

    def begin_epoch(self, epoch: int) -> None:
        """Accept acknowledgements of this epoch only."""

    def note(self, line: int, said: bytes, what: Acknowledgement) -> None:
        """Store an acknowledgement received on a line."""

    def withdraw(self, line: int, said: bytes) -> None:
        """Withdraw an acknowledgement on a line."""


class Subscriptions:
    """The filters in force on each line of a slice, the connections that have them, and accepted confirmations.

    Changed by the thread that reads subscriptions, with `changed` held. Subclasses override `filter_changed` to see
    each filter added or removed.

    Each filter counts once per connection that has it. On inproc there are no connections, and subscribers are trusted.

    Attributes: `lines`, number of lines; `unwelcome`, connections to be ended (descriptor and cookie), and why;
    `heard`, changes received per descriptor; `is_behind`, True while changes wait to be read; `has_died`, True if a
    connection with state here was closed; `most_filters`, limit per line in addition to MOST_WANTS; `most_each`, limit
    per connection; `refused`, number of refusals; `times_asked`, how often recorders were asked for their position.
    """

    def __init__(self, feed: Feed, lines: int, recorders: RecorderNotes) -> None:
        self.changed = threading.Condition()
        self.unwelcome: dict[tuple[int, int], str] = {}
        self.heard: dict[int, int] = {}
        self.asked: OrderedDict[Place, Asked] = OrderedDict()
        self.answered: OrderedDict[Place, int] = OrderedDict()
        """Confirmations not yet accepted, with the descriptor that requested each."""
        self._accepted: list[OrderedDict[bytes, int]] = [OrderedDict() for _ in range(lines)]
        self._peers: list[dict[int, Peer]] = [{} for _ in range(lines)]
        """By descriptor."""
        self._filters: list[dict[bytes, int]] = [{} for _ in range(lines)]
        """Number of holders of each filter."""
        self._wants = [0] * lines
        """Wanted prefixes among them."""
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
        """Number of changes to the wanted prefixes, for subclasses that report them before a confirmation."""
        return 0

    def filter_changed(self, place: Place, by: int) -> None:
        """Hook, called when the first holder adds a filter to a line (`by` 1) and when the last one removes it (-1)."""

    def begin_epoch(self, epoch: int, *lines: int) -> None:
        """Hook, called when the first holder adds a filter to a line (`by` 1) or the last one removes it (-1)."""
        for line in lines or range(len(self._mine)):
            self._mine[line] = epoch.to_bytes(8, "little") + bytes([line])
        self._recorders.begin_epoch(epoch)

    # Connections

    def peer(self, line: int, fd: int) -> Peer | None:
        """Return the connection that has a descriptor."""
        return self._peers[line].get(fd)

    def peers(self, line: int) -> list[Peer]:
        """Return the connections of a line. Other threads must hold `changed`."""
        return list(self._peers[line].values())

    def meet(self, peer: Peer) -> Peer:
        """Add a new connection."""
        self.heard.pop(peer.fd, None)
        self._peers[peer.line][peer.fd] = peer
        return peer

    def forget(self, peer: Peer) -> None:
        """Remove a closed connection and its subscriptions."""
        line = peer.line
        self._peers[line].pop(peer.fd, None)
        for prefix in tuple(peer.filters):
            self._leave_filter(line, peer, prefix)
        # A peer that reconnects requests the same confirmation, perhaps before this is noticed: keep its acceptance.
        for prefix in peer.acceptances:
            if self._accepted[line].get(prefix) == peer.fd:
                del self._accepted[line][prefix]
        self._drop_newest(peer)
        for place in peer.answers:
            if self.answered.get(place) == peer.fd:
                del self.answered[place]

    def admit(self, peer: Peer, change: bytes) -> bool:
        """Return True if a connection may have a filter. Otherwise log and count the refusal."""
        prefix = change[1:]
        if change[:1] != SUBSCRIBE:
            return peer.refused.pop(prefix, None) is None
        why = peer.why_refused(prefix, self.most_each)
        if why is None:
            return True
        peer.refuse(prefix, why)
        self.refused += 1
        if len(peer.refused) > _MOST_REFUSED:
            self.unwelcome[peer.fd, peer.cookie] = f"more than {_MOST_REFUSED} of its subscriptions were refused"
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
        """Return the prefixes refused to the requester that it still wants, up to what fits in one answer."""
        peer = self._peers[ask.line].get(ask.fd)
        return dict(islice(peer.refused.items(), MOST_TOLD_REFUSALS)) if peer is not None else {}

    def was_told(self, ask: Asked) -> None:
        """Note that the requester of a confirmation was informed of its refused prefixes."""
        self.asked.pop((ask.line, ask.key), None)

    def find_late(self) -> None:
        """Mark connections to be ended whose changes libzmq could not attribute for too long."""
        since = time.monotonic() - _MOST_LATE_S
        with self.changed:
            for peer in (peer for of_line in self._peers for peer in of_line.values()):
                if peer.late and peer.late_since < since:
                    self.unwelcome[peer.fd, peer.cookie] = "its subscriptions were lost: it must reconnect"

    # Their changes

    def note(self, line: int, fd: int, change: bytes, size: int, after: int) -> None:
        """Process a subscription or unsubscription of `size` bytes that starts with `change`.

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
                    why = f"it sent {MOST_USELESS} bytes of filters longer than any key"
                    self.unwelcome[fd, peer.cookie] = why

    def _add_filter(self, line: int, peer: Peer | None, prefix: bytes) -> bool:
        """Add a holder of a filter; return True if it is the first one."""
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
        """Remove a holder of a filter, if it is one."""
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
        if peer is not None:  # one at a time per connection: a repeated request replaces it
            self._drop_newest(peer)
            peer.newest = place
            peer.nonces.add(ask.key)
            if len(peer.nonces) > _MOST_NONCES:
                why = f"it requested {_MOST_NONCES} confirmations and withdrew none"
                self.unwelcome[peer.fd, peer.cookie] = why
        self.asked[place] = ask
        _drop_first(self.asked, _MOST_ASKED)

    def _drop_newest(self, peer: Peer) -> None:
        place = peer.newest
        if place is not None and place in self.asked and self.asked[place].fd == peer.fd:
            del self.asked[place]

    def _accept(self, line: int, prefix: bytes) -> None:
        """Count the subscriber that requested this confirmation, whoever accepts it: nonces can be overheard."""
        place = line, CONFIRM_KEY + prefix[len(ACCEPT_KEY) :][:NONCE_BYTES]
        if place in self.answered:
            fd = self._accepted[line][prefix] = self.answered.pop(place)
            if (peer := self._peers[line].get(fd)) is not None:
                peer.acceptances.add(prefix)
            _drop_first(self._accepted[line], _MOST_ANSWERED)

    def _is_of_other_line(self, prefix: bytes) -> bool:
        """Return True if this accepts another line's confirmation: subscribers send the same to all connections."""
        nonce = prefix[len(ACCEPT_KEY) :][:NONCE_BYTES]
        return any(
            prefix == ACCEPT_KEY + nonce + mine
            and (prefix in self._accepted[line] or (line, CONFIRM_KEY + nonce) in self.answered)
            for line, mine in enumerate(self._mine)
        )

    def _withdraw(self, line: int, fd: int, peer: Peer | None, prefix: bytes) -> None:
        """Process an unsubscription by the connection that had subscribed."""
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
        """Return the number of fully confirmed subscribers if any filter can match topics with `prefix`; else 0.

        `whole`: if any can match the topic equal to `prefix`. Plain SUB sockets, which request no heartbeats or
        confirmations, count as one.
        """
        best = 0
        key = self._feed.subscription_of(prefix, whole=whole)
        for line, filters in enumerate(self._filters):
            if _any_matches(filters, key):
                best = max(best, self._accepted_on(line) if HEARTBEAT_KEY in filters else 1)
        return best

    def subscriber_count(self, *, of_this_epoch: bool = False) -> int:
        """Return the number of confirmed subscribers on the line with most of them.

        `of_this_epoch`: count only those that have accepted a confirmation since it began.
        """
        with self.changed:
            endings = self._mine if of_this_epoch else [b""] * len(self._mine)
            return max(self._accepted_on(line, ending) for line, ending in enumerate(endings))

    def filter_count(self, *, wants: bool = True) -> int:
        """Return the number of distinct filters on the line with most; `wants`: including wanted prefixes."""
        counts = zip(map(len, self._filters), self._wants, strict=True)  # other threads call this too
        return max(filters - (0 if wants else of_wants) for filters, of_wants in counts)

    def held(self, line: int, *, wants: bool) -> tuple[dict[int, int], int]:
        """Return the number of filters per descriptor of a line, and the number of distinct ones.

        `wants`: count wanted prefixes, else the other filters.
        """
        with self.changed:
            held = {peer.fd: peer.wants if wants else len(peer.filters) - peer.wants for peer in self.peers(line)}
            return held, self._wants[line] if wants else len(self._filters[line]) - self._wants[line]

    def _accepted_on(self, line: int, ending: bytes = b"") -> int:
        fds = [fd for accepted, fd in self._accepted[line].items() if accepted.endswith(ending)]
        return sum(fd < 0 for fd in fds) + len({fd for fd in fds if fd >= 0})


def is_want(prefix: bytes, size: int) -> bool:
    """Return True if a subscription of `size` bytes names a wanted prefix."""
    return prefix.startswith(WANT_KEY) and size <= 1 + len(WANT_KEY) + MOST_WANT_BYTES


def _any_matches(filters: Mapping[bytes, object], key: bytes) -> bool:
    """Return True if a filter can match a key that starts with `key`."""
    if not key:
        return any(has not in _CONTROL and not has.startswith(WANT_KEY) for has in filters)
    if any({key[:size], SHARED_KEY + key[:size]} & filters.keys() for size in range(len(key) + 1)):
        return True
    return any(has.startswith((key, SHARED_KEY + key)) for has in filters)


def _drop_first(places: OrderedDict[Any, Any], most: int) -> None:
    while len(places) > most:
        places.popitem(last=False)
