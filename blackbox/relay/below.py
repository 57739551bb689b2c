"""Keep what those below a relay ask for on each line, and pass up what has to go up."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from blackbox.block.acknowledgement import Acknowledgement
from blackbox.block.format import PATH_KEY, SHARED_KEY, WANT_KEY
from blackbox.feed.feed import Feed
from blackbox.native.prefix_trie import build_trie
from blackbox.publish.peers import MOST_TOLD_REFUSALS, Why
from blackbox.publish.subscriptions import MOST_WANTS, Asked, Place, Subscriptions
from blackbox.relay.upstream import Upstream

_MOST_WANTS_ABOVE: Final = MOST_WANTS // 2
_SPARE_FILTERS: Final = 2_048
"""Filters above that are not for data, as those of recorders: the source has room for these too."""


class Below(Subscriptions):
    """The subscriptions below a relay's slice. Filters of data go up as each line's `Upstream` decides.

    Acknowledgements of recorders go up as they are. Acceptances stay here: those below are this relay's subscribers,
    and the relay is one of its source's.

    Attributes: `wants_path`, set when somebody has asked how this relay is reached; `readers`, the keys that readers of
    shared memory want, as prefixes.
    """

    def __init__(self, feed: Feed, slice_id: int, upstreams: Sequence[Upstream]) -> None:
        super().__init__(feed, len(upstreams), _PassedUp(upstreams))
        self.wants_path = False
        self.readers = build_trie([])
        self._shared: set[Place] = set()
        self._shares = bool(feed.slices[slice_id].shared_memory)
        self._readers_changed = False
        self._wanted_whole = [set[bytes]() for _ in upstreams]
        self._upstreams = upstreams

    def filter_changed(self, place: Place, by: int) -> None:
        """Ask for more above, or for less."""
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
            wants = self._wants[line]
            if prefix.startswith(WANT_KEY):
                self._bound(line, WANT_KEY, wants > _MOST_WANTS_ABOVE)
            else:
                self._bound(line, b"", len(self._filters[line]) - wants > self.most_filters - _SPARE_FILTERS)

    def refused_to(self, ask: Asked) -> dict[bytes, Why]:
        """Return what who asks for a confirmation is refused here, or by the source."""
        refused = super().refused_to(ask)
        above = self._upstreams[ask.line].refused
        if above:
            peer = self.peer(ask.line, ask.fd)
            # On inproc it is not known who asks: all are told, else who was refused would take it for confirmed.
            filters = self._filters[ask.line] if peer is None else peer.filters
            of_both = ((kind + prefix, why) for prefix, why in above.items() for kind in (b"", SHARED_KEY))
            refused |= islice((each for each in of_both if each[0] in filters), MOST_TOLD_REFUSALS - len(refused))
        return refused

    def note_refused(self, line: int, new: Iterable[bytes]) -> None:
        """Have those ask again, and so be told, for whom filters are confirmed that the source refuses from now on."""
        filters = {kind + prefix for prefix in new for kind in (b"", SHARED_KEY)}
        with self.changed:
            for peer in self.peers(line) if filters else ():
                if peer.acceptances and peer.newest not in self.asked and not filters.isdisjoint(peer.filters):
                    self.unwelcome[peer.fd, peer.cookie] = "the source refuses what it asked for: it is to ask again"

    def renew_readers(self) -> None:
        """Bring `readers` up to date."""
        if self._readers_changed:
            self._readers_changed = False
            self.readers = build_trie(sorted({prefix.removeprefix(SHARED_KEY) for _, prefix in self._shared}))

    def _bound(self, line: int, everything: bytes, is_too_much: bool) -> None:
        """Want everything above, as one prefix, while more is wanted below than the source keeps of one relay."""
        if is_too_much != (everything in self._wanted_whole[line]):
            self._wanted_whole[line] ^= {everything}
            self._upstreams[line].want(everything, 1 if is_too_much else -1, time.monotonic())


class _PassedUp:
    """Passes on what recorders tell."""

    def __init__(self, upstreams: Sequence[Upstream]) -> None:
        self._upstreams = upstreams

    def begin_epoch(self, epoch: int) -> None:
        """Do nothing: recorders themselves withdraw what they acknowledged of another epoch."""

    def note(self, line: int, said: bytes, _what: Acknowledgement) -> None:
        """Pass on how far a recorder is."""
        self._upstreams[line].note_recorded(said)

    def withdraw(self, line: int, said: bytes) -> None:
        """Pass on that this was withdrawn."""
        self._upstreams[line].withdraw_recorded(said)
