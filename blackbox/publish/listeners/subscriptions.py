"""A slice's subscriptions: the filters in force, and who has them. They are untrusted input."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection
from itertools import islice
from typing import Final, Protocol

from blackbox.block.form.ack_format import Acknowledgement
from blackbox.block.form.format import (
    CONFIRM_KEY,
    HEARTBEAT_KEY,
    LOST_BYTES,
    LOST_KEY,
    MOST_WANT_BYTES,
    NONCE_BYTES,
    PATH_KEY,
    RECORDED_KEY,
    SHARED_KEY,
    TAP_KEY,
    WANT_KEY,
)
from blackbox.feed.feed import Feed
from blackbox.feed.routing.key_rule import key_size
from blackbox.publish.listeners.confirmations import Asked, Confirmations
from blackbox.publish.listeners.peers import MOST_TOLD_REFUSALS, Identity, Peer, Place, Why, topics_of
from blackbox.repeated_log import HOUR_S, RepeatedLog

log = logging.getLogger("blackbox")

_MORE_FILTERS: Final = 4_096
"""Distinct filters allowed on a line in addition to one per possible key."""
MOST_WANTS: Final = 131_072
"""Most wanted prefixes on a line."""
MOST_USELESS: Final = 65_536
"""Most bytes of filters longer than any key per connection: libzmq keeps them, but they match nothing."""
_MOST_LATE_S: Final = 5.0
"""Longest time that changes of a connection wait until libzmq can attribute them."""
_MOST_NONCES: Final = 1_024
"""Most confirmations that one connection may request without withdrawing any."""
_MOST_REFUSED: Final = 65_536
"""Most refused prefixes that one connection may keep requesting."""
SUBSCRIBE: Final = b"\1"
UNSUBSCRIBE: Final = b"\0"
_CONTROL: Final = frozenset((HEARTBEAT_KEY, PATH_KEY, TAP_KEY))
"""Filters that match no data."""
LOST: Final = "its subscriptions were lost: it must reconnect"


class RecorderNotes(Protocol):
    """Receives acknowledgements of recorders."""

    def begin_epoch(self, epoch: int) -> None:
        """Accept acknowledgements of this epoch only."""

    def note(self, line: int, said: bytes, what: Acknowledgement) -> None:
        """Store an acknowledgement received on a line."""

    def withdraw(self, line: int, said: bytes) -> None:
        """Withdraw an acknowledgement on a line."""


class Filters(dict[bytes, int]):
    """Filters in force on a line, with the number of holders of each. `wants`: how many are wanted prefixes."""

    wants = 0


class Admission:
    """Decide which filters a connection may have, by its rights and limits; log and count refusals."""

    def __init__(self, feed: Feed) -> None:
        self.most_each = feed.max_subscriptions
        """Limit of filters per connection."""
        self.refused = 0
        self._feed_name = feed.name
        self._repeated = RepeatedLog(log, HOUR_S)

    def admit(self, peer: Peer, change: bytes) -> bool:
        """Return True if a change of a connection may be put in force."""
        prefix = change[1:]
        if change[:1] != SUBSCRIBE:
            return peer.refused.pop(prefix, None) is None
        why = peer.why_refused(prefix, self.most_each)
        if why is None:
            peer.refused.pop(prefix, None)
            return True
        peer.refuse(prefix, why)
        self.refused += 1
        reason = (
            "it has no right to that (rights.toml)"
            if why is Why.NO_RIGHT
            else f"it has {len(peer.filters)} subscriptions, expected at most {self.most_each} (max_subscriptions)"
        )
        refused = peer.identity.key or peer.identity.address.rpartition(":")[0], why
        text = "feed %r: refused %s the topics %r: %s"
        self._repeated.warning(refused, text, self._feed_name, peer.identity.called, topics_of(prefix), reason)
        return False


class Subscriptions:
    """The filters in force on each line of a slice, and the connections that have them.

    Changed by the thread that reads subscriptions, with `changed` held. Subclasses override `filter_changed` to see
    each filter added or removed.

    Each filter counts once per connection that has it. On inproc there are no connections, and subscribers are trusted.

    Attributes: `unwelcome`, connections to be ended (descriptor and cookie), and why; `heard`, changes received per
    descriptor; `is_behind`, True while changes wait to be read; `has_died`, True if a connection with state here was
    closed; `most_filters`, limit per line in addition to MOST_WANTS; `times_asked`, how often recorders were asked for
    their position.
    """

    def __init__(self, feed: Feed, lines: int, recorders: RecorderNotes) -> None:
        self.changed = threading.Condition()
        self.unwelcome: dict[tuple[int, int], str] = {}
        self.heard: dict[int, int] = {}
        self._peers: list[dict[int, Peer]] = [{} for _ in range(lines)]
        """By descriptor."""
        self._filters = [Filters() for _ in range(lines)]
        self.confirmations = Confirmations(self._peers)
        self.admission = Admission(feed)
        self.is_behind = self.has_died = False
        self.times_asked = 0
        self.most_filters = feed.max_keys + _MORE_FILTERS
        self._feed, self._key_size = feed, key_size(feed.key_rule)
        self._recorders = recorders

    @property
    def demand_version(self) -> int:
        """Number of changes to the wanted prefixes, for subclasses that report them before a confirmation."""
        return 0

    def filter_changed(self, place: Place, by: int) -> None:
        """Hook, called when the first holder adds a filter to a line (`by` 1) or the last one removes it (-1)."""

    def begin_epoch(self, epoch: int, *lines: int) -> None:
        """Begin an epoch on some lines; default: all."""
        self.confirmations.begin_epoch(epoch, lines or range(len(self._peers)))
        self._recorders.begin_epoch(epoch)

    # Connections

    def peer(self, line: int, fd: int) -> Peer | None:
        """Return the connection that has a descriptor."""
        return self._peers[line].get(fd)

    def peers(self, *lines: int) -> list[Peer]:
        """Return the connections of some lines; default: all. Other threads must hold `changed`."""
        return [peer for line in lines or range(len(self._peers)) for peer in self._peers[line].values()]

    @property
    def has_taps(self) -> bool:
        """True if a connection is a tap."""
        return any(TAP_KEY in filters for filters in self._filters)

    def taps(self) -> list[Peer]:
        """Return the connections that are taps."""
        with self.changed:
            return [peer for peer in self.peers() if peer.is_tap] if self.has_taps else []

    def meet(self, peer: Peer) -> Peer:
        """Add a new connection."""
        self.heard.pop(peer.fd, None)
        self._peers[peer.line][peer.fd] = peer
        return peer

    def forget(self, peer: Peer) -> None:
        """Remove a closed connection and its subscriptions."""
        self._peers[peer.line].pop(peer.fd, None)
        for prefix in tuple(peer.filters):
            self._leave_filter(peer.line, peer, prefix)
        self.confirmations.forget(peer)

    def admit(self, peer: Peer, change: bytes) -> bool:
        """Return True if a change of a connection may be put in force. End a connection with too many refusals."""
        is_admitted = self.admission.admit(peer, change)
        if len(peer.refused) > _MOST_REFUSED:
            self.disconnect(peer, f"more than {_MOST_REFUSED} of its subscriptions were refused")
        return is_admitted

    def disconnect(self, peer: Peer, why: str) -> None:
        """Mark a connection to be ended."""
        self.unwelcome[peer.fd, peer.identity.cookie] = why

    def refused_to(self, ask: Asked) -> dict[bytes, Why]:
        """Return the prefixes refused to the requester that it still wants, up to what fits in one answer."""
        peer = self.peer(ask.line, ask.fd)
        return dict(islice(peer.refused.items(), MOST_TOLD_REFUSALS)) if peer is not None else {}

    def find_lost(self) -> None:
        """Mark connections to be ended whose changes libzmq could not attribute for too long."""
        since = time.monotonic() - _MOST_LATE_S
        with self.changed:
            for peer in self.peers():
                if peer.late and peer.late_since < since:
                    self.disconnect(peer, LOST)

    # Their changes

    def note(self, line: int, fd: int, change: bytes, size: int, after: int) -> None:
        """Process a subscription or unsubscription of `size` bytes that starts with `change`.

        `after`: as in `Asked`.
        """
        peer = None
        if fd >= 0:
            peer = self._peers[line].get(fd) or self.meet(Peer(Identity(line, fd)))
            self.heard[fd] = self.heard.get(fd, 0) + 1
        what, prefix = change[:1], change[1:]
        if what == UNSUBSCRIBE:
            if not self.confirmations.withdraw(line, fd, prefix):
                self._leave_filter(line, peer, prefix)
        elif what == SUBSCRIBE:
            of_keys = prefix.removeprefix(SHARED_KEY)
            lets_through = len(of_keys) <= self._key_size and of_keys[:1] != b"\0"
            if prefix in _CONTROL or lets_through or is_want(prefix, size):
                self._add_filter(line, peer, prefix)
            elif prefix.startswith(CONFIRM_KEY) and size == 1 + len(CONFIRM_KEY) + NONCE_BYTES:
                self.confirmations.ask(Asked(line, prefix, fd, after, time.monotonic(), self.demand_version))
                if peer is not None and len(peer.nonces) > _MOST_NONCES:
                    self.disconnect(peer, f"it requested {_MOST_NONCES} confirmations and withdrew none")
            elif self.confirmations.accept(line, prefix):
                pass
            elif prefix.startswith(RECORDED_KEY) and (told := Acknowledgement.decode(prefix)):
                if self._add_filter(line, peer, prefix):
                    self._recorders.note(line, prefix, told)
            elif peer is not None:
                self._note_rest(peer, prefix, size)

    def _note_rest(self, peer: Peer, prefix: bytes, size: int) -> None:
        if prefix.startswith(LOST_KEY) and size == 1 + len(LOST_KEY) + LOST_BYTES:
            peer.lost_messages = int.from_bytes(prefix[len(LOST_KEY) :], "little")
            return
        if self.confirmations.is_of_other_line(prefix):
            return
        peer.useless += size
        if peer.useless > MOST_USELESS:
            peer.useless = 0
            self.disconnect(peer, f"it sent {MOST_USELESS} bytes of filters longer than any key")

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
            filters.wants += prefix.startswith(WANT_KEY)
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
            filters.wants -= prefix.startswith(WANT_KEY)
            self.filter_changed((line, prefix), -1)

    # Counts

    def subscribers(self, prefix: bytes, *, whole: bool = False) -> int:
        """Return the number of fully confirmed subscribers if any filter can match topics with `prefix`; else 0.

        `whole`: if any can match the topic equal to `prefix`. Plain SUB sockets, which request no heartbeats or
        confirmations, count as one.
        """
        best = 0
        key = self._feed.subscription_of(prefix, whole=whole)
        for line, filters in enumerate(self._filters):
            if _any_matches(filters, key):
                peers = self.peers(line)
                others = {peer.fd for peer in peers if key and not _any_matches(peer.filters, key)}
                confirms = HEARTBEAT_KEY in filters and (  # on inproc there are no peers
                    not peers or any(HEARTBEAT_KEY in peer.filters for peer in peers if peer.fd not in others)
                )
                best = max(best, self.confirmations.accepted_on(line, without=others) if confirms else 1)
        return best

    def subscriber_count(self, *, of_this_epoch: bool = False) -> int:
        """Return the number of confirmed subscribers on the line with most of them.

        `of_this_epoch`: count only those that have accepted a confirmation since it began.
        """
        with self.changed:
            lines = range(len(self._peers))
            return max(self.confirmations.accepted_on(line, of_this_epoch=of_this_epoch) for line in lines)

    def filter_count(self, *, wants: bool = True) -> int:
        """Return the number of distinct filters on the line with most; `wants`: including wanted prefixes."""
        return max(len(filters) - (0 if wants else filters.wants) for filters in self._filters)

    def held(self, line: int, *, wants: bool) -> tuple[dict[int, int], int]:
        """Return the number of filters per descriptor of a line, and the number of distinct ones.

        `wants`: count wanted prefixes, else the other filters.
        """
        with self.changed:
            filters = self._filters[line]
            held = {peer.fd: peer.wants if wants else len(peer.filters) - peer.wants for peer in self.peers(line)}
            return held, filters.wants if wants else len(filters) - filters.wants


def is_want(prefix: bytes, size: int) -> bool:
    """Return True if a subscription of `size` bytes names a wanted prefix."""
    return prefix.startswith(WANT_KEY) and size <= 1 + len(WANT_KEY) + MOST_WANT_BYTES


def _any_matches(filters: Collection[bytes], key: bytes) -> bool:
    """Return True if a filter can match a key that starts with `key`."""
    if not key:
        return any(has not in _CONTROL and not has.startswith(WANT_KEY) for has in filters)
    if any(key[:size] in filters or SHARED_KEY + key[:size] in filters for size in range(len(key) + 1)):
        return True
    return any(has.startswith((key, SHARED_KEY + key)) for has in filters)
