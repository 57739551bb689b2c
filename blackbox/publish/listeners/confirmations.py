"""Confirmations that the subscribers of a slice have requested, were sent, and have accepted."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

from blackbox.block.form.format import ACCEPT_KEY, CONFIRM_KEY, NONCE_BYTES
from blackbox.publish.listeners.peers import Peer, Place

_MOST_ASKED: Final = 65_536
"""Most requested confirmations not yet sent, on all lines; the oldest are dropped."""
_MOST_ANSWERED: Final = 65_536
"""Most confirmations not yet accepted, and acceptances of a line; the oldest are dropped."""


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

    @property
    def place(self) -> Place:
        """Its line and key."""
        return self.line, self.key


class Confirmations:
    """A subscriber requests a confirmation under a nonce, and accepts it by a filter of nonce, epoch and line.

    Guarded by `Subscriptions.changed`. Attributes: `asked`, requests; `answered`, confirmations sent and not yet
    accepted, with the descriptor that requested each.
    """

    def __init__(self, peers: Sequence[dict[int, Peer]]) -> None:
        """`peers`: the connections of each line by descriptor."""
        self.asked: OrderedDict[Place, Asked] = OrderedDict()
        self.answered: OrderedDict[Place, int] = OrderedDict()
        self._peers = peers
        self._accepted: list[OrderedDict[bytes, int]] = [OrderedDict() for _ in peers]
        self._endings = [b""] * len(peers)
        """Ending of an acceptance on each line in the current epoch."""

    def begin_epoch(self, epoch: int, lines: Iterable[int]) -> None:
        """From now on count acceptances of this epoch on some lines."""
        for line in lines:
            self._endings[line] = epoch.to_bytes(8, "little") + bytes([line])

    def ask(self, ask: Asked) -> None:
        """Add a request. It replaces the connection's earlier one."""
        peer = self._peers[ask.line].get(ask.fd)
        if peer is not None:
            self._drop_newest(peer)
            peer.newest = ask.place
            peer.nonces.add(ask.key)
        self.asked[ask.place] = ask
        _drop_first(self.asked, _MOST_ASKED)

    def confirmed(self, ask: Asked) -> None:
        """Note that a confirmation was sent."""
        if self.asked.pop(ask.place, None) is not None:
            self.answered[ask.place] = ask.fd
            if (peer := self._peers[ask.line].get(ask.fd)) is not None:
                peer.answers.append(ask.place)
            _drop_first(self.answered, _MOST_ANSWERED)

    def accept(self, line: int, prefix: bytes) -> bool:
        """Count the subscriber that requested this confirmation, whoever accepts it: nonces can be overheard.

        Return False unless `prefix` is an acceptance on this line in the current epoch.
        """
        if not (prefix.startswith(ACCEPT_KEY) and prefix.endswith(self._endings[line])):
            return False
        place = line, _confirmation_of(prefix)
        if place in self.answered:
            fd = self._accepted[line][prefix] = self.answered.pop(place)
            if (peer := self._peers[line].get(fd)) is not None:
                peer.acceptances.add(prefix)
            _drop_first(self._accepted[line], _MOST_ANSWERED)
        return True

    def is_of_other_line(self, prefix: bytes) -> bool:
        """Return True if this accepts another line's confirmation: subscribers send the same to all connections."""
        confirmation = _confirmation_of(prefix)
        return any(
            prefix == ACCEPT_KEY + confirmation[len(CONFIRM_KEY) :] + ending
            and (prefix in self._accepted[line] or (line, confirmation) in self.answered)
            for line, ending in enumerate(self._endings)
        )

    def withdraw(self, line: int, fd: int, prefix: bytes) -> bool:
        """Withdraw a request or an acceptance of a connection. Return False if `prefix` is neither."""
        place, peer = (line, prefix), self._peers[line].get(fd)
        if prefix.startswith(CONFIRM_KEY):
            if peer is not None:
                peer.nonces.discard(prefix)
            if place in self.asked and self.asked[place].fd == fd:
                del self.asked[place]
            if self.answered.get(place) == fd:
                del self.answered[place]
            return True
        if self._accepted[line].get(prefix) != fd:
            return False
        del self._accepted[line][prefix]
        if peer is not None:
            peer.acceptances.discard(prefix)
        return True

    def forget(self, peer: Peer) -> None:
        """Remove what a closed connection has requested and accepted."""
        # A peer that reconnects requests the same confirmation, perhaps before this is noticed: keep its acceptance.
        accepted = self._accepted[peer.line]
        for prefix in peer.acceptances:
            if accepted.get(prefix) == peer.fd:
                del accepted[prefix]
        self._drop_newest(peer)
        for place in peer.answers:
            if self.answered.get(place) == peer.fd:
                del self.answered[place]

    def _drop_newest(self, peer: Peer) -> None:
        place = peer.newest
        if place is not None and place in self.asked and self.asked[place].fd == peer.fd:
            del self.asked[place]

    def accepted_on(self, line: int, *, of_this_epoch: bool = False, without: Collection[int] = ()) -> int:
        """Return the number of subscribers on a line, `without` some connections, that have accepted a confirmation."""
        ending = self._endings[line] if of_this_epoch else b""
        fds = [fd for accepted, fd in self._accepted[line].items() if accepted.endswith(ending) and fd not in without]
        return sum(fd < 0 for fd in fds) + len({fd for fd in fds if fd >= 0})


def _confirmation_of(acceptance: bytes) -> bytes:
    return CONFIRM_KEY + acceptance[len(ACCEPT_KEY) :][:NONCE_BYTES]


def _drop_first(places: OrderedDict[Any, Any], most: int) -> None:
    while len(places) > most:
        places.popitem(last=False)
