"""Keep what those below a relay ask for on each line, and pass up what has to go up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from blackbox.block.acknowledgement import Acknowledgement
from blackbox.block.format import PATH_KEY, WANT_KEY
from blackbox.feed.feed import Feed
from blackbox.publish.peers import Why
from blackbox.publish.subscriptions import MOST_WANTS, Asked, Place, Subscriptions
from blackbox.relay.upstream import Upstream

_MOST_WANTS_ABOVE: Final = MOST_WANTS // 2


class Below(Subscriptions):
    """The subscriptions below a relay's slice. Filters of data go up as each line's `Upstream` decides.

    Acknowledgements of recorders go up as they are. Acceptances stay here: those below are this relay's subscribers,
    and the relay is one of its source's. Filters of shared memory stay, too: a relay has none, so readers use sockets.

    `wants_path` is set when somebody has asked how this relay is reached.
    """

    def __init__(self, feed: Feed, upstreams: Sequence[Upstream]) -> None:
        super().__init__(feed, len(upstreams), _PassedUp(upstreams))
        self.wants_path = False
        self._wants_all = [False] * len(upstreams)
        self._upstreams = upstreams

    def filter_changed(self, place: Place, by: int) -> None:
        """Ask for more above, or for less."""
        line, prefix = place
        if prefix == PATH_KEY:
            self.wants_path |= by > 0
        elif prefix[:1] != b"\0" or prefix.startswith(WANT_KEY):
            upstream = self._upstreams[line]
            (upstream.want if by > 0 else upstream.leave)(prefix)
            if prefix.startswith(WANT_KEY):
                self._bound_wants(line)

    def refused_to(self, ask: Asked) -> dict[bytes, Why]:
        """Return what who asks for a confirmation is refused here, or by the source."""
        refused = super().refused_to(ask)
        above = self._upstreams[ask.line].refused
        if above and (peer := self.peer(ask.line, ask.fd)) is not None:
            refused |= dict.fromkeys(above & peer.filters, Why.NO_RIGHT)
        return refused

    def _bound_wants(self, line: int) -> None:
        """Want all above while more is wanted below than the source keeps of one relay."""
        is_too_much = self._wants[line] > _MOST_WANTS_ABOVE
        if is_too_much != self._wants_all[line]:
            self._wants_all[line] = is_too_much
            upstream = self._upstreams[line]
            (upstream.want if is_too_much else upstream.leave)(WANT_KEY)


class _PassedUp:
    """Passes on what recorders tell."""

    def __init__(self, upstreams: Sequence[Upstream]) -> None:
        self._upstreams = upstreams

    def begin_epoch(self, epoch: int) -> None:
        """Do nothing: recorders themselves withdraw what they acknowledged of another epoch."""

    def note(self, line: int, said: bytes, _what: Acknowledgement) -> None:
        """Pass on how far a recorder is."""
        self._upstreams[line].tell_recorded(said)

    def withdraw(self, line: int, said: bytes) -> None:
        """Pass on that this was withdrawn."""
        self._upstreams[line].withdraw_recorded(said)
