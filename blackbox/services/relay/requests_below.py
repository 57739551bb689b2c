"""Subscriptions below a relay: which ones each line has, and which go up."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from blackbox.block.form.ack_format import Acknowledgement
from blackbox.block.form.format import PATH_KEY, SHARED_KEY, WANT_KEY
from blackbox.feed.feed import Feed
from blackbox.publish.listeners.confirmations import Asked
from blackbox.publish.listeners.peers import MOST_TOLD_REFUSALS, Place, Why
from blackbox.publish.listeners.subscriptions import MOST_WANTS, SUBSCRIBE, UNSUBSCRIBE, Subscriptions
from blackbox.services.relay.key_ranges import ranges_of
from blackbox.services.relay.requests_up import Upstream

_MOST_WANTS_ABOVE: Final = MOST_WANTS // 2
_MOST_ACKS: Final = 1_024
"""Most active acknowledgements of recorders; the oldest ones above that are withdrawn."""
_SPARE_FILTERS: Final = 2_048
"""Filters above that are not for data, such as acknowledgements: the source has room for these too."""


class Below(Subscriptions):
    """Subscriptions below a relay's slice. Each line's `Upstream` decides which data filters go up.

    Acknowledgements of recorders go up unchanged. Acceptances stay here: peers below are this relay's subscribers, and
    the relay is one of its source's.

    Attributes: `wants_path`, True if a peer has asked for the relay's path; `readers`, the ranges (`ranges_of`) of the
    keys that readers of shared memory or of multicast lines subscribe to.
    """

    def __init__(self, feed: Feed, slice_id: int, upstreams: Sequence[Upstream], most_above: int) -> None:
        """`most_above`: most filters of data, and most wanted topics, that a source keeps for this relay on a line."""
        super().__init__(feed, len(upstreams), ForwardedAcks(upstreams))
        self.wants_path = False
        self.readers = ranges_of(())
        self._shared: set[Place] = set()
        self._shares = bool(feed.slices[slice_id].shared_memory or feed.slices[slice_id].multicast)
        self._readers_changed = False
        self._wanted_whole = [set[bytes]() for _ in upstreams]
        self._upstreams = upstreams
        self._most_above = min(self.most_filters - _SPARE_FILTERS, most_above)
        self._most_wants_above = min(_MOST_WANTS_ABOVE, most_above)

    def filter_changed(self, place: Place, by: int) -> None:
        """Request a filter above, or withdraw it."""
        line, prefix = place
        if prefix == PATH_KEY:
            self.wants_path |= by > 0
        elif prefix.startswith(SHARED_KEY):
            if self._shares:
                (self._shared.add if by > 0 else self._shared.remove)(place)
                self._readers_changed = True
                self.filter_changed((line, prefix.removeprefix(SHARED_KEY)), by)
        elif prefix[:1] != b"\0" or prefix.startswith(WANT_KEY):
            self._upstreams[line].want(prefix, by, time.monotonic())
            wants = self._filters[line].wants
            if prefix.startswith(WANT_KEY):
                self._bound(line, WANT_KEY, wants > self._most_wants_above)
            else:
                self._bound(line, b"", len(self._filters[line]) - wants > self._most_above)

    def refused_to(self, ask: Asked) -> dict[bytes, Why]:
        """Return what is refused to the peer that asks for a confirmation, here or by the source."""
        refused = super().refused_to(ask)
        above = self._upstreams[ask.line].refused
        if above:
            peer = self.peer(ask.line, ask.fd)
            # On inproc the peer is unknown: report to all, else the refused peer would take its filters for confirmed.
            filters = self._filters[ask.line] if peer is None else peer.filters
            of_both = ((kind + prefix, why) for prefix, why in above.items() for kind in (b"", SHARED_KEY))
            refused |= islice((each for each in of_both if each[0] in filters), MOST_TOLD_REFUSALS - len(refused))
        return refused

    def note_refused(self, line: int, new: Iterable[bytes]) -> None:
        """Make peers ask again whose confirmed filters the source now refuses, so that they receive the refusal."""
        filters = {kind + prefix for prefix in new for kind in (b"", SHARED_KEY)}
        with self.changed:
            for peer in self.peers(line):
                if (
                    peer.acceptances
                    and peer.newest not in self.confirmations.asked
                    and not filters.isdisjoint(peer.filters)
                ):
                    self.disconnect(peer, "the source refuses what it asked for: it is to ask again")

    def renew_readers(self) -> None:
        """Rebuild `readers` if they have changed."""
        if self._readers_changed:
            self._readers_changed = False
            self.readers = ranges_of({prefix.removeprefix(SHARED_KEY) for _, prefix in self._shared})

    def _bound(self, line: int, everything: bytes, is_too_much: bool) -> None:
        """Subscribe to everything above while the peers below want more prefixes than the source keeps for a relay."""
        if is_too_much != (everything in self._wanted_whole[line]):
            self._wanted_whole[line] ^= {everything}
            self._upstreams[line].want(everything, 1 if is_too_much else -1, time.monotonic())


class ForwardedAcks:
    """Acknowledgements of recorders, which go up unchanged."""

    def __init__(self, upstreams: Sequence[Upstream]) -> None:
        self._upstreams = upstreams
        self._active = [dict[bytes, None]() for _ in upstreams]

    def begin_epoch(self, epoch: int) -> None:
        """Do nothing: recorders withdraw their acknowledgements of an earlier epoch."""

    def note(self, line: int, said: bytes, _what: Acknowledgement) -> None:
        """Forward an acknowledgement."""
        active = self._active[line]
        if said not in active:
            active[said] = None
            self._upstreams[line].out.append(SUBSCRIBE + said)
            if len(active) > _MOST_ACKS:
                self.withdraw(line, next(iter(active)))

    def withdraw(self, line: int, said: bytes) -> None:
        """Forward a withdrawal."""
        if said in self._active[line]:
            del self._active[line][said]
            self._upstreams[line].out.append(UNSUBSCRIBE + said)
